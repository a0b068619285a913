"""Half precision on a processor without instructions for it: rounded as elsewhere, and nothing is multiplied slowly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.rounding import gamma
from torch import nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode

import ttmbench
from ttmbench.model_adapters._shared import precision
from ttmbench.model_adapters._shared.precision import arithmetic, multiplies, products

CPU = torch.device("cpu")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
each_half = pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)


@pytest.fixture
def no_instructions(monkeypatch):
    """As on a processor with AVX2 alone."""
    monkeypatch.setattr(precision, "multiplies", lambda dtype: dtype == torch.float32)


class Slow(TorchDispatchMode):
    """Notes the products of at least so many rows in half precision that reach torch's kernels."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.rows, self.seen = rows, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if any(part in name for part in ("mm", "convolution", "linear")):
            halves = [one for one in args if isinstance(one, torch.Tensor) and one.dtype in HALVES.values()]
            added = len(halves) > 2 and name != "linear"  # first what is added, then what is multiplied
            left = halves[added] if halves else torch.empty(0)
            if halves and ("convolution" in name or left.numel() >= self.rows * left.shape[-1]):
                self.seen.append((name, [tuple(one.shape) for one in halves]))
        return func(*args, **kwargs or {})


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, W, B = drawn(9, 33), drawn(17, 33, seed=1), drawn(17, seed=2)
IMAGES, WINDOWS = drawn(2, 3, 16, 16), drawn(5, 3, 4, 4, seed=1)
PRODUCTS = {
    "linear": (functional.linear, (X, W, B)),
    "mm": (torch.mm, (X, W.T)),
    "Tensor.mm": (torch.Tensor.mm, (X, W.T)),
    "matmul": (torch.matmul, (X, W.T)),
    "@": (lambda one, other: one @ other, (X.view(3, 3, 33), W.T)),
    "Tensor.matmul": (torch.Tensor.matmul, (X, W.T)),
    "bmm": (torch.bmm, (X.view(3, 3, 33), W.T.expand(3, 33, 17))),
    "Tensor.bmm": (torch.Tensor.bmm, (X.view(3, 3, 33), W.T.expand(3, 33, 17))),
    "addmm": (torch.addmm, (B, X, W.T)),
    "Tensor.addmm": (torch.Tensor.addmm, (B, X, W.T)),
    "addmm_": (lambda to, one, other: to.clone().addmm_(one, other), (B.expand(9, 17), X, W.T)),
    "baddbmm": (torch.baddbmm, (B, X.view(3, 3, 33), W.T.expand(3, 33, 17))),
    "Tensor.baddbmm": (torch.Tensor.baddbmm, (B, X.view(3, 3, 33), W.T.expand(3, 33, 17))),
    "einsum": (lambda *given: torch.einsum("ij,kj->ik", *given), (X, W)),
    "conv1d": (functional.conv1d, (IMAGES[:, :, 0], WINDOWS[:, :, 0])),
    "conv2d": (lambda *given: functional.conv2d(*given, stride=4), (IMAGES, WINDOWS)),
    "conv3d": (functional.conv3d, (IMAGES[None], WINDOWS[:, :2, None])),
}
each_product = pytest.mark.parametrize("name", PRODUCTS)


@each_product
@each_half
def test_a_product_is_exact_but_for_one_rounding(name, dtype, no_instructions):
    function, given = PRODUCTS[name]
    given = tuple(one.to(dtype) for one in given)
    with products(CPU, dtype):
        found = function(*given)
    assert found.dtype == dtype
    exact, sizes = (function(*map(way, given)) for way in (torch.Tensor.double, lambda one: one.double().abs()))
    terms = function(*(torch.ones_like(one, dtype=torch.float64) for one in given)).max()
    of_sum, of_result = gamma(int(terms)) * sizes, torch.finfo(dtype).eps / 2 * exact.abs()
    assert bool(((found.double() - exact).abs() <= of_result + (1 + torch.finfo(dtype).eps) * of_sum).all())


@pytest.mark.parametrize(
    "name", sorted(PRODUCTS.keys() - {"addmm_"})
)  # autocast casts nothing that is changed in place
@each_half
def test_under_autocast_float32_is_rounded_first(name, dtype, no_instructions):
    function, given = PRODUCTS[name]
    with arithmetic(CPU, dtype):
        found = function(*given)
    with products(CPU, dtype):
        assert torch.equal(found, function(*(one.to(dtype) for one in given)))


def test_what_is_added_to_in_place_is_the_tensor_itself(no_instructions):
    to, one, other = (one.bfloat16() for one in (drawn(4, 9, 17), X, W.T))
    expected = to.clone()
    expected[1] = expected[1].float() + one.float() @ other.float()
    with products(CPU, torch.bfloat16):
        assert to[1].addmm_(one, other).data_ptr() == to[1].data_ptr()
    torch.testing.assert_close(to, expected, rtol=2**-7, atol=0)
    assert torch.equal(to[0], expected[0]) and torch.equal(to[2:], expected[2:])


@each_half
def test_attention_of_torch_is_a_product_too(dtype, no_instructions):
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(32, 2, batch_first=True).eval(), drawn(3, 7, 32)
    seen = torch.zeros(7, 7).masked_fill_(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    exact = attention(x, x, x, attn_mask=seen, need_weights=False)[0]
    with arithmetic(CPU, dtype), Slow() as slow:
        found, weights = attention(x, x, x, attn_mask=seen, need_weights=False)
    assert weights is None and found.dtype == dtype and slow.seen == []
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.01)


def test_everything_else_stays_as_it_is(no_instructions):
    x, half = drawn(9, 33), drawn(9, 33).bfloat16()
    others = [functional.gelu, torch.softmax, lambda x, *_: x + x, lambda x, *_: x.sum(dim=0)]
    with products(CPU, torch.bfloat16):
        found = [other(half, *(() if other is functional.gelu else (-1,))) for other in others]
        exact = x @ W.T
        assert torch.equal(torch.arange(6).view(2, 3) @ torch.arange(3), torch.tensor([5, 14]))
    assert torch.equal(exact, x @ W.T)
    for one, other in zip(found, others, strict=True):
        assert torch.equal(one, other(half, *(() if other is functional.gelu else (-1,))))


def test_autocast_leaves_whole_numbers_and_float64_as_they_are(no_instructions):
    whole = torch.arange(1000, 1009).view(3, 3)
    with arithmetic(CPU, torch.bfloat16):
        assert torch.equal(whole @ whole, torch.tensor(whole.numpy() @ whole.numpy()))
        found = X.double() @ W.double().T
    assert torch.equal(found, X.double() @ W.double().T)


@pytest.mark.parametrize("rows", [7, 8])
def test_few_rows_are_multiplied_as_they_are_unless_they_are_trained(rows, no_instructions):
    x, w = drawn(rows, 33).bfloat16(), W.bfloat16()
    with products(CPU, torch.bfloat16):
        with torch.inference_mode(), Slow() as scoring:
            functional.linear(x, w)
        with Slow() as training:
            functional.linear(x, w)
    assert bool(scoring.seen) == (rows < 8) and training.seen == []


@each_half
def test_gradients_are_multiplied_in_float32_too(dtype, no_instructions):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(33, 64), nn.GELU(), nn.Linear(64, 5))
    exact = torch.autograd.grad(layers(X).square().sum(), list(layers.parameters()))
    with arithmetic(CPU, dtype):
        loss = layers(X).float().square().sum()
    with Slow() as slow:
        found = torch.autograd.grad(loss, list(layers.parameters()))
    assert slow.seen == []
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.02


def test_a_processor_that_multiplies_in_half_precision_does(monkeypatch):
    monkeypatch.setattr(precision, "multiplies", lambda dtype: True)
    with arithmetic(CPU, torch.bfloat16):
        assert _get_current_function_mode() is None and torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert (X @ W.T).dtype == torch.bfloat16


def test_float32_and_an_accelerator_are_left_alone(no_instructions):
    for device, dtype in ((CPU, torch.float32), (torch.device("cuda"), torch.bfloat16)):
        with products(device, dtype):
            assert _get_current_function_mode() is None
    with arithmetic(CPU, torch.float32):
        assert not torch.is_autocast_enabled("cpu") and _get_current_function_mode() is None
    with arithmetic(CPU, torch.float32, torch.bfloat16):
        assert not torch.is_autocast_enabled("cpu") and _get_current_function_mode() is not None


def test_what_this_processor_multiplies_is_what_its_library_says(monkeypatch):
    assert multiplies(torch.float32)
    known = torch.ops.mkldnn
    assert multiplies(torch.bfloat16) == known._is_mkldnn_bf16_supported()
    assert multiplies(torch.float16) == known._is_mkldnn_fp16_supported()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not multiplies.__wrapped__(torch.bfloat16) and multiplies.__wrapped__(torch.float32)


TTM = {"ttm": {"iterations": 1, "epochs": 1, "lr": 1e-6}, "seeds": [0]}
ARITHMETIC, WEIGHTS = {"dtype": "bf16"}, {"weights_dtype": "bf16"}
RUNS = [
    ("hf", "clip", {}, {}, ARITHMETIC, TTM),
    ("hf", "clip", {}, {"attn_implementation": "sdpa"}, ARITHMETIC, TTM),
    ("hf", "siglip", {}, {}, ARITHMETIC, TTM),
    ("blip-itm", "blip", {"captioner": False}, {}, ARITHMETIC, TTM),
    ("visualgpt", "blip", {"captioner": True}, {}, ARITHMETIC, {}),
    ("vqascore", "chat", {"kind": "llava"}, {}, ARITHMETIC, TTM),
    ("vqascore", "chat", {"kind": "llava"}, {}, WEIGHTS, {}),
    ("choice", "chat", {"kind": "llava"}, {"max_tokens": 2}, WEIGHTS, {}),
    ("blind", "language_model", {"kind": "gpt2"}, {}, ARITHMETIC, {}),
]


@pytest.mark.parametrize(
    ("model", "maker", "options", "args", "half", "settings"),
    RUNS,
    ids=[" ".join(map(str, (*run[:2], *run[3:5]))) for run in RUNS],
)
def test_no_run_multiplies_slowly(
    model, maker, options, args, half, settings, tiny_vlm, tiny_hf_clip, tiny_siglip, monkeypatch
):
    folder = {"clip": tiny_hf_clip, "siglip": tiny_siglip}.get(maker) or tiny_vlm(maker, **options)
    common = {"limit": 3, "bootstrap_iters": 0, "use_cache": "off", "device": "cpu", **settings}

    def scored(**half):
        model_args = {"pretrained": str(folder), **args, **half}
        run = ttmbench.simple_evaluate(model, "shapes_color", model_args=model_args, **common)
        return [one.groups for one in run.scores["shapes_color"].get("none", [])]  # a choice has no scores

    def wrong(found):
        return [float(np.sqrt(np.square(one - other).mean())) for one, other in zip(found, exact, strict=True)]

    exact = scored()
    monkeypatch.setattr(precision, "multiplies", lambda dtype: True)
    with Slow(rows=8) as slow:
        theirs = scored(**half)
    assert slow.seen, "nothing was multiplied in half precision"
    monkeypatch.setattr(precision, "multiplies", lambda dtype: dtype == torch.float32)
    with Slow(rows=8) as slow:
        ours = scored(**half)
    assert slow.seen == []
    for one, other in zip(wrong(ours), wrong(theirs), strict=True):
        assert 0 < one < 3 * other
