"""Pixels normalised in parts are those normalised at once, and patches multiplied are those of the convolution."""

from __future__ import annotations

import copy
import json

import open_clip.transformer as open_clip_layers
import pytest
import timm.layers.activations as timm_layers
import torch
import transformers.activations as transformers_layers
from support import tiny_models
from support.rounding import bound, gamma
from torch import nn

from ttmbench.cli import main
from ttmbench.model_adapters import hf, open_clip
from ttmbench.model_adapters._shared import contrastive
from ttmbench.model_adapters._shared.contrastive import PatchProduct, QuickGELU, normalised, pixel_scale, use_cpu_layers


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("images", [0, 1, 5])
def test_pixels_are_normalised_as_stated(images, form):
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(0, 256, (images, 3, 6, 4), dtype=torch.uint8, generator=generator).to(memory_format=form)
    means, stds = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    found = normalised(given, pixel_scale(1 / 255, means, stds, torch.device("cpu")))
    mean, std = (torch.tensor(one)[:, None, None] for one in (means, stds))
    assert found.dtype == torch.float32 and found.stride() == given.stride()
    assert torch.equal(found, given.float() * (1 / 255 / std) - mean / std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_of_patches_is_the_convolution(dtype, bias):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(3, 4, (2, 3), stride=(2, 3), bias=bias)
    x = torch.randn((5, 3, 9, 11), generator=generator, requires_grad=True)  # a rest that no window reaches
    gradient = torch.randn((5, 4, 4, 3), generator=generator)
    wanted = (x, *layer.parameters())

    def outcome() -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            features = layer(x)
        return features, *torch.autograd.grad((features.float() * gradient).sum(), wanted)

    expected = outcome()
    use_cpu_layers(layer)
    assert type(layer) is PatchProduct
    # Of each sum: of a feature, and of the gradients of an input, a weight and a bias.
    for ours, theirs, terms in zip(outcome(), expected, (3 * 2 * 3 + 1, 4, 5 * 4 * 3, 5 * 4 * 3), strict=False):
        # In bf16 factors are rounded, and what comes out; sums are in float32.
        error = gamma(terms) + (0 if dtype == torch.float32 else 3 * torch.finfo(dtype).eps)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        largest = terms * x.detach().abs().max() * gradient.abs().max()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=float(2 * error * largest))


@pytest.mark.parametrize(
    "library", [transformers_layers.QuickGELUActivation, open_clip_layers.QuickGELU, timm_layers.QuickGELU]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [64, 2**18])  # torch computes what is left of 2 vector registers by other code
def test_quick_gelu_has_the_bits_of_the_libraries_layers(library, dtype, part, monkeypatch):
    monkeypatch.setattr(contrastive, "_PART", part)
    generator = torch.Generator().manual_seed(0)
    x = (8 * torch.randn((3, 5, 40), generator=generator)).to(dtype).transpose(0, 1).requires_grad_()  # not contiguous
    gradient = torch.randn((40, 3, 5), generator=generator).to(dtype).permute(2, 1, 0)
    layer = library()
    expected = layer(x)
    expected_gradient = torch.autograd.grad(expected, x, gradient)[0]
    use_cpu_layers(layer)
    assert type(layer) is QuickGELU
    assert torch.equal(layer(x), expected) and torch.equal(
        torch.autograd.grad(layer(x), x, gradient)[0], expected_gradient
    )
    with torch.inference_mode():
        assert torch.equal(layer(x.detach()), expected)


@pytest.mark.parametrize("compile_towers", [False, True])
def test_an_adapter_replaces_quick_gelu_unless_it_compiles(compile_towers, tiny_vlm):
    layers = hf.load(pretrained=str(tiny_vlm("clip")), device="cpu", compile=compile_towers).model.modules()
    names = {type(layer).__name__ for layer in layers if "GELU" in type(layer).__name__}
    assert names == {"QuickGELUActivation" if compile_towers else "QuickGELU"}


@pytest.mark.parametrize("kind", ["clip", "siglip", "open_clip"])
def test_an_adapter_on_a_cpu_multiplies_patches_and_keeps_names_and_scores(kind, tiny_vlm):
    folder = tiny_vlm(kind)
    is_hf = kind != "open_clip"
    adapter = (hf if is_hf else open_clip).load(
        **{"pretrained": str(folder)} if is_hf else {"model": f"local-dir:{folder}"}, device="cpu"
    )
    model = adapter.model
    plain = copy.deepcopy(model)
    changed = [layer for layer in plain.modules() if isinstance(layer, nn.Conv2d)]
    for layer in changed:
        layer.__class__ = nn.Conv2d
    assert len(changed) == 1 and sum(type(layer) is PatchProduct for layer in model.modules()) == 1
    assert list(plain.state_dict()) == list(model.state_dict())
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    prepared = {"pixel_values": images} if is_hf else images
    with torch.inference_mode():
        features = adapter.encode_images(prepared)
        for layer in model.modules():
            if type(layer) is PatchProduct:
                layer.__class__ = nn.Conv2d
        theirs = adapter.encode_images(prepared)
    torch.testing.assert_close(features, theirs, rtol=0, atol=bound(plain, 1))


@pytest.mark.parametrize("name", ["blip-itm", "flava-itc", "clip", "siglip"])
def test_images_of_another_size_end_in_an_error(tmp_path, capsys, name):
    model, make = name if "-" in name else "hf", name.partition("-")[0]
    written = tiny_models.MODELS[make](tmp_path / "model")
    (file,) = [path for path in written.iterdir() if path.name.endswith("processor_config.json")]
    settings = json.loads(file.read_text())
    settings |= {key: dict.fromkeys(settings[key], 48) for key in ("size", "crop_size") if settings.get(key)}
    file.write_text(json.dumps(settings))
    run = ["--model", model, "--model_args", f"pretrained={tmp_path / 'model'}", "--tasks", "shapes_color"]
    assert main([*run, "--device", "cpu"]) == 1
    assert "size" in capsys.readouterr().err.splitlines()[-1]
