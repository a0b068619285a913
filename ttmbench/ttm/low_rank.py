"""Low-rank updates (``train=lora:RANK``) of the query and value projections of both towers.

Hooks add them to the outputs of linear layers, or to slices of a fused query-key-value matrix. The model's weights and
the names in its state dict do not change.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import nn
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.protocols import Adapter, PairTrainable, Trainable, TrainableInParts
from ttmbench.ttm.caption_shifts import add_shift, is_shift, remove_shift
from ttmbench.ttm.finetune import module_of
from ttmbench.ttm.parameters import NOT_RUN, SETS, is_of_captions, is_of_images, select

SCALE = 2.0  # alpha / rank, as in TTL (arXiv:2407.15913: alpha 32, rank 16)
_WORDS = f"{', '.join(SETS)}, lora:RANK, context:TOKENS or shift"
_LORA = re.compile(r"lora:([1-9]\d{0,3})")
_LAYERS = ("q_proj", "v_proj", "query", "value")


def _known(which: str) -> str:
    if which not in SETS and not is_added(which):
        raise ValueError(f"must be {_WORDS}")
    return which


Train = Annotated[str, AfterValidator(_known), Field(description=_WORDS)]
"""A set of parameters: a key of `ttmbench.ttm.parameters.SETS`, or parameters added to a model (`is_added`)."""


def rank_of(which: str) -> int | None:
    """Rank of the updates that ``train=lora:RANK`` adds; None for other sets.

    >>> rank_of("lora:16"), rank_of("norm")
    (16, None)
    """
    match = _LORA.fullmatch(which)
    return None if match is None else int(match[1])


def is_added(which: str) -> bool:
    """Whether ``train=`` names parameters that are added to a model (``lora``, a shift) and are not in its state."""
    return rank_of(which) is not None or is_shift(which)


class LowRankUpdate:
    """Adds ``SCALE * B A x`` to a layer's output; B starts at zero, A as Xavier normal, the same in every run."""

    def __init__(self, name: str, layer: nn.Linear, rank: int) -> None:
        self.down, self.up = _factors(name, layer.weight, (layer.out_features, layer.in_features), rank)
        self.parameters = {f"{name}.lora_a": self.down, f"{name}.lora_b": self.up}
        layer.register_forward_hook(self)

    def __call__(self, layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        """The layer's output with the update."""
        return output + SCALE * functional.linear(functional.linear(inputs[0], self.down), self.up)


@dataclass(frozen=True)
class FusedWeight:
    """A matrix [3 d, d] that computes queries, keys and values of its input, in this order."""

    attention: nn.Module  # module whose forward pass uses it
    holder: nn.Module  # module that has it as a parameter: the attention, or a layer of it
    parameter: str  # name of the parameter

    @property
    def weight(self) -> torch.Tensor:
        """The matrix."""
        return self.holder._parameters[self.parameter]  # type: ignore[return-value]


class FusedUpdate:
    """Adds ``SCALE * B A`` to the query and value rows of a fused matrix while its layer runs.

    Layers read the matrix in different ways (a fused kernel, a functional call). So the updated matrix replaces the
    parameter from before a forward pass until after it, also if the pass fails.
    """

    def __init__(self, name: str, fused: FusedWeight, rank: int) -> None:
        self.fused, self.original = fused, fused.weight
        size = len(self.original) // 3, self.original.shape[1]
        self.queries, self.values = (_factors(f"{name}.{part}", self.original, size, rank) for part in "qv")
        parts = {"q": self.queries, "v": self.values}
        self.parameters = {f"{name}.lora_{q}_{ab}": parts[q][at] for q in parts for at, ab in enumerate("ab")}
        fused.attention.register_forward_pre_hook(self)
        fused.attention.register_forward_hook(self, always_call=True)

    def __call__(self, layer: nn.Module, inputs: object, *output: object) -> None:
        """Replaces the matrix before the layer runs and restores it afterwards."""
        self.fused.holder._parameters[self.parameter] = self.original if output else self._updated()  # type: ignore[assignment]

    @property
    def parameter(self) -> str:
        """Name of the parameter."""
        return self.fused.parameter

    def _updated(self) -> torch.Tensor:
        (q_down, q_up), (v_down, v_up) = self.queries, self.values
        keys = torch.zeros_like(self.original[: len(q_up)])
        return self.original + SCALE * torch.cat([q_up @ q_down, keys, v_up @ v_down])


def _factors(name: str, weight: torch.Tensor, size: tuple[int, int], rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A [rank, in], drawn with the name as seed, and B [out, rank] of zeros; ``size`` is (out, in)."""
    rows, columns = size
    down = torch.empty(rank, columns)
    nn.init.xavier_normal_(down, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return nn.Parameter(down.to(weight.device, weight.dtype)), nn.Parameter(weight.new_zeros(rows, rank))


def add_low_rank(adapter: object, rank: int) -> Mapping[str, nn.Parameter]:
    """Adds an update to each layer of `layers_for`, replacing earlier updates; returns the parameters by name."""
    remove_low_rank(adapter)
    parameters: dict[str, nn.Parameter] = {}
    for name, layer in layers_for(adapter, rank).items():
        parameters |= (FusedUpdate if isinstance(layer, FusedWeight) else LowRankUpdate)(name, layer, rank).parameters  # type: ignore[arg-type]
    return parameters


def layers_for(adapter: object, rank: int) -> dict[str, nn.Linear | FusedWeight]:
    """Layers that ``lora:RANK`` updates, by name: linear layers, or fused matrices in towers without such layers.

    Raises:
        UsageError: the model has no query and value projections to update, or is compiled.
    """
    model = module_of(adapter)
    modules = {} if model is None else dict(model.named_modules())
    layers: dict[str, nn.Linear | FusedWeight] = {
        name: layer
        for name, layer in modules.items()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in _LAYERS and not NOT_RUN.search(f"{name}.")
    }
    if isinstance(adapter, TrainableInParts):
        separate = set(map(_tower, layers))
        layers |= {name: fused for name, fused in _fused(modules) if _tower(name) not in separate}
    if not layers:
        raise UsageError(f"train=lora:{rank} needs layers for queries and for values, and this model has no attention")
    declared = adapter.fingerprint() if isinstance(adapter, Adapter) else None
    if isinstance(declared, Mapping) and declared.get("compiled"):
        raise UsageError(f"train=lora:{rank} cannot change a compiled model; run without --compile")
    return layers


def _tower(name: str) -> tuple[bool, bool]:
    return is_of_images(name), is_of_captions(name)


def _fused(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, FusedWeight]]:
    """Fused matrices by name, of ``nn.MultiheadAttention``, similar modules, and layers named ``qkv``."""
    for path, module in modules.items():
        for holder, name in ((module, "in_proj_weight"), (getattr(module, "qkv", None), "qkv.weight")):
            weight = holder._parameters.get(name.rpartition(".")[2]) if isinstance(holder, nn.Module) else None
            full = f"{path}.{name}".lstrip(".")
            if weight is not None and weight.ndim == 2 and len(weight) == 3 * weight.shape[1]:
                if isinstance(holder, nn.Module) and not NOT_RUN.search(full):
                    yield full, FusedWeight(module, holder, name.rpartition(".")[2])


def check_train(adapter: Trainable, which: str) -> None:
    """Raises a UsageError if the set of parameters is unknown, or if the model has none or cannot be updated."""
    rank = rank_of(which)
    if rank is not None:
        layers_for(adapter, rank)
    elif is_shift(which):
        with low_rank_removed(adapter):
            add_shift(adapter, which)
    elif which in SETS:
        select(adapter, which)


def parameters_of(adapter: Trainable | PairTrainable, which: str) -> Mapping[str, nn.Parameter]:
    """The parameters that ``train=`` names; low-rank updates and shifts are added, replacing earlier ones."""
    rank = rank_of(which)
    if rank is not None:
        return add_low_rank(adapter, rank)
    if is_shift(which):
        return add_shift(adapter, which)
    if which not in SETS:
        raise UsageError(f"train={which} is unknown; it must be one of {_WORDS}")
    return select(adapter, which)


def remove_low_rank(adapter: object) -> None:
    """Removes low-rank updates and shifts."""
    remove_shift(adapter)
    model = module_of(adapter)
    for layer in () if model is None else model.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(hook, LowRankUpdate | FusedUpdate):
                    del hooks[key]
                    layer._forward_hooks_always_called.pop(key, None)


@contextmanager
def low_rank_removed(adapter: object) -> Iterator[None]:
    """A context that removes low-rank updates and shifts at its end."""
    try:
        yield
    finally:
        remove_low_rank(adapter)
