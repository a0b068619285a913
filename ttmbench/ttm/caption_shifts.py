"""Trainable shifts shared by all captions (``train=context:TOKENS`` and ``train=shift``).

Methods of the adapter are replaced on the instance by ones that add the shift; the model's weights do not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ttmbench.errors import UsageError
from ttmbench.protocols import Batch, CaptionEmbeddings, DualEncoder, TrainableInParts

SHIFT = "shift"
_CONTEXT = re.compile(r"context:([1-9]\d{0,2})")
_REPLACED = ("encode_captions", "train_captions", "matching_loss")


def tokens_of(which: str) -> int | None:
    """Number of tokens that ``train=context:TOKENS`` shifts at the start of each caption; None for other sets.

    >>> tokens_of("context:4"), tokens_of("shift")
    (4, None)
    """
    match = _CONTEXT.fullmatch(which)
    return None if match is None else int(match[1])


def is_shift(which: str) -> bool:
    """Whether ``train=`` names a shift of captions."""
    return which == SHIFT or tokens_of(which) is not None


def add_shift(adapter: object, which: str) -> Mapping[str, nn.Parameter]:
    """Adds a shift of captions, initially zero, replacing an earlier one; returns its parameter by name.

    Raises:
        UsageError: the model has no token embeddings, or no features of captions, that could be shifted.
    """
    remove_shift(adapter)
    tokens, width = tokens_of(which), _width(adapter, which)
    assert isinstance(adapter, TrainableInParts) and isinstance(adapter, DualEncoder), "it has a width"
    device = next(iter(adapter.parameters())).device
    parameter = nn.Parameter(torch.zeros(*([] if tokens is None else [tokens]), width, device=device))
    encode = partial(_shifted_features if tokens is None else _shifted_tokens, adapter, parameter)
    for name in ("encode_captions", "train_captions"):
        setattr(adapter, name, partial(encode, name))
    setattr(adapter, "matching_loss", partial(_loss_of_parts, adapter))  # noqa: B010  # a method of the protocol
    return {f"text.{'shift' if tokens is None else 'context'}": parameter}


def remove_shift(adapter: object) -> None:
    """Removes a shift."""
    for name in _replaced(adapter):
        delattr(adapter, name)


def _width(adapter: object, which: str) -> int:
    """Dimension of the shifted embeddings or features."""
    in_parts = isinstance(adapter, TrainableInParts) and isinstance(adapter, DualEncoder) and adapter.trains_in_parts
    if tokens_of(which) is not None:
        width = adapter.caption_width if in_parts and isinstance(adapter, CaptionEmbeddings) else None
        if width is None:
            raise UsageError(
                f"train={which} shifts the token embeddings of captions, and this model's cannot be shifted"
            )
        return width
    if in_parts and isinstance(adapter, DualEncoder):
        with torch.no_grad():
            features = adapter.encode_captions(adapter.prepare_captions(["a"]))
        if features.ndim == 2:
            return features.shape[1]
    raise UsageError(
        f"train={which} needs one feature vector for each caption, with gradients, which this model does not provide"
    )


def _shifted_tokens(adapter: Any, shift: nn.Parameter, name: str, prepared: Batch) -> torch.Tensor:
    with _as_it_was(adapter):
        features: torch.Tensor = adapter.encode_shifted_captions(prepared, shift)
    return features


def _shifted_features(adapter: Any, shift: nn.Parameter, name: str, prepared: Batch) -> torch.Tensor:
    with _as_it_was(adapter):
        features: torch.Tensor = getattr(adapter, name)(prepared) + shift
    return features / features.norm(dim=-1, keepdim=True)


def _loss_of_parts(adapter: Any, images: Batch, captions: Batch) -> torch.Tensor:
    """The model's contrastive loss, computed from shifted caption features."""
    loss: torch.Tensor = adapter.loss_of(adapter.train_images(images), adapter.train_captions(captions))
    return loss


def _replaced(adapter: object) -> dict[str, Callable[..., torch.Tensor]]:
    """Methods that are replaced on an instance, by name."""
    own = getattr(adapter, "__dict__", {})
    ours = (_shifted_tokens, _shifted_features, _loss_of_parts)
    is_ours = {name: isinstance(own.get(name), partial) and own[name].func in ours for name in _REPLACED}
    return {name: own[name] for name in _REPLACED if is_ours[name]}


@contextmanager
def _as_it_was(adapter: object) -> Iterator[None]:
    """A context in which the adapter encodes captions without the shift, since one method may call another."""
    replaced = _replaced(adapter)
    remove_shift(adapter)
    try:
        yield
    finally:
        for name, function in replaced.items():
            setattr(adapter, name, function)
