"""Sets of parameters for test-time training (``train=``), selected by module type and recorded with a digest.

| set | parameters |
|---|---|
| all | those that the model adapter trains, temperature and bias of the logits included |
| norm, norm_images, norm_captions | scale and shift of the normalisation layers: of both towers, or of one |
| last_block | the last block of each tower and language model, and the attention pooling of the image tower |
| projections | from each tower into the shared space |
| bias | every bias of both towers |
| temperature | temperature and bias of the logits |
| adapter | those of a PEFT adapter that is not merged (`merge=false`) |
| lora:RANK | low-rank updates, by hooks, of query and value projections or the rows of a fused matrix |
| context:TOKENS, shift | shifts shared by all captions: of their first tokens' embeddings, or of their features |

Hooks and replaced methods add the last two; the model's weights and the names in its state dict do not change.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from torch import nn
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.model import Batch, DualEncoder, Model

NamedParameters = Sequence[tuple[str, torch.nn.Parameter]]
_PROJECTION = re.compile(
    r"(^|\.)(visual|vision|image|text)_proj(ection)?(\.|$)|^(visual|text)\.(proj|head)(\.|$)|^text_model\.head\."
)
_ADAPTER = re.compile(r"\.default(\.|$)")  # appears in the parameter names of a PEFT adapter
_POOLING = re.compile(r"^vision_model\.head\.|^visual\.(.*\.)?attn_?pool\.")
_JOINT = re.compile(r"^text_encoder\..*\.crossattention\.|(^|\.)(multimodal_model|text_decoder|itm_\w+)\.")
_PRETRAINED = re.compile(r"(^|\.)(mim|mlm|mmm)_\w+\.")


def _is_run(name: str, adapter: Model) -> bool:
    """Whether a score depends on a parameter: not on pretraining heads, features not on BLIP's or CoCa's joint part."""
    return not (_PRETRAINED.search(name) or (isinstance(adapter, DualEncoder) and _JOINT.search(name)))


def named_parameters(adapter: Model) -> NamedParameters:
    """The parameters that an adapter trains, by name in its module; numbered if the adapter has no module."""
    module = adapter.torch_module
    names = {} if module is None else {id(parameter): name for name, parameter in module.named_parameters()}
    numbered = enumerate(adapter.parameters())
    return [(names.get(id(parameter), f"parameters.{number}"), parameter) for number, parameter in numbered]


def trained_towers(adapter: Model, names: Iterable[str]) -> tuple[bool, bool]:
    """Whether training these parameters changes features of images, and of captions; shared ones change both."""
    towers = [name for name in names if not is_temperature(name)]
    of_images, of_captions = ({name for name in towers if name.startswith(of)} for of in adapter.towers)
    return not of_captions.issuperset(towers), not of_images.issuperset(towers)


def is_temperature(name: str) -> bool:
    """Whether a parameter is the temperature or the bias of the logits, by its name."""
    return name.rpartition(".")[2] in ("logit_scale", "logit_bias")


def _chosen(adapter: Model, which: str) -> dict[str, nn.Parameter]:
    parameters, module = dict(named_parameters(adapter)), adapter.torch_module
    if which == "all":
        return parameters
    names = set() if module is None else {name for name in SETS[which](module, adapter) if _is_run(name, adapter)}
    return {name: parameter for name, parameter in parameters.items() if name in names}


def _names(module: nn.Module) -> Iterator[str]:
    return (name for name, _ in module.named_parameters())


def _is_norm(layer: nn.Module) -> bool:
    return any(kind.__name__.endswith("Norm") for kind in type(layer).__mro__)


def _norm(module: nn.Module) -> Iterator[str]:
    for path, layer in module.named_modules():
        if _is_norm(layer):
            yield from (f"{path}.{name}" for name, _ in layer.named_parameters(recurse=False))


def _last_block(module: nn.Module, adapter: Model) -> Iterator[str]:
    """Of each stack with attention (of stages: the last), and of a tower's last stack if none of its has attention."""
    last: dict[tuple[tuple[bool, ...], str], str] = {}
    for path, stack in module.named_modules():
        kinds = [set(type(block).__mro__) for block in stack.children()]  # of one class, or of one base
        if isinstance(stack, nn.ModuleList | nn.Sequential) and kinds and len(set.intersection(*kinds)) > 2:
            attends = any("Attention" in type(layer).__name__ for layer in stack.modules())
            if (attends or any(map(_is_norm, stack.modules()))) and _is_run(f"{path}.", adapter):
                outer = next((one for _, one in last if one and path.startswith(f"{one}.")), path)
                last[_tower(path, adapter), outer if attends else ""] = f"{path}.{[*stack._modules][-1]}."
    with_attention = {tower for tower, outer in last if outer}
    blocks = tuple(one for (tower, outer), one in last.items() if outer or tower not in with_attention)
    return (name for name in _names(module) if name.startswith(blocks) or _POOLING.search(name))


def _bias(module: nn.Module) -> Iterator[str]:
    return (name for name in _names(module) if name.endswith((".bias", "_bias")) and not is_temperature(name))


SETS: Mapping[str, Callable[[nn.Module, Model], Iterable[str]]] = {
    "all": lambda module, _: _names(module),
    "norm": lambda module, _: _norm(module),
    "norm_images": lambda module, adapter: (name for name in _norm(module) if name.startswith(adapter.towers[0])),
    "norm_captions": lambda module, adapter: (name for name in _norm(module) if name.startswith(adapter.towers[1])),
    "last_block": _last_block,
    "projections": lambda module, _: filter(_PROJECTION.search, _names(module)),
    "bias": lambda module, _: _bias(module),
    "temperature": lambda module, _: filter(is_temperature, _names(module)),
    "adapter": lambda module, _: filter(_ADAPTER.search, _names(module)),
}
"""Name of a set -> the names of its parameters in the module of a model."""


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


def add_shift(adapter: Model, which: str) -> Mapping[str, nn.Parameter]:
    """Adds a shift of captions, initially zero, replacing an earlier one; returns its parameter by name.

    Raises:
        UsageError: the model has no token embeddings, or no features of captions, that could be shifted.
    """
    remove_low_rank(adapter)
    tokens, width = tokens_of(which), _width(adapter, which)
    device = next(iter(adapter.parameters())).device
    parameter = nn.Parameter(torch.zeros(*([] if tokens is None else [tokens]), width, device=device))
    encode = partial(_shifted_features if tokens is None else _shifted_tokens, adapter, parameter)
    for name in ("encode_captions", "train_captions"):
        setattr(adapter, name, partial(encode, name))
    setattr(adapter, "matching_loss", partial(_loss_of_parts, adapter))  # noqa: B010  # a method of the protocol
    adapter.added = [partial(delattr, adapter, name) for name in _REPLACED]
    return {f"text.{'shift' if tokens is None else 'context'}": parameter}


def _width(adapter: Model, which: str) -> int:
    """Dimension of the shifted embeddings or features."""
    encoder = adapter if isinstance(adapter, DualEncoder) and adapter.trains_in_parts else None
    if tokens_of(which) is not None:
        width = None if encoder is None else encoder.caption_width
        if width is None:
            raise UsageError(
                f"train={which} shifts the token embeddings of captions, and this model's cannot be shifted"
            )
        return width
    if encoder is not None:
        with torch.no_grad():
            features = encoder.encode_captions(encoder.prepare_captions(["a"]))
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


@contextmanager
def _as_it_was(adapter: object) -> Iterator[None]:
    """A context in which the adapter encodes captions without the shift, since one method may call another."""
    replaced = {name: vars(adapter).pop(name) for name in _REPLACED if name in vars(adapter)}
    try:
        yield
    finally:
        vars(adapter).update(replaced)


SCALE = 2.0  # alpha / rank, as in TTL (arXiv:2407.15913: alpha 32, rank 16)
_WORDS = f"{', '.join(SETS)}, lora:RANK, context:TOKENS or shift"
_LORA = re.compile(r"lora:([1-9]\d{0,3})")
_LAYERS = ("q_proj", "v_proj", "query", "value")


def _known(which: str) -> str:
    if which not in SETS and not is_added(which):
        raise ValueError(f"must be {_WORDS}")
    return which


Train = Annotated[str, AfterValidator(_known), Field(description=_WORDS)]
"""A set of parameters: a key of `ttmbench.methods.parameters.SETS`, or parameters added to a model (`is_added`)."""


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
        self.handles = [layer.register_forward_hook(self)]

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
        after = fused.attention.register_forward_hook(self, always_call=True)
        self.handles = [fused.attention.register_forward_pre_hook(self), after]

    def __call__(self, layer: nn.Module, inputs: object, *output: object) -> None:
        """Replaces the matrix before the layer runs and restores it afterwards."""
        matrix: Any = self.original if output else self._updated()
        self.fused.holder._parameters[self.fused.parameter] = matrix

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


def add_low_rank(adapter: Model, rank: int) -> Mapping[str, nn.Parameter]:
    """Adds an update to each layer of `layers_for`, replacing earlier updates; returns the parameters by name."""
    remove_low_rank(adapter)
    parameters: dict[str, nn.Parameter] = {}
    for name, layer in layers_for(adapter, rank).items():
        update = (FusedUpdate if isinstance(layer, FusedWeight) else LowRankUpdate)(name, layer, rank)  # type: ignore[arg-type]
        parameters |= update.parameters
        adapter.added = [*adapter.added, *(handle.remove for handle in update.handles)]
    return parameters


def layers_for(adapter: Model, rank: int) -> dict[str, nn.Linear | FusedWeight]:
    """Layers that ``lora:RANK`` updates, by name: linear layers, or fused matrices in towers without such layers.

    Raises:
        UsageError: the model has no query and value projections to update, or is compiled.
    """
    model = adapter.torch_module
    modules = {} if model is None else dict(model.named_modules())
    layers: dict[str, nn.Linear | FusedWeight] = {
        name: layer
        for name, layer in modules.items()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in _LAYERS and _is_run(f"{name}.", adapter)
    }
    if isinstance(adapter, DualEncoder):
        separate = {_tower(name, adapter) for name in layers}
        fused = {name: one for name, one in _fused(modules) if _is_run(name, adapter)}
        layers |= {name: one for name, one in fused.items() if _tower(name, adapter) not in separate}
    if not layers:
        raise UsageError(f"train=lora:{rank} needs layers for queries and for values, and this model has no attention")
    declared = adapter.fingerprint()
    if isinstance(declared, Mapping) and declared.get("compiled"):
        raise UsageError(f"train=lora:{rank} cannot change a compiled model; run without --compile")
    return layers


def _tower(name: str, adapter: Model) -> tuple[bool, ...]:
    return tuple(name.removeprefix("model.").startswith(of) for of in adapter.towers)


def _fused(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, FusedWeight]]:
    """Fused matrices by name, of ``nn.MultiheadAttention``, similar modules, and layers named ``qkv``."""
    for path, module in modules.items():
        for holder, name in ((module, "in_proj_weight"), (getattr(module, "qkv", None), "qkv.weight")):
            weight = holder._parameters.get(name.rpartition(".")[2]) if isinstance(holder, nn.Module) else None
            full = f"{path}.{name}".lstrip(".")
            if weight is not None and weight.ndim == 2 and len(weight) == 3 * weight.shape[1]:
                if isinstance(holder, nn.Module):
                    yield full, FusedWeight(module, holder, name.rpartition(".")[2])


def parameters_of(adapter: Model, which: str) -> Mapping[str, nn.Parameter]:
    """The parameters that ``train=`` names; low-rank updates and shifts are added, replacing earlier ones.

    UsageError if the set is unknown, or this model has no such parameters.
    """
    if which not in SETS:
        rank = rank_of(which)
        if rank is None and not is_shift(which):
            raise UsageError(f"train={which} is unknown; it must be one of {_WORDS}")
        return add_shift(adapter, which) if rank is None else add_low_rank(adapter, rank)
    if not (chosen := _chosen(adapter, which)):
        others = [name for name in SETS if _chosen(adapter, name)]
        hint = "; merge=false keeps an adapter (peft=FOLDER) separate" if which == "adapter" else ""
        raise UsageError(
            f"train={which}: this model has no such parameters; it has {', '.join(others) or 'none'}{hint}"
        )
    return chosen


def remove_low_rank(adapter: Model) -> None:
    """Removes low-rank updates and shifts."""
    for undo in adapter.added:
        undo()
    adapter.added = ()


@contextmanager
def low_rank_removed(adapter: Model) -> Iterator[None]:
    """A context that removes low-rank updates and shifts at its end."""
    try:
        yield
    finally:
        remove_low_rank(adapter)
