"""Outputs of a vision encoder as ``mm_encoder_outputs`` takes them: divided among images, and put together again.

Whatever fields an encoder returns are passed on: which of them the language model reads differs between families.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers.utils import ModelOutput

_LAYERED = ("deepstack_features",)  # of each layer, and not of each image
_INNER = ("hidden_states", "attentions")  # of every layer of the vision encoder, which no language model takes


@dataclass(frozen=True)
class EncodedImage:
    """Output of the vision encoder for one image, as ``mm_encoder_outputs`` takes it, and features the model needs.

    Without an output the features are the pixels, and what describes them.
    """

    output: ModelOutput | None
    beside: dict[str, torch.Tensor]


def divided(output: ModelOutput, beside: Mapping[str, torch.Tensor], images: int) -> list[EncodedImage]:
    """What belongs to each image of a batch, which all have as many rows."""
    fields = {name: value for name, value in vars(output).items() if value is not None and name not in _INNER}
    if images == 1:
        return [EncodedImage(type(output)(**fields), dict(beside))]
    encoded = []
    for at in range(images):
        own = {name: _share(value, at, images, name in _LAYERED) for name, value in fields.items()}
        encoded.append(
            EncodedImage(
                type(output)(**own), {name: _share(value, at, images, False) for name, value in beside.items()}
            )
        )
    return encoded


def together(outputs: Sequence[ModelOutput]) -> ModelOutput:
    """Outputs of several images as one batch."""
    if len(outputs) == 1:
        return outputs[0]
    fields = [{name: value for name, value in vars(output).items() if value is not None} for output in outputs]
    return type(outputs[0])(**{name: _joined([one[name] for one in fields], name in _LAYERED) for name in fields[0]})


def _joined(parts: Sequence[Any], is_layered: bool) -> Any:
    """Tensors one below the other; lists with an entry per image one after the other, those per layer by layer."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(parts[0], list | tuple):
        if not is_layered:
            return [tensor for part in parts for tensor in part]
        return [_joined(layer, isinstance(layer[0], tuple)) for layer in zip(*parts, strict=True)]
    return parts[0]  # the number of a layer


def _share(value: Any, at: int, images: int, is_layered: bool) -> Any:
    """What belongs to one of several images, each of which has as many rows as the others; in every layer, if any."""
    if is_layered:
        return [_share(layer, at, images, False) for layer in value]
    rows = len(value) // images  # an image may have several: its tiles
    return value[at * rows : (at + 1) * rows]
