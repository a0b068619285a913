"""The models that have a name: kind, commit, and a card for users.

A kind of model is a module beside this one with `load`. Commits are pinned where they are known, and to one with
safetensors where there is one. Sizes are of the files that are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def adapters() -> list[AdapterSpec]:
    """Every name, as the registry takes it; models of the libraries and finetuned ones are in ``named_models.json``.

    Commits of OpenAI's CLIPs, of BLIP's captioner and of open_clip's ViT-B/16 were proposed to a ``main`` that has no
    safetensors. Of FLAVA no commit is known.
    """
    known = json.loads(Path(__file__).with_name("named_models.json").read_text(encoding="utf-8"))
    specs = []
    for row in (*_BUILT_IN, *_KINDS, *known["models"], *_SERVED, *known["finetuned"]):
        kind, card = row["kind"], row.get("card")
        if isinstance(card, dict):
            trained_on = None if card.get("trained_on") is None else tuple(card["trained_on"])
            captions = known["captions"].get(card.get("captions"))
            card = ModelCard(**{**card, "trained_on": trained_on, "captions": captions})
        specs.append(
            AdapterSpec(
                *(row["name"], f"{_HERE}.{kind}:load", row["summary"], _NEEDS.get(kind, ())),
                *(tuple(row.get("aliases", ())), dict(row.get("model_args", {})), dict(row.get("ttm_defaults", {}))),
                *(card, f"{_HERE}._shared.{_OPTIONS[kind]}"),
            )
        )
    return specs


Row = dict[str, Any]
_TINY_CARD = ModelCard(
    *("model.safetensors", 983_932, "Apache-2.0"),
    trained_on=("rendered-scenes",),
    quick_gelu=True,
    captions={
        **{"cleaning": None, "case": "lower", "punctuation": "kept", "padding": "longest", "max_tokens": 16},
        "special_tokens": "text",
    },
)
_BUILT_IN: list[Row] = [
    {
        **{"name": f"tiny-clip{end}", "kind": "tiny_clip", "summary": summary, "card": _TINY_CARD},
        **{"model_args": {"training_seed": seed}, "ttm_defaults": {"lr": 5e-4, "epochs": 5}},
    }
    for seed, end, summary in (
        (0, "", "built-in CLIP trained on rendered scenes; needs no download"),
        (1, "-seed1", "tiny-clip trained with another seed"),
    )
]
_ANY_CHAT = "any model with a chat template: --model_args pretrained=<hub id>"
_KINDS: list[Row] = [
    {"name": kind, "kind": kind, "summary": summary, "ttm_defaults": {"lr": 3e-4} if kind == "embeddings" else {}}
    for kind, summary in (
        ("hf", "any CLIP or SigLIP of transformers: --model_args pretrained=<hub id or folder>"),
        (
            "open_clip",
            "any model of open_clip: --model_args model=<name>,pretrained=<tag or file>, or model=hf-hub:<id>",
        ),
        ("embeddings", "stored features with trainable residual heads: --model_args path=FILE"),
        ("vqascore", f"P(yes) of {_ANY_CHAT}"),
        ("visualgpt", "P(caption|image) of a generative model: --model_args pretrained=<hub id>"),
        ("choice", f"forced choices of {_ANY_CHAT}[,side_by_side=true]"),
        ("blind", "P(caption) without the image: --model_args pretrained=<hub id>"),
    )
]
_SERVED: list[Row] = [
    {
        **{"name": "openai", "kind": "openai"},
        "summary": (
            "any model behind an OpenAI-compatible server: --model_args model=<name>[,base_url=...][,scorer=choice]"
        ),
    },
    {
        **{"name": "gpt-4.1", "kind": "openai"},
        "summary": (
            "GPT-4.1 of 2025-04-14, VQAScore from log-probabilities; prices as OpenAI listed them at its release"
        ),
        "model_args": {"model": "gpt-4.1-2025-04-14", "price_in": 2.0, "price_out": 8.0},
    },
]
