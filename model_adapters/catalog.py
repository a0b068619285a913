"""The models that have a name: kind, commit, and a card for users.

A kind of model is a module beside this one with `load`. Commits are pinned where they are known, and to one with
safetensors where there is one. Sizes are of the files that are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ttmbench.types import AdapterSpec, ModelCard

_HERE = "ttmbench.model_adapters"
_OPTIONS = {
    "tiny_clip": "options:TinyClipOptions",
    "hf": "options:ContrastiveOptions",
    "itc": "options:ContrastiveHalfOptions",
    "itm": "options:MatchingOptions",
    "vqascore": "options:VqaScoreOptions",
    "choice": "options:ChoiceOptions",
    "visualgpt": "options:VisualGptOptions",
    "blind": "options:BlindOptions",
    "open_clip": "options:OpenClipOptions",
    "embeddings": "options:EmbeddingsOptions",
    "openai": "options:ServedOptions",
}
_NEEDS = {"open_clip": ("open_clip_torch",), "openai": ("ttmbench[api]",)}
_TINY = {"lr": 5e-4, "epochs": 5}


def adapters() -> list[AdapterSpec]:
    """Every name, as the registry takes it."""
    return [*_BUILT_IN, *_KINDS, *named("models"), *_SERVED, *named("finetuned")]


def named(which: Literal["models", "finetuned"]) -> list[AdapterSpec]:
    """The models of the libraries in ``named_models.json``; or those finetuned for compositionality, and their tags.

    Commits of OpenAI's CLIPs, of BLIP's captioner and of open_clip's ViT-B/16 were proposed to a ``main`` that has no
    safetensors. Of FLAVA no commit is known.
    """
    known = json.loads(Path(__file__).with_name("named_models.json").read_text(encoding="utf-8"))
    for row in known[which]:
        if card := row.pop("card", None):
            trained_on = None if card.get("trained_on") is None else tuple(card["trained_on"])
            captions = known["captions"].get(card.get("captions"))
            row["card"] = ModelCard(**{**card, "trained_on": trained_on, "captions": captions})
    return [_spec(**row) for row in known[which]]


def _spec(
    name: str,
    kind: str,
    summary: str,
    model_args: Mapping[str, object] = MappingProxyType({}),
    card: ModelCard | None = None,
    ttm_defaults: Mapping[str, float] = MappingProxyType({}),
    aliases: Sequence[str] = (),
) -> AdapterSpec:
    target, options, needs = f"{_HERE}.{kind}:load", f"{_HERE}._shared.{_OPTIONS[kind]}", _NEEDS.get(kind, ())
    return AdapterSpec(
        name, target, summary, needs, tuple(aliases), dict(model_args), dict(ttm_defaults), card, options
    )


_TINY_CARD = ModelCard(
    *("model.safetensors", 983_932, "Apache-2.0"),
    trained_on=("rendered-scenes",),
    quick_gelu=True,
    captions={
        **{"cleaning": None, "case": "lower", "punctuation": "kept", "padding": "longest", "max_tokens": 16},
        "special_tokens": "text",
    },
)
_BUILT_IN = [
    _spec(
        *("tiny-clip", "tiny_clip", "built-in CLIP trained on rendered scenes; needs no download"),
        *({"training_seed": 0}, _TINY_CARD, _TINY),
    ),
    _spec(
        *("tiny-clip-seed1", "tiny_clip", "tiny-clip trained with another seed"),
        *({"training_seed": 1}, _TINY_CARD, _TINY),
    ),
]
_ANY_CHAT = "any model with a chat template: --model_args pretrained=<hub id>"
_KINDS = [
    _spec("hf", "hf", "any CLIP or SigLIP of transformers: --model_args pretrained=<hub id or folder>"),
    _spec(
        *("open_clip", "open_clip"),
        "any model of open_clip: --model_args model=<name>,pretrained=<tag or file>, or model=hf-hub:<id>",
    ),
    _spec(
        *("embeddings", "embeddings", "stored features with trainable residual heads: --model_args path=FILE"),
        ttm_defaults={"lr": 3e-4},
    ),
    _spec("vqascore", "vqascore", f"P(yes) of {_ANY_CHAT}"),
    _spec("visualgpt", "visualgpt", "P(caption|image) of a generative model: --model_args pretrained=<hub id>"),
    _spec("choice", "choice", f"forced choices of {_ANY_CHAT}[,side_by_side=true]"),
    _spec("blind", "blind", "P(caption) without the image: --model_args pretrained=<hub id>"),
]
_SERVED = [
    _spec(
        *("openai", "openai"),
        "any model behind an OpenAI-compatible server: --model_args model=<name>[,base_url=...][,scorer=choice]",
    ),
    _spec(
        *("gpt-4.1", "openai"),
        "GPT-4.1 of 2025-04-14, VQAScore from log-probabilities; prices as OpenAI listed them at its release",
        {"model": "gpt-4.1-2025-04-14", "price_in": 2.0, "price_out": 8.0},
    ),
]
