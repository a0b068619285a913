"""Sets of parameters for test-time training (``train=``), selected by module type and recorded with a digest.

| set | parameters |
|---|---|
| all | those that the model adapter trains, temperature and bias of the logits included |
| norm, norm_images, norm_captions | scale and shift of the normalisation layers: of both towers, or of one |
| last_block | the last block of each tower, and the attention pooling of the image tower |
| projections | from each tower into the shared space |
| bias | every bias of both towers |
| temperature | temperature and bias of the logits |
| adapter | those of a PEFT adapter that is not merged (`merge=false`) |
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from torch import nn

from ttmbench.errors import UsageError
from ttmbench.protocols import PairTrainable, Trainable
from ttmbench.ttm.finetune import module_of, named_parameters
from ttmbench.types import Record

NORM_LAYERS = (nn.LayerNorm, nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.RMSNorm)
"""Normalisation layers and their subclasses. Selected by type, because names differ between libraries."""
_PROJECTION = re.compile(
    r"(^|\.)(visual|vision|image|text)_proj(ection)?(\.|$)|^(visual|text)\.(proj|head)(\.|$)|^text_model\.head\."
)
_ADAPTER = re.compile(r"\.default(\.|$)")  # appears in the parameter names of a PEFT adapter
_POOLING = re.compile(r"^vision_model\.head\.|^visual\.(.*\.)?attn_?pool\.")
NOT_RUN = re.compile(
    r"^text_encoder\..*\.crossattention\.|(^|\.)(multimodal_model|text_decoder|(itm|mim|mlm|mmm)_\w+)\."
)
"""Names of modules of BLIP, FLAVA and CoCa that do not contribute to image or caption features."""


def select(adapter: Trainable | PairTrainable, which: str) -> Mapping[str, nn.Parameter]:
    """The parameters of a set, by name.

    Raises:
        UsageError: the set is unknown, or this model has no such parameters.
    """
    if which not in SETS:
        raise UsageError(f"train={which} is unknown here; it must be one of {', '.join(SETS)}")
    parameters = dict(named_parameters(adapter))
    chosen = _chosen(adapter, which, parameters)
    if not chosen:
        others = [name for name in SETS if _chosen(adapter, name, parameters)]
        hint = "; merge=false keeps an adapter (peft=FOLDER) separate" if which == "adapter" else ""
        raise UsageError(
            f"train={which}: this model has no such parameters; it has {', '.join(others) or 'none'}{hint}"
        )
    return chosen


def digest(names: Iterable[str]) -> str:
    """Digest of the names of a set of parameters, independent of their order.

    >>> digest(["b", "a"]) == digest(["a", "b"])
    True
    """
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def trained_record(train: object, sizes: Mapping[str, int]) -> Record:
    """Record for results: the trained parameters, with the size of each."""
    return {"train": train, "parameters": sum(sizes.values()), "names_sha256": digest(sizes)}


def is_of_images(name: str) -> bool:
    """Whether a parameter belongs to the image tower alone, by its name in transformers, open_clip and timm.

    >>> is_of_images("vision_model.post_layernorm.weight"), is_of_images("text.ln_final.weight")
    (True, False)
    """
    return name.removeprefix("flava.").startswith(("vision", "visual", "image", "query_tokens"))


def is_of_captions(name: str) -> bool:
    """Whether a parameter belongs to the caption tower alone; shared parameters (BLIP-2) belong to neither.

    >>> is_of_captions("transformer.resblocks.0.ln_1.bias"), is_of_captions("qformer.layernorm.weight")
    (True, False)
    """
    of_open_clip = ("transformer.", "token_embedding", "positional_embedding", "ln_final")
    return name.removeprefix("flava.").startswith(("text", "caption", "embeddings.", *of_open_clip))


def is_temperature(name: str) -> bool:
    """Whether a parameter is the temperature or the bias of the logits.

    >>> is_temperature("logit_scale"), is_temperature("flava.logit_scale"), is_temperature("visual.proj")
    (True, True, False)
    """
    return name.rpartition(".")[2] in ("logit_scale", "logit_bias")


def _chosen(adapter: object, which: str, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    if which == "all":
        return dict(parameters)
    module = module_of(adapter)
    names = set() if module is None else {name for name in SETS[which](module) if not NOT_RUN.search(name)}
    return {name: parameter for name, parameter in parameters.items() if name in names}


def _names(module: nn.Module) -> Iterator[str]:
    return (name for name, _ in module.named_parameters())


def _norm(module: nn.Module) -> Iterator[str]:
    for path, layer in module.named_modules():
        if isinstance(layer, NORM_LAYERS):
            yield from (f"{path}.{name}" for name, _ in layer.named_parameters(recurse=False))


def _last_block(module: nn.Module) -> Iterator[str]:
    last: dict[tuple[bool, bool], str] = {}
    for path, blocks in module.named_modules():
        children = dict(blocks.named_children())
        is_stack = isinstance(blocks, nn.ModuleList | nn.Sequential) and len(set(map(type, children.values()))) == 1
        if is_stack and not NOT_RUN.search(f"{path}."):
            name, block = list(children.items())[-1]
            if any(isinstance(layer, NORM_LAYERS) for layer in block.modules()):
                last[is_of_images(path), is_of_captions(path)] = f"{path}.{name}."
    return (name for name in _names(module) if name.startswith(tuple(last.values())) or _POOLING.search(name))


def _bias(module: nn.Module) -> Iterator[str]:
    return (name for name in _names(module) if name.endswith((".bias", "_bias")) and not is_temperature(name))


SETS: Mapping[str, Callable[[nn.Module], Iterable[str]]] = {
    "all": _names,
    "norm": _norm,
    "norm_images": lambda module: filter(is_of_images, _norm(module)),
    "norm_captions": lambda module: filter(is_of_captions, _norm(module)),
    "last_block": _last_block,
    "projections": lambda module: filter(_PROJECTION.search, _names(module)),
    "bias": _bias,
    "temperature": lambda module: filter(is_temperature, _names(module)),
    "adapter": lambda module: filter(_ADAPTER.search, _names(module)),
}
"""Name of a set -> the names of its parameters in a module."""
