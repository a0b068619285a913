"""QuickGELU or GELU: which activation a CLIP is computed with, and a note where nothing states it.

The tensors of both have the same names and shapes. OpenAI's CLIP was trained with QuickGELU, ``x sigmoid(1.702 x)``,
and so were the models that were finetuned from it; most CLIPs that others trained from scratch have GELU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ttmbench.errors import UsageError

QUICK, GELU = "quick_gelu", "gelu"
_SUFFIX = "-quickgelu"
_WIDEST = 1024  # OpenAI's largest image tower, ViT-L/14
_TRAINED_WITH_GELU = "laion/"  # the one publisher on the hub of CLIPs with GELU in OpenAI's shapes, for transformers
_ADVICE = (
    "Weights finetuned from OpenAI's CLIP (NegCLIP, CE-CLIP and others) need QuickGELU: --model_args quick_gelu=true. "
    "quick_gelu=false confirms GELU"
)


def check_quick_gelu(value: Any) -> bool | None:
    """The argument ``quick_gelu``: true, false, or None where it is not given; UsageError for anything else."""
    if value is None or isinstance(value, bool):
        return value
    raise UsageError(f"quick_gelu must be true or false, got {value!r}")


# --- open_clip -------------------------------------------------------------------------------------------------------


def with_activation(model_config: Mapping[str, Any], quick: bool, model: str) -> Mapping[str, Any]:
    """A ``model_cfg`` of open_clip with the activation that is asked for.

    Args:
        model_config: the ``model_cfg``.
        quick: whether it is QuickGELU.
        model: what messages call it.

    Raises:
        UsageError: its image tower is timm's, which does not read the setting.
    """
    if model_config["vision_cfg"].get("timm_model_name"):
        raise UsageError(f"quick_gelu: the image tower of {model} is timm's, which has no such choice; leave it out")
    return {**model_config, QUICK: quick}


def note_on_open_clip(model_config: Mapping[str, Any], what: str) -> str | None:
    """The note for a model of open_clip whose activation is not known.

    Args:
        model_config: its ``model_cfg``.
        what: the file or configuration that does not state it.

    Returns:
        One line; None if the configuration states it, or if open_clip has the architecture in one form only.
    """
    import open_clip

    names = [name for name in open_clip.list_models() if name.endswith(_SUFFIX)]
    if model_config.get(QUICK) is not None:
        return None
    if _towers(model_config) not in [_towers(open_clip.get_model_config(name)) for name in names]:
        return None
    return f"{what} does not state its activation, so it is computed with GELU. {_ADVICE}"


def gelu_repositories() -> set[str]:
    """The hub repositories that open_clip itself knows to hold weights trained with GELU."""
    import open_clip

    tags = [open_clip.get_pretrained_cfg(*pair) for pair in open_clip.list_pretrained()]
    return {tag["hf_hub"].rpartition("/")[0] for tag in tags if tag.get("hf_hub") and not tag.get(QUICK)}


def _towers(model_config: Mapping[str, Any]) -> list[Any]:
    """What makes an architecture, without the sizes that finetuning may change: of images, and of captions."""
    from open_clip import CLIPTextCfg, CLIPVisionCfg

    image = {**asdict(CLIPVisionCfg()), **model_config["vision_cfg"]}
    text = {**asdict(CLIPTextCfg()), **model_config["text_cfg"]}
    return [
        model_config["embed_dim"],
        *(image[name] for name in ("timm_model_name", "layers", "width", "head_width", "patch_size")),
        *(text[name] for name in ("hf_model_name", "layers", "width", "heads")),
    ]


# --- transformers ----------------------------------------------------------------------------------------------------


def set_activation(config: Any, quick: bool) -> Any:
    """A CLIP's configuration of transformers with this activation; UsageError if it is another kind of model."""
    if config.model_type != "clip":
        raise UsageError(f"quick_gelu is for CLIP, and this is a model of type {config.model_type}; leave it out")
    for tower in (config.vision_config, config.text_config):
        if quick or tower.hidden_act == QUICK:
            tower.hidden_act = QUICK if quick else GELU
    return config


def stated_activation(config: Any) -> dict[str, bool | None]:
    """What a fingerprint states of a CLIP of transformers: ``quick_gelu``, None if its two towers differ."""
    if config.model_type != "clip":
        return {}
    quick = {tower.hidden_act == QUICK for tower in (config.vision_config, config.text_config)}
    return {QUICK: quick.pop() if len(quick) == 1 else None}


def note_on_transformers(config: Any, name: str) -> str | None:
    """The note for a CLIP of transformers whose activation is doubtful.

    Its configuration states an activation. Where that is GELU, whoever converted weights of OpenAI's may have lost
    QuickGELU; nothing in a folder shows it.

    Args:
        config: of the model; a key ``quick_gelu`` that `states_activation` wrote is taken out.
        name: hub id or folder.

    Returns:
        One line; None if it has QuickGELU, or if it cannot be a descendant of OpenAI's.
    """
    confirmed = vars(config).pop(QUICK, None) is not None
    if config.model_type != "clip" or confirmed:
        return None
    image, text = config.vision_config.hidden_act, config.text_config.hidden_act
    if image != text:
        return f"config.json of {name} states hidden_act {image} for images and {text} for captions. {_ADVICE}"
    if image != GELU or config.vision_config.hidden_size > _WIDEST or name.startswith(_TRAINED_WITH_GELU):
        return None
    return f"config.json of {name} states hidden_act {GELU}, so it is computed with GELU. {_ADVICE}"


@contextmanager
def states_activation(config: Any) -> Iterator[None]:
    """While it is open, a CLIP's configuration states that its activation is the right one, for those who load it."""
    quick = stated_activation(config).get(QUICK)
    if quick is not None:
        setattr(config, QUICK, quick)
    try:
        yield
    finally:
        vars(config).pop(QUICK, None)
