"""Sets of parameters in every family of models, and the tower that a parameter belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_models import Towers

from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import find_task
from ttmbench.errors import UsageError
from ttmbench.evaluator.one_task import check_methods
from ttmbench.methods.parameters import SETS, is_temperature, parameters_of
from ttmbench.model import Model
from ttmbench.model_adapters import hf, itc, open_clip
from ttmbench.model_adapters.embeddings import EmbeddingsModel
from ttmbench.plugins.registry import build_registry

CPU = {"device": "cpu", "dtype": "fp32"}
CAPTIONS = ["a red circle", "a cat on the left", "two dogs"]


def photos(side: int = 32):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in range(3)]


@pytest.fixture(scope="module")
def model_of(tiny_vlm) -> Iterator[Callable[[str], object]]:
    """Makes an adapter of a family, once."""
    made: dict[str, object] = {}

    def make(family: str):
        if family not in made:
            library, _, kind = family.partition("-")
            folder = tiny_vlm(kind or family)
            if library.startswith("open_clip"):
                made[family] = open_clip.load(model=f"local-dir:{folder}", **CPU)
            else:
                made[family] = (hf if library == "hf" else itc).load(pretrained=str(folder), **CPU)
        return made[family]

    yield make


FAMILIES = ("hf-clip", "hf-siglip", "open_clip", "open_clip_siglip", "itc-blip", "itc-blip2", "itc-flava")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_parameter_changes_the_features_of_its_tower_alone(family, model_of):
    """What the names say, against the gradients of the features of each side."""
    adapter = model_of(family)
    sides = adapter.prepare_images(photos()), adapter.prepare_captions(CAPTIONS)
    reached = []
    for train, prepared in zip((adapter.train_images, adapter.train_captions), sides, strict=True):
        adapter.model.zero_grad(set_to_none=True)
        train(prepared).square().sum().backward()
        reached.append({name for name, one in adapter.model.named_parameters() if one.grad is not None})
    adapter.model.zero_grad(set_to_none=True)
    of_images, of_captions = reached
    for name in of_images | of_captions:
        own = tuple(name.startswith(tower) for tower in adapter.towers)
        assert not (own[0] and name in of_captions) and not (own[1] and name in of_images), name
        shared = name in of_images and name in of_captions
        if family != "itc-blip2" and not shared:
            assert own == (name in of_images, name in of_captions), name
        assert not is_temperature(name)
    kinds = {name: type(module).__name__ for name, module in adapter.model.named_modules()}
    norms = {name for name in of_images | of_captions if kinds[name.rpartition(".")[0]].endswith("Norm")}
    assert set(parameters_of(adapter, "norm")) == norms, "no layer that features do not go through"
    if family != "itc-blip2":  # its captions go through the images' Q-Former
        assert set(parameters_of(adapter, "norm_images")) == norms & of_images
        assert set(parameters_of(adapter, "norm_captions")) == norms & of_captions


def both(*names: str) -> set[str]:
    return {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    ("family", "blocks"),
    [
        ("hf-clip", ("vision_model.encoder.layers.1.", "text_model.encoder.layers.1.")),
        ("hf-siglip", ("vision_model.encoder.layers.1.", "vision_model.head.", "text_model.encoder.layers.1.")),
        ("open_clip", ("visual.transformer.resblocks.1.", "transformer.resblocks.1.")),
        ("open_clip_siglip", ("visual.trunk.blocks.5.", "visual.trunk.attn_pool.", "text.transformer.resblocks.1.")),
        ("itc-flava", ("flava.image_model.encoder.layer.1.", "flava.text_model.encoder.layer.1.")),
    ],
)
def test_last_blocks(family, blocks, model_of):
    names = {name for name, _ in model_of(family).model.named_parameters()}
    assert set(parameters_of(model_of(family), "last_block")) == {name for name in names if name.startswith(blocks)}


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("hf-clip", {"visual_projection.weight", "text_projection.weight"}),
        ("hf-siglip", both("text_model.head")),
        ("open_clip", {"visual.proj", "text_projection"}),
        ("open_clip_siglip", both("text.text_projection")),
        ("itc-blip", both("vision_proj", "text_proj")),
        ("itc-blip2", both("vision_projection", "text_projection")),
        ("itc-flava", both("flava.image_projection", "flava.text_projection")),
    ],
)
def test_projections_are_those_that_the_model_has(family, names, model_of):
    assert set(parameters_of(model_of(family), "projections")) == names


@pytest.mark.parametrize("family", FAMILIES)
def test_temperature_and_bias_are_in_no_other_set_but_all(family, model_of):
    adapter = model_of(family)
    scales = {"logit_scale", "logit_bias", "flava.logit_scale"}
    shared = {"norm_captions"} if family == "itc-blip2" else set()  # its captions go through the images' Q-Former
    for which in set(SETS) - {"all", "temperature", "adapter"} - shared:
        assert not scales & set(parameters_of(adapter, which)), which
    biases = set(parameters_of(adapter, "bias"))
    assert biases and all(name.endswith("bias") for name in biases)
    assert set(parameters_of(adapter, "all")) == {name for name, _ in adapter.model.named_parameters()}
    if family in ("itc-blip", "itc-blip2"):
        with pytest.raises(UsageError, match="train=temperature: this model has no such parameters; it has all, norm,"):
            parameters_of(adapter, "temperature")
    else:
        assert set(parameters_of(adapter, "temperature")) == scales & set(parameters_of(adapter, "all"))


def embeddings(d: int = 6) -> EmbeddingsModel:
    rng = torch.Generator().manual_seed(0)
    sides = (torch.randn(8, d, generator=rng) for _ in range(2))
    return EmbeddingsModel(*sides, scale=10.0, bias=None, name="x", device="cpu")


def test_what_a_model_lacks_is_refused_with_what_it_has():
    with pytest.raises(UsageError, match=r"train=norm: this model has no such parameters; it has all$"):
        parameters_of(embeddings(), "norm")
    assert set(parameters_of(embeddings(), "all")) == {"image.weight", "caption.weight"}
    with pytest.raises(UsageError, match="train=norms is unknown; it must be one of all, norm, norm_images,"):
        parameters_of(embeddings(), "norms")
    assert set(parameters_of(Towers(), "bias")) == {"image.bias", "caption.bias"}, "an adapter that is a module itself"

    class Bare(Model):
        def fingerprint(self): ...

        def parameters(self):
            return [torch.nn.Parameter(torch.zeros(1))]

    assert set(parameters_of(Bare(), "all")) == {"parameters.0"}
    with pytest.raises(UsageError, match=r"train=bias: this model has no such parameters; it has all$"):
        parameters_of(Bare(), "bias")


@pytest.mark.parametrize(
    ("dtype", "which", "message"),
    [
        ("fp32", "norm", r"method 'tent': train=norm: this model has no such parameters; it has all$"),
        ("fp32", "lora:2", r"method 'tent': train=lora:2 needs .* this model has no attention$"),
        ("fp16", "all", r"method 'tent' needs gradients, which underflow in fp16; use --dtype bf16 or fp32$"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_scored(dtype, which, message):
    config = RunConfig(model="x", tasks=("y",), methods=("tent",), method_args={"tent.train": which}, dtype=dtype)
    registry = build_registry()
    task = find_task(registry, "shapes_color")
    with pytest.raises(UsageError, match=message):
        check_methods(registry, config, {"y": task}, {"y": TTMConfig()}, embeddings())
