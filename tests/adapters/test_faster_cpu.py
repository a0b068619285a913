"""What is computed in another way on a processor: the same numbers, gradients, names and files as the library's own."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import open_clip
import pytest
import timm
import torch
from support import tiny_models
from support.rounding import bound
from torch import nn
from transformers import CLIPConfig, CLIPModel, Siglip2Config, Siglip2Model, SiglipConfig, SiglipModel

from ttmbench.config import TTMConfig
from ttmbench.model_adapters import hf
from ttmbench.model_adapters import open_clip as of_open_clip
from ttmbench.model_adapters import tiny_clip as of_tiny_clip
from ttmbench.model_adapters._shared.attention_cpu import Attention, additive
from ttmbench.model_adapters._shared.blocks_cpu import run_block
from ttmbench.model_adapters._shared.faster_cpu import PatchProduct, make_faster, read_first_token_only
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.ttm.finetune import TrainingPairs, finetune, make_optimizer

TOWER = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TOWER, "image_size": 36, "patch_size": 8}
TEXT = {**TOWER, "vocab_size": 100, "max_position_embeddings": 12}
SCALE = 10  # of logits
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def tokens_and_mask():
    tokens = torch.randint(2, 100, (5, 12), generator=torch.Generator().manual_seed(1))
    tokens[:, 9:] = 1
    mask = torch.ones_like(tokens)
    mask[:, 10:] = 0
    return tokens, mask


def pixels(side=36):
    return torch.randn(5, 3, side, side, generator=torch.Generator().manual_seed(2))


def of_transformers(kind, config, masked):
    model = kind(config)

    def features(model):
        tokens, mask = tokens_and_mask()
        text = {"attention_mask": mask} if masked else {}
        both = (model.get_image_features(pixel_values=pixels()), model.get_text_features(input_ids=tokens, **text))
        return tuple(getattr(one, "pooler_output", one) for one in both)

    return model, features


def clip(activation="quick_gelu"):
    text, vision = ({**part, "hidden_act": activation} for part in ({**TEXT, **IDS}, VISION))
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=24, **IDS)
    return of_transformers(CLIPModel, config, masked=True)


def siglip():
    text = {**TEXT, **IDS, "projection_size": 64}
    return of_transformers(SiglipModel, SiglipConfig(text_config=text, vision_config=VISION), masked=False)


def clip_of_open_clip():
    vision = {"layers": 2, "width": 64, "head_width": 32, "patch_size": 8, "image_size": 36}
    text = {"layers": 2, "width": 64, "heads": 2, "vocab_size": 100, "context_length": 12}
    model = open_clip.CLIP(embed_dim=24, vision_cfg=vision, text_cfg=text, quick_gelu=True)
    return model, lambda model: (model.encode_image(pixels()), model.encode_text(tokens_and_mask()[0]))


def vit_of_timm():
    options = {"img_size": 36, "patch_size": 12, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 24}
    model = timm.models.VisionTransformer(**options)
    return model, lambda model: (model(pixels()), model(pixels().flip(0)))


MODELS = [clip, partial(clip, "gelu"), siglip, clip_of_open_clip, vit_of_timm]
NAMES = ["clip", "clip with gelu", "siglip", "open_clip", "timm"]


@pytest.fixture(params=MODELS, ids=NAMES)
def model_and_features(request):
    torch.manual_seed(0)
    model, features = request.param()
    with torch.no_grad():  # attention that looks somewhere, biases that matter
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(3 if parameter.std() < 0.1 else 1)
            elif parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval(), features


def first_token_only(model):
    """Whether the image tower of a model does with the first token of its last block, which is so from now on."""
    if isinstance(model, timm.models.VisionTransformer):
        return read_first_token_only(model, model, (36, 36))
    if hasattr(model, "visual"):
        return read_first_token_only(model.visual, model.encode_image, (36, 36))

    def features(pixels):
        return model.get_image_features(pixel_values=pixels).pooler_output

    return read_first_token_only(model.vision_model, features, (36, 36))


def as_adapters_do(model):
    """Whether blocks of a model were changed, and with them the last one of its image tower where that may be."""
    changed = make_faster(model)
    first_token_only(model)
    return changed


def logits_and_gradients(model, features, dtype=torch.float32):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        images, captions = (nn.functional.normalize(one.float(), dim=-1) for one in features(model))
    logits = SCALE * images.float() @ captions.float().T
    nn.functional.cross_entropy(logits, torch.arange(len(logits))).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest(gradients):
    return max(float(one.abs().max()) for one in gradients.values())


def distance(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one) / largest(other)


def test_float32_gives_the_same_logits_and_gradients(model_and_features):
    model, features = model_and_features
    faster = copy.deepcopy(model)
    assert as_adapters_do(faster)
    theirs, ours = logits_and_gradients(model, features), logits_and_gradients(faster, features)
    torch.testing.assert_close(ours[0], theirs[0], atol=bound(model, SCALE), rtol=0)
    assert distance(ours[1], theirs[1]) < bound(model, 1, passes=2)
    with torch.inference_mode():
        for one, other in zip(features(faster), features(model), strict=True):
            torch.testing.assert_close(one, other, atol=bound(model, other), rtol=0)


def test_bf16_is_as_near_to_float32_as_autocast_is(model_and_features):
    """Rounding draws both errors: of two root mean squares of some 10 draws, one is hardly ever 3 times the other."""
    model, features = model_and_features
    faster = copy.deepcopy(model)
    as_adapters_do(faster)
    exact = logits_and_gradients(model, features)
    theirs = logits_and_gradients(model, features, torch.bfloat16)
    ours = logits_and_gradients(faster, features, torch.bfloat16)
    of_theirs, of_ours = (float((one[0] - exact[0]).square().mean().sqrt()) for one in (theirs, ours))
    assert 0 < of_ours < 3 * of_theirs
    assert distance(ours[1], exact[1]) < 3 * distance(theirs[1], exact[1])
    assert all(one.dtype == torch.float32 for one in ours[1].values())


def test_names_parameters_and_copies_stay(model_and_features, tmp_path):
    model, features = model_and_features
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    make_faster(model)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(isinstance(module, kind) for module, kind in zip(model.modules(), kinds, strict=True))
    assert any(type(module) is PatchProduct for module in model.modules())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.equal(features(model)[0], features(twin)[0])  # a copy computes with its own weights


def test_frozen_weights_get_no_gradient(model_and_features):
    model, features = model_and_features
    as_adapters_do(model)
    _, whole = logits_and_gradients(model, features)
    whole = {name: gradient.clone() for name, gradient in whole.items()}
    frozen = [
        name for name, _ in model.named_parameters() if name.endswith("weight") and ("fc" in name or "norm" in name)
    ]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
        parameter.grad = None
    _, rest = logits_and_gradients(model, features)
    assert set(rest) == set(whole) - set(frozen)
    assert distance(rest, {name: whole[name] for name in rest}) < bound(model, 1, passes=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layers", [1, 3], ids=["queries, keys and values by one layer", "by three"])
def test_a_block_asked_for_its_first_token_gives_that_alone(dtype, masked, layers):
    model, _ = (clip_of_open_clip if layers == 1 else clip)()
    layer = model.visual.transformer.resblocks[0] if layers == 1 else model.vision_model.encoder.layers[0]
    make_faster(model)
    block, generator = layer.read_block(layer), torch.Generator().manual_seed(0)
    assert len(block.inputs) == layers
    x = torch.randn((3, 5, 64), generator=generator, requires_grad=True)
    mask = torch.zeros(3, 1, 5, 5)
    mask[1, :, 0, 2:] = mask[2, :, 1:, 0] = -torch.inf
    of_first = torch.randn((3, 1, 64), generator=generator)
    wanted = [x, *(tensor for tensor in block.tensors if tensor is not None)]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        whole = run_block(block, x, mask if masked else None)
        first = run_block(block, x, mask if masked else None, first=True)
    assert first.shape == (3, 1, 64)
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    torch.testing.assert_close(first, whole[:, :1], atol=tolerance, rtol=tolerance)
    expected = torch.autograd.grad((whole[:, :1] * of_first).sum(), wanted)
    for one, other in zip(torch.autograd.grad((first * of_first).sum(), wanted), expected, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def coca():
    vision = {"layers": 2, "width": 64, "head_width": 32, "patch_size": 12, "image_size": 36, "attentional_pool": True}
    text = {"layers": 2, "width": 64, "heads": 2, "vocab_size": 100, "context_length": 12, "embed_cls": True}
    return open_clip.CoCa(24, {**text, "layers": 1, "mlp_ratio": 4}, text, {**vision, "attn_pooler_heads": 2})


def vit(**options):
    options = {"img_size": 36, "patch_size": 12, "embed_dim": 64, "depth": 2, "num_heads": 2, **options}
    return timm.models.VisionTransformer(**options)


class TheOtherWayRound(timm.models.VisionTransformer):
    def forward_features(self, x):
        x = self._pos_embed(self.patch_embed(x))
        for block in reversed(self.blocks):
            x = block(x)
        return self.norm(x)


ENOUGH = {
    "clip": (lambda: clip()[0], True),
    "open_clip": (lambda: clip_of_open_clip()[0], True),
    "timm": (vit, True),
    "siglip, whose head looks at all": (lambda: siglip()[0], False),
    "CoCa, likewise": (coca, False),
    "timm, mean of all": (partial(vit, global_pool="avg"), False),
    "blocks that run in another order": (
        lambda: TheOtherWayRound(img_size=36, patch_size=12, embed_dim=64, depth=2, num_heads=2),
        False,
    ),
    "blocks that are not ours": (partial(vit, init_values=0.1), False),
}


@pytest.mark.parametrize(("make", "enough"), ENOUGH.values(), ids=ENOUGH)
def test_the_first_token_is_enough_where_features_are_made_of_it_alone(make, enough):
    torch.manual_seed(0)
    model = make().eval()
    make_faster(model)
    before = dict(model.named_modules())
    assert first_token_only(model) is enough
    changed = [name for name, module in before.items() if getattr(module, "first_only", False)]
    assert len(changed) == enough
    assert not any("forward" in vars(module) for module in model.modules())
    if enough:
        tower = changed[0].rsplit(".", 1)[0]
        assert changed[0] == f"{tower}.{len(model.get_submodule(tower)) - 1}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [None, "causal", "rows"])
@pytest.mark.parametrize("kept", [0, 64], ids=["computed again", "kept"])
def test_attention_is_torchs_own(dtype, masked, kept, monkeypatch):
    monkeypatch.setattr("ttmbench.model_adapters._shared.attention_cpu._KEPT_UP_TO", kept)
    monkeypatch.setattr("ttmbench.model_adapters._shared.attention_cpu._AT_A_TIME", 2 * 4 * 7 * 7)  # two rows a part
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(5, 7, 4, 16, generator=generator).transpose(1, 2).to(dtype) for _ in range(3))
    mask = torch.ones(5, 1, 7, 7, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    given = {None: None, "causal": additive(None, True, 7), "rows": additive(mask, False, 7)}[masked]
    reference = [one.float().requires_grad_() for one in (query, key, value)]
    told = {None: {}, "causal": {"is_causal": True}, "rows": {"attn_mask": mask}}[masked]
    expected = nn.functional.scaled_dot_product_attention(*reference, **told, scale=0.3)
    gradient = torch.randn(expected.shape, generator=generator)
    expected.backward(gradient)

    attention = Attention(0.3, given)
    out, needed = attention.forward(query, key, value)
    found = attention.backward(gradient.transpose(1, 2).to(dtype), query, key, value, out, needed)
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    torch.testing.assert_close(out.transpose(1, 2).float(), expected.detach(), atol=tolerance, rtol=tolerance)
    for one, other in zip(found, reference, strict=True):
        torch.testing.assert_close(one.transpose(1, 2).float(), other.grad, atol=tolerance, rtol=tolerance)


def test_blocks_with_more_to_them_are_left_alone():
    options = {"img_size": 24, "patch_size": 12, "embed_dim": 32, "depth": 1, "num_heads": 2}
    for more in ({"init_values": 0.1}, {"qk_norm": True}, {"drop_path_rate": 0.5}, {"proj_drop_rate": 0.1}):
        model = timm.models.VisionTransformer(**options, **more)
        model.blocks[0].drop_path2 = nn.Dropout(0.5) if "drop_path_rate" in more else model.blocks[0].drop_path2
        assert not make_faster(model.eval()), more
    config = {"text_config": {**TEXT, **IDS}, "vision_config": {**VISION, "attention_dropout": 0.1}}
    kinds = {type(one).__name__ for one in CLIPModel(CLIPConfig(**config)).vision_model.encoder.layers}
    model = CLIPModel(CLIPConfig(**config)).eval()
    make_faster(model)
    assert {type(one).__name__ for one in model.vision_model.encoder.layers} == kinds


def test_a_block_that_computes_something_else_is_left_alone():
    model, _ = clip()
    layer = type(model.vision_model.encoder.layers[0])
    other = type("OtherLayer", (layer,), {"forward": lambda self, x, mask, **kwargs: 2 * layer.forward(self, x, mask)})
    for module in list(model.modules()):
        if type(module) is layer:
            module.__class__ = other
    assert not make_faster(model.eval())


def test_only_windows_side_by_side_are_a_product():
    for layer in (
        nn.Conv2d(3, 4, 3, stride=2),
        nn.Conv2d(4, 4, 2, stride=2, groups=2),
        nn.Conv2d(3, 4, 2, 2, padding=1),
    ):
        make_faster(layer)
        assert type(layer) is nn.Conv2d


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_of_patches_is_the_convolution(dtype, monkeypatch):
    monkeypatch.setattr("ttmbench.model_adapters._shared.pixels._AT_A_TIME", 2 * 3 * 9 * 11)  # two images a part
    layer = nn.Conv2d(3, 4, (2, 3), stride=(2, 3))
    x = torch.randn(5, 3, 9, 11, requires_grad=True)  # a rest that no window reaches

    def found() -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            features = layer(x)
        return features, *torch.autograd.grad(features.float().square().sum(), (x, *layer.parameters()))

    expected = found()
    make_faster(layer)
    assert type(layer) is PatchProduct
    bounds = {"rtol": 0.03, "atol": 0.1} if dtype == torch.bfloat16 else {}
    for one, other in zip(found(), expected, strict=True):
        torch.testing.assert_close(one, other, **bounds)


def test_patches_cut_elsewhere_are_no_convolution():
    text = {**TEXT, **IDS, "projection_size": 64}
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config={**TOWER, "patch_size": 8, "num_patches": 4}))
    values = {"pixel_values": torch.randn(2, 4, 192), "spatial_shapes": torch.tensor([[2, 2], [1, 3]])}
    values["pixel_attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    model.eval()
    with torch.inference_mode():
        expected = model.get_image_features(**values)
        assert make_faster(model)
        found = model.get_image_features(**values)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output, atol=1e-5, rtol=1e-5)


def test_a_kernel_that_is_asked_for_is_the_librarys(tmp_path):
    folder = str(tiny_models.clip(tmp_path))
    by_default = hf.load(pretrained=folder, device="cpu")
    asked = hf.load(pretrained=folder, device="cpu", attn_implementation="eager")
    assert by_default.fingerprint()["attn_implementation"] == "own"
    assert asked.fingerprint()["attn_implementation"] == "eager"
    assert not any("Faster" in type(module).__name__ for module in asked.model.modules())
    assert any("Faster" in type(module).__name__ for module in by_default.model.modules())
    assert [module.first_only for module in by_default.model.vision_model.encoder.layers][-2:] == [False, True]
    by_default.save_pretrained(tmp_path / "again")
    again = hf.load(pretrained=str(tmp_path / "again"), device="cpu")
    assert again.weights_sha256 == by_default.weights_sha256


def test_the_built_in_model_keeps_the_arithmetic_of_its_reference():
    """The last digits of numbers in the README depend on how sums of the last block are rounded."""
    layers = of_tiny_clip.load(device="cpu").model.vision_model.encoder.layers
    assert len(layers) > 1 and not any(layer.first_only for layer in layers)


def test_open_clip_says_so_too(tmp_path):
    adapter = of_open_clip.load(model=f"local-dir:{tiny_models.open_clip(tmp_path)}", device="cpu")
    assert adapter.fingerprint()["attn_implementation"] == "own"
    assert adapter.model.visual.transformer.resblocks[-1].first_only


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_epoch_waits_for_the_device_once(tmp_path, monkeypatch, dtype):
    """What a tensor of floats tells the host makes it wait for an accelerator; the loss of an epoch may."""
    adapter = hf.load(pretrained=str(tiny_models.clip(tmp_path)), device="cpu", dtype=dtype)
    images = torch.randint(0, 256, (6, 3, *adapter._size), dtype=torch.uint8)
    captions = adapter.prepare_captions([f"a {word} b" for word in "c d e f g h".split()])
    rows = np.arange(6)[:, None]
    prepared = Prepared({"pixel_values": images}, captions, Rows(rows, rows))
    waits = []
    for name in ("item", "cpu", "numpy", "tolist", "__float__", "__bool__", "__int__"):
        real = getattr(torch.Tensor, name)

        def counted(self, *args, real=real, name=name, **kwargs):
            if self.is_floating_point():
                waits.append(name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    config = TTMConfig(epochs=3)
    optimizer = make_optimizer(adapter, config)
    generator = np.random.default_rng(0)
    finetune(
        adapter,
        prepared,
        TrainingPairs(rows, rows),
        optimizer,
        config=config,
        learning_rate=1e-4,
        batch=2,
        rng=generator,
    )
    assert waits == ["__float__"] * 3
