"""The tensors of published checkpoints of open_clip and OpenAI's CLIP, under open_clip's names.

Read are a mapping of tensors; the same under ``state_dict`` or ``model``, beside the state of an optimizer; names
behind ``module.`` or ``model.``; and LoRA factors beside the weights that they change, as loralib names them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from open_clip import CLIP
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed
from safetensors.torch import load_file

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.pickled_weights import read_pickle

Tensors = dict[str, torch.Tensor]
POSITIONS = "positional_embedding"
_UNDER = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "clip_model.")
_SIZES = ("input_resolution", "context_length", "vocab_size")  # in OpenAI's own files, numbers beside the weights
_A, _B = "lora_A", "lora_B"
_IDS = "text.transformer.embeddings.position_ids"  # written by transformers before 4.31
_PATCHES = ("visual.conv1.weight", "visual.trunk.patch_embed.proj.weight")


class OtherPositionsError(Exception):
    """The position embeddings of a file have other shapes than those of the model.

    Attributes:
        shapes: name -> shape in the file, shape in the model.
        pixels: side of the images that the file's image positions are for; None if they fit.
        context_length: the file's text positions; None if they fit.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], patch: int | None) -> None:
        listed = (f"{name} is {list(found)} and not {list(wanted)}" for name, (found, wanted) in shapes.items())
        super().__init__(f"position embeddings differ: {', '.join(listed)}")
        self.shapes = shapes
        self.pixels = self.context_length = None
        for name, (found, _) in shapes.items():
            if not name.startswith("visual."):
                self.context_length = found[0]
            elif patch is not None:  # a ResNet has 32 pixels a position
                self.pixels = (32 if "attnpool" in name else patch) * math.isqrt(found[-2])


def tensors_in(path: Path) -> Tensors:
    """The tensors of a file of weights without what surrounds them; DataError if it holds none, or is damaged."""
    content = load_file(path) if path.suffix == ".safetensors" else read_pickle(path)
    tensors = unwrapped(content)
    if not tensors:
        raise DataError(f"{path} holds no tensors by name, directly or under {', '.join(_UNDER)}")
    return tensors


def unwrapped(content: object) -> Tensors:
    """The tensors by name in what a file holds; empty if there are none."""
    for key in _UNDER:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    named = content.items() if isinstance(content, Mapping) else ()
    tensors = {str(name): tensor for name, tensor in named if isinstance(tensor, torch.Tensor) and name not in _SIZES}
    while wrapper := next((one for one in _WRAPPERS if tensors and all(name.startswith(one) for name in tensors)), ""):
        tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
    return tensors


def merged(tensors: Tensors, alpha: float | None, file: str) -> Tensors:
    """Weights with their LoRA factors added: W + alpha / r B A, float32.

    Args:
        tensors: of a layer, W ``NAME.weight`` [out, in] with A ``NAME.lora_A`` [r, in] and B ``NAME.lora_B`` [out, r];
            or a parameter ``NAME`` with ``NAME_lora_A``. Of a convolution with kernel k, A is [r k, in k] and B
            [out k, r k]. Of an embedding [words, out], B A is the change of its transpose.
        alpha: numerator of the scale, which no file states.
        file: named in errors.

    Raises:
        UsageError: there are factors and no ``alpha``, or the reverse.
        DataError: a factor without its weight or counterpart, or with another shape.
    """
    names = [name for name in tensors if name.endswith(_A)]
    if bool(names) != (alpha is not None):
        advice = (
            "give lora_alpha=..., as in their training (DAC, TSVLC and FSC-CLIP: 1), by which they are scaled"
            if names
            else "omit lora_alpha"
        )
        raise UsageError(f"{file} has {'' if names else 'no '}LoRA factors; {advice}")
    result = {name: tensor for name, tensor in tensors.items() if not name.endswith((_A, _B))}
    for name in names:
        stem = name.removesuffix(_A)
        target = stem[:-1] if stem.endswith("_") else f"{stem}weight"
        try:
            result[target] = _changed(result[target].float(), tensors[name], tensors[stem + _B], alpha or 0.0)
        except (KeyError, RuntimeError) as error:
            raise DataError(
                f"{file}: the LoRA factors of {target} do not fit ({type(error).__name__}: {error})"
            ) from None
    return result


def interpolated(base: Tensors, tensors: Tensors, weight: float) -> Tensors:
    """(1 - weight) base + weight tensors, float32; of the text positions of ``base``, the first ones are used.

    Raises:
        DataError: other names, or other shapes.
    """
    different = sorted(base.keys() ^ tensors.keys())
    if different:
        raise DataError(f"weights to interpolate between have different tensors, the first is {different[0]}")
    result = {}
    for name, end in tensors.items():
        start = base[name].float()
        start = start[: len(end)] if name.endswith(POSITIONS) and not name.startswith("visual.") else start
        if start.numel() != end.numel():
            raise DataError(f"{name} is {list(end.shape)}, but {list(start.shape)} in the weights to interpolate with")
        result[name] = (1 - weight) * start.reshape(end.shape) + weight * end.float()
    return result


def fill(model: CLIP, tensors: Tensors, resample: bool = False) -> list[str]:
    """Loads every tensor as it is, under the names that open_clip's ``load_checkpoint`` gives it.

    Args:
        model: whose parameters are replaced.
        tensors: all of them, and no others.
        resample: resample position embeddings that are longer or shorter, as open_clip does without asking.

    Returns:
        The position embeddings that were resampled, with both shapes.

    Raises:
        OtherPositionsError: position embeddings have another shape.
        RuntimeError: a tensor is missing, is not in the model, or has another shape.
    """
    tensors = convert_state_dict(model, tensors)
    if POSITIONS in tensors and not hasattr(model, POSITIONS):
        tensors = convert_to_custom_text_state_dict(tensors)
    expected = model.state_dict()
    for name in ("logit_scale", "logit_bias"):  # a number, or a list of one
        if name in tensors and name in expected:
            tensors[name] = tensors[name].reshape(expected[name].shape)
    if _IDS not in expected:
        tensors.pop(_IDS, None)
    other = {
        name: (tuple(tensors[name].shape), tuple(tensor.shape))
        for name, tensor in expected.items()
        if ("position" in name or "pos_embed" in name) and tensors.get(name, tensor).shape != tensor.shape
    }
    if resample:
        resize_pos_embed(tensors, model)
        resize_text_pos_embed(tensors, model)
    left = {name: shapes for name, shapes in other.items() if tuple(tensors[name].shape) != shapes[1]}
    if left:
        patches = [tensors[name].shape[-1] for name in _PATCHES if name in tensors]
        raise OtherPositionsError(left, patches[0] if patches else None)
    model.load_state_dict(tensors)
    return [f"{name} from {list(found)} to {list(wanted)}" for name, (found, wanted) in other.items()]


def _changed(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    kernel = weight.shape[-1] if weight.ndim == 4 else 1
    change = (alpha / (a.shape[0] / kernel)) * (b.float() @ a.float())
    if weight.ndim == 4:
        change = change.reshape(weight.shape)
    elif change.shape != weight.shape:
        change = change.T
    if change.shape != weight.shape:
        raise RuntimeError(f"a change of {list(change.shape)} to weights of {list(weight.shape)}")
    return weight + change
