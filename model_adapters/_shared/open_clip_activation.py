"""Which activation an architecture of open_clip has, and which architectures are the same but for their sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import open_clip

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import ADVICE_ON_GELU, QUICK

Config = Mapping[str, Any]
"""Of an ``open_clip_config.json``, or its ``model_cfg``."""
_SUFFIX = "-quickgelu"


def with_activation(model_config: Config, quick: bool, model: str) -> Config:
    """A ``model_cfg`` with QuickGELU or GELU; UsageError if its image tower is timm's, which has no such choice."""
    if model_config["vision_cfg"].get("timm_model_name"):
        raise UsageError(f"quick_gelu: the image tower of {model} is timm's, which has no such choice; omit it")
    return {**model_config, QUICK: quick}


def note_on_activation(model_config: Config, what: str) -> tuple[str, ...]:
    """A note on an unknown activation, which ``what`` does not state.

    Empty if the ``model_cfg`` states it, or if open_clip has the architecture in one form only.
    """
    names = [name for name in open_clip.list_models() if name.endswith(_SUFFIX)]
    if model_config.get(QUICK) is not None:
        return ()
    if _towers(model_config) not in [_towers(open_clip.get_model_config(name)) for name in names]:
        return ()
    return (f"{what} does not state its activation, so it is computed with GELU. {ADVICE_ON_GELU}",)


def gelu_repositories() -> set[str]:
    """The Hub repositories whose weights were trained with GELU, as open_clip lists them."""
    tags = [open_clip.get_pretrained_cfg(*pair) for pair in open_clip.list_pretrained()]
    return {tag["hf_hub"].rpartition("/")[0] for tag in tags if tag.get("hf_hub") and not tag.get(QUICK)}


def like(model_config: Config, pixels: int | None, context_length: int | None) -> list[str]:
    """The names of open_clip's architectures that differ in the image size or the context length alone.

    Args:
        model_config: the ``model_cfg`` to compare with.
        pixels: side of the images; None for that of ``model_config``.
        context_length: text positions; None likewise.
    """
    wanted = _whole(model_config)
    wanted[1]["image_size"] = pixels or wanted[1]["image_size"]
    wanted[2]["context_length"] = context_length or wanted[2]["context_length"]
    return [name for name in open_clip.list_models() if _whole(open_clip.get_model_config(name)) == wanted]


def _whole(model_config: Config) -> list[Any]:
    """An architecture; the name of a tower of timm without the image size in it."""
    image = {**asdict(open_clip.CLIPVisionCfg()), **model_config["vision_cfg"]}
    image["timm_model_name"] = re.sub(r"_\d+$", "", image["timm_model_name"] or "")
    text = {**asdict(open_clip.CLIPTextCfg()), **model_config["text_cfg"]}
    return [model_config["embed_dim"], image, text, bool(model_config.get(QUICK))]


def _towers(model_config: Config) -> list[object]:
    """The architecture of both towers, without sizes that finetuning may change."""
    image = {**asdict(open_clip.CLIPVisionCfg()), **model_config["vision_cfg"]}
    text = {**asdict(open_clip.CLIPTextCfg()), **model_config["text_cfg"]}
    return [
        model_config["embed_dim"],
        *(image[name] for name in ("timm_model_name", "layers", "width", "head_width", "patch_size")),
        *(text[name] for name in ("hf_model_name", "layers", "width", "heads")),
    ]
