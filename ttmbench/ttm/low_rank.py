"""Low-rank updates (``train=lora:RANK``) of the linear layers that make queries and values, in both towers.

They are added to the layers' outputs by hooks, so the model's own weights and the names in its state stay as they are.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import nn
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.protocols import Adapter, PairTrainable, Trainable
from ttmbench.ttm.finetune import module_of
from ttmbench.ttm.parameters import NOT_RUN, SETS, select

SCALE = 2.0  # of an update: alpha / rank, as in TTL (arXiv:2407.15913: alpha 32, rank 16)
_WORDS = f"{', '.join(SETS)} or lora:RANK"
_LORA = re.compile(r"lora:([1-9]\d{0,3})")
_LAYERS = ("q_proj", "v_proj", "query", "value")


def _known(which: str) -> str:
    if which not in SETS and rank_of(which) is None:
        raise ValueError(f"must be {_WORDS}")
    return which


Train = Annotated[str, AfterValidator(_known), Field(description=_WORDS)]
"""A set of parameters: a key of `ttmbench.ttm.parameters.SETS`, or ``lora:RANK``."""


def rank_of(which: str) -> int | None:
    """Rank of the updates that ``train=`` asks for; None if it names parameters of the model.

    >>> rank_of("lora:16"), rank_of("norm")
    (16, None)
    """
    match = _LORA.fullmatch(which)
    return None if match is None else int(match[1])


class LowRankUpdate:
    """Adds ``SCALE * B A x`` to a layer's output; at first B is zero, and A Xavier normal, the same in every run."""

    def __init__(self, name: str, layer: nn.Linear, rank: int) -> None:
        drawn = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        down = torch.empty(rank, layer.in_features)
        nn.init.xavier_normal_(down, generator=drawn)
        weight = layer.weight
        self.down = nn.Parameter(down.to(weight.device, weight.dtype))
        self.up = nn.Parameter(weight.new_zeros(layer.out_features, rank))

    def __call__(self, layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        """The layer's output with the update."""
        return output + SCALE * functional.linear(functional.linear(inputs[0], self.down), self.up)


def add_low_rank(adapter: object, rank: int) -> Mapping[str, nn.Parameter]:
    """Adds an update to each layer of `layers_for`, in place of earlier ones; returns their parameters by name."""
    remove_low_rank(adapter)
    parameters: dict[str, nn.Parameter] = {}
    for name, layer in layers_for(adapter, rank).items():
        update = LowRankUpdate(name, layer, rank)
        layer.register_forward_hook(update)
        parameters |= {f"{name}.lora_a": update.down, f"{name}.lora_b": update.up}
    return parameters


def layers_for(adapter: object, rank: int) -> dict[str, nn.Linear]:
    """The layers that ``lora:RANK`` updates, by name.

    Raises:
        UsageError: the model has no linear layers of their own for queries and values, or is compiled.
    """
    model = module_of(adapter)
    modules = {} if model is None else dict(model.named_modules())
    layers = {
        name: layer
        for name, layer in modules.items()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in _LAYERS and not NOT_RUN.search(f"{name}.")
    }
    if not layers:
        weights = () if model is None else (name for name, _ in model.named_parameters())
        fused = any(name.endswith(("in_proj_weight", "qkv.weight")) for name in weights)
        why = "they are fused with the keys in one matrix" if fused else "it has no attention"
        raise UsageError(f"train=lora:{rank} needs linear layers for queries and for values, and in this model {why}")
    declared = adapter.fingerprint() if isinstance(adapter, Adapter) else None
    if isinstance(declared, Mapping) and declared.get("compiled"):
        raise UsageError(f"train=lora:{rank} cannot change a compiled model; run without --compile")
    return layers


def check_train(adapter: Trainable, which: str) -> None:
    """UsageError if a model does not have a known set of parameters, or if it cannot be updated."""
    rank = rank_of(which)
    if rank is not None:
        layers_for(adapter, rank)
    elif which in SETS:
        select(adapter, which)


def parameters_of(adapter: Trainable | PairTrainable, which: str) -> Mapping[str, nn.Parameter]:
    """The parameters that ``train=`` names; updates of low rank are added, in place of earlier ones."""
    rank = rank_of(which)
    if rank is not None:
        return add_low_rank(adapter, rank)
    if which not in SETS:
        raise UsageError(f"train={which} is unknown; it must be one of {_WORDS}")
    return select(adapter, which)


def remove_low_rank(adapter: object) -> None:
    """Takes the updates off again."""
    model = module_of(adapter)
    for layer in () if model is None else model.modules():
        for key, hook in list(layer._forward_hooks.items()):
            if isinstance(hook, LowRankUpdate):
                del layer._forward_hooks[key]


@contextmanager
def low_rank_removed(adapter: object) -> Iterator[None]:
    """A context after which the model has no updates."""
    try:
        yield
    finally:
        remove_low_rank(adapter)
