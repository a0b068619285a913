"""A CUDA device that computes on the processor: its tensors say where they lie, and refuse what CUDA's refuse.

Ordinary commands run on it with real numbers, and autocast by torch's own rules for CUDA. As on a GPU, tensors of two
devices do not meet, and a tensor there is no NumPy array. Kernels, streams, memory, determinism and speed are a GPU's
own: nothing is learnt of them.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import torch
from torch.nn import functional
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda:0")
_OF_AUTOGRAD = torch.device("xla:0")
"""What torch itself takes it for: autocast treats it as CUDA, and autograd has no streams to ask for."""
_MAY_MEET = ("aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put", "aten::index_put_", "aten::set_")
"""Between devices, or with indices that lie on the processor."""


class OnGpu(torch.Tensor):
    """A tensor of the stand-in; ``numbers`` has its values, on the processor."""

    numbers: torch.Tensor
    device = property(lambda self: GPU)
    is_cuda, is_cpu, is_meta = (property(lambda self, answer=answer: answer) for answer in (True, False, False))
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> OnGpu:
        with torch.inference_mode(real.is_inference()):  # a view of what was there before is of its kind
            shape = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
            self = torch.Tensor._make_subclass(cls, shape, dispatch_device=True, device_for_backend_keys=GPU)
        self.numbers = real
        return self

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _OF_AUTOGRAD if function is torch.ops.prim.device.default else _computed(function, args, kwargs or {})

    def __repr__(self, **_: object) -> str:
        return f"OnGpu({self.numbers!r})"


class Gpu:
    """The stand-in, with how many operations ran on it."""

    operations = 0


_now = Gpu()


def _computed(function, args: Sequence[object], kwargs: Mapping[str, object]):
    if _is_composite(function):  # without autograd torch asks for it whole, and kernels are launched for its parts
        return function.decompose(*args, **kwargs)
    name = function._schema.name
    leaves = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    _refuse(name, leaves)
    wanted = kwargs.get("device")
    there = wanted is None or torch.device(wanted).type != "cpu"  # torch itself asks for what it takes them for
    if name == "aten::copy_" and not isinstance(args[0], OnGpu):
        there = False
    _now.operations += 1
    known = {id(_real(one)): one for one in leaves}  # what was changed in place is what it was

    def back(one):
        if id(one) in known:
            return known[id(one)]
        return OnGpu(one) if there and isinstance(one, torch.Tensor) else one

    return tree_map(back, _output(function, args, kwargs))


@cache
def _is_composite(function) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")


def _output(function, args: Sequence[object], kwargs: Mapping[str, object]):
    """What an operation gives on the processor."""
    given = {key: "cpu" if key == "device" and value is not None else value for key, value in kwargs.items()}
    return function(*tree_map(_real, args), **tree_map(_real, given))


def _refuse(name: str, leaves: Sequence[torch.Tensor]) -> None:
    if name not in _MAY_MEET and any(not isinstance(one, OnGpu) and one.dim() for one in leaves):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({name})"
        )


def _real(one):
    return one.numbers if isinstance(one, OnGpu) else one


class _There(torch.autograd.Function):
    """To the stand-in, with the gradient back."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor) -> torch.Tensor:
        return OnGpu(tensor.detach().clone())

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return _real(gradient)


class _Back(torch.autograd.Function):
    """And from it."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor) -> torch.Tensor:
        return _real(tensor).detach().clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return OnGpu(gradient)


def _moved(tensor, device: torch.device):
    """A tensor on the other side."""
    there = isinstance(tensor, OnGpu)
    return tensor if there == (device.type == GPU.type) else (_Back if there else _There).apply(tensor)


class _Placement(TorchFunctionMode):
    """Makes and moves tensors where they are asked for."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = dict(kwargs or {})
        here = any(isinstance(one, OnGpu) for one in tree_leaves((args, given)))
        if given.pop("pin_memory", False):
            return function(*tree_map(_real, args), **given)
        if function in _MOVES:
            return _MOVES[function](*args, **given)
        if here and function in _ON_IT:
            return _ON_IT[function](*args, **given)
        device = given.get("device")
        if device is None or torch.device(device).type != GPU.type:
            return function(*args, **given)
        if function in (torch.tensor, torch.as_tensor, torch.arange, torch.full):  # of numbers that may be there
            data = tree_map(lambda one: one.item() if isinstance(one, OnGpu) else one, args)
            made = function(*data, **{**given, "device": "cpu"})
            is_sent = function in (torch.tensor, torch.as_tensor) and made.numel()
            return _moved(made, GPU) if is_sent else OnGpu(made)
        if here:
            del given["device"]
            return function(*args, **given)
        return OnGpu(function(*args, **{**given, "device": "cpu"}))  # made there


def _to(tensor: torch.Tensor, *args: object, **given: object) -> torch.Tensor:
    given.pop("copy", None)
    device, dtype, *_ = torch._C._nn._parse_to(*args, **given)
    moved = tensor if device is None else _moved(tensor, device)
    return moved if dtype is None else moved.to(dtype)


def _no_numpy(*_: object, **__: object) -> None:
    raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")


def _listed(tensor: OnGpu):
    return _moved(tensor, torch.device("cpu")).tolist()


def _indexed(function):
    """A list in an index, and a number to set, become tensors of the stand-in, not ones that torch makes of nothing."""

    def with_tensors(tensor: torch.Tensor, at, *value: object):
        def part(one):
            return _moved(torch.tensor(one), GPU) if isinstance(one, list) else one

        if isinstance(tensor, OnGpu):
            value = tuple(_made(one, tensor.dtype) for one in value)
        return function(tensor, tuple(map(part, at)) if isinstance(at, tuple) else part(at), *value)

    return with_tensors


def _where(condition: torch.Tensor, *either: object) -> torch.Tensor:
    """Numbers become tensors of the stand-in too."""
    kind = next((one.dtype for one in either if isinstance(one, torch.Tensor)), None)
    return torch.where(condition, *(_made(one, kind) for one in either))


def _made(value, dtype: torch.dtype | None) -> torch.Tensor:
    """A number as a tensor of the stand-in; a tensor as it is."""
    return value if isinstance(value, torch.Tensor) else OnGpu(torch.tensor(value, dtype=dtype))


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention by its formula, as one kernel forward and one backward."""

    @staticmethod
    def forward(ctx, *given):
        ctx.given = given
        return OnGpu(_formula(*tree_map(_real, given)))

    @staticmethod
    def backward(ctx, gradient):
        given, gradient = tree_map(_real, ctx.given), _real(gradient)
        inputs = [one.detach().requires_grad_() for one in given[:3]]
        with torch.enable_grad():
            output = _formula(*inputs, *given[3:])
        return *map(OnGpu, torch.autograd.grad(output, inputs, gradient)), None, None, None


def _formula(query, key, value, mask, is_causal: bool, scale: float) -> torch.Tensor:
    logits = query @ key.transpose(-2, -1) * scale
    if is_causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1) @ value


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch's function; it would make its mask without asking the stand-in."""
    if not isinstance(query, OnGpu):
        return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    assert not dropout_p, "no test trains with dropout"
    assert attn_mask is None or isinstance(attn_mask, OnGpu)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (one.to(dtype) for one in (query, key, value))
        attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    if query.dtype != key.dtype or (attn_mask is not None and attn_mask.dtype not in (torch.bool, query.dtype)):
        raise RuntimeError(f"attention of {query.dtype} and {key.dtype} under a mask of {attn_mask.dtype}")
    with torch.autocast("cuda", enabled=False):
        return _Attention.apply(
            query, key, value, attn_mask, is_causal, query.shape[-1] ** -0.5 if scale is None else scale
        )


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """torch's function; it would add the bias apart for what it takes the stand-in for."""
    if not isinstance(input, OnGpu) or input.dim() < 3:
        return _LINEAR(input, weight, bias)
    return _LINEAR(input.flatten(0, -2), weight, bias).unflatten(0, input.shape[:-1])


_ATTENTION, _LINEAR = functional.scaled_dot_product_attention, functional.linear


def _set_data(tensor: OnGpu, value: OnGpu) -> None:
    torch.Tensor.data.__set__(tensor, value)
    tensor.numbers = value.numbers


_MOVES = {
    torch.Tensor.to: _to,
    torch.Tensor.cpu: lambda tensor: _moved(tensor, torch.device("cpu")),
    torch.Tensor.pin_memory: lambda tensor, *_: tensor.clone(),
    torch.Tensor.cuda: lambda tensor, *_, **given: _moved(tensor, GPU),
}
_ON_IT = {
    torch.Tensor.numpy: _no_numpy,
    torch.Tensor.__array__: _no_numpy,
    torch.Tensor.tolist: _listed,
    torch.Tensor.data.__set__: _set_data,
    torch.Tensor.__getitem__: _indexed(torch.Tensor.__getitem__),
    torch.Tensor.__setitem__: _indexed(torch.Tensor.__setitem__),
    torch.where: _where,
}


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> OnGpu:
    """For what torch itself makes on the device, as a gradient of zeros."""
    return OnGpu(torch.empty(size, dtype=dtype))


def _lend_guard() -> None:
    """Device guards of torch for what it takes the stand-in for: those of ``meta``, which do nothing."""
    c10 = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("*c10.*"))))
    guards = (ctypes.c_void_p * 16).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[9] = guards[9] or guards[14]  # numbers of ``c10::DeviceType``


@contextmanager
def stand_in_gpu() -> Iterator[Gpu]:
    """While it is entered, torch sees one CUDA device, on which this thread's tensors can lie."""
    global _now
    _now, found = Gpu(), _now
    about = types.SimpleNamespace(name="stand-in", total_memory=1 << 34, major=9, minor=0, multi_processor_count=1)
    answers: dict = {
        **{"is_available": True, "device_count": 1, "current_device": 0, "get_device_name": about.name},
        **{"get_device_properties": about, "get_device_capability": (9, 0), "mem_get_info": (1 << 34, 1 << 34)},
        **{"is_current_stream_capturing": False, "is_bf16_supported": True, "max_memory_allocated": 0},
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),  # nothing is drawn there
        **dict.fromkeys(("empty_cache", "reset_peak_memory_stats", "set_device")),
        **dict.fromkeys(("manual_seed", "manual_seed_all", "set_rng_state")),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer))
        stack.enter_context(mock.patch.object(torch.cuda, "synchronize", lambda *_: None))
        stream = types.SimpleNamespace(is_capturing=lambda: False)
        stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", lambda *_: stream))
        _lend_guard()
        stack.enter_context(mock.patch.object(optimizer, "_foreach_supported_types", [torch.nn.Parameter, OnGpu]))
        factories = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        factories.impl("empty.memory_format", _empty, "XLA")
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", _attention))
        stack.enter_context(mock.patch.object(functional, "linear", _linear))
        stack.enter_context(_Placement())
        # A parameter becomes another object: data of one kind cannot be set to data of the other.
        overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrite)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            yield _now
        finally:
            _now = found
