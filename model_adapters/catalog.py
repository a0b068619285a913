"""The models that have a name: kind, commit, and a card for users.

A kind of model is a module beside this one with `load`; its options are the class of that name in `_shared.options`.
Commits are pinned where they are known, and to one with safetensors where there is one. Sizes are of the files that are
read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ttmbench.types import AdapterSpec, ModelCard

_HERE = "ttmbench.model_adapters"
_NEEDS = {"open_clip": ("open_clip_torch",), "openai": ("ttmbench[api]",)} | dict.fromkeys(
    ("sentence_transformers", "multi_vector", "cross_encoder"), ("ttmbench[sentence-transformers]",)
)
_FILES = dict.fromkeys(("multi_vector", "cross_encoder"), "sentence_transformers:load_{}")  # others are named as kinds


def adapters() -> list[AdapterSpec]:
    """Every name, as the registry takes it; models of the libraries and finetuned ones are in ``named_models.json``.

    Some commits were proposed to a ``main`` that has no safetensors. Of FLAVA no commit is known.
    """
    known = json.loads(Path(__file__).with_name("named_models.json").read_text(encoding="utf-8"))
    for row in (*known["models"], *known["finetuned"]):
        card, row["aliases"] = row.get("card"), tuple(row.get("aliases", ()))
        if card is not None:
            trained_on = None if card.get("trained_on") is None else tuple(card["trained_on"])
            captions = known["captions"].get(card.get("captions"))
            row["card"] = ModelCard(**{**card, "trained_on": trained_on, "captions": captions})
    kinds = [{"name": kind, "kind": kind, "summary": summary} for kind, summary in _KINDS.items()]
    specs = []
    for row in (*_BUILT_IN, *kinds, *known["models"], *_SERVED, *known["finetuned"]):
        kind = row["kind"]
        target = f"{_HERE}.{_FILES.get(kind, '{}:load').format(kind)}"
        options = f"{_HERE}._shared.options:{kind.title().replace('_', '')}Options"
        more = {key: value for key, value in row.items() if key != "kind"}
        specs.append(AdapterSpec(target=target, needs=_NEEDS.get(kind, ()), options=options, **more))
    return specs


Row = dict[str, Any]
_TINY_CAPTIONS = {"cleaning": None, "case": "lower", "punctuation": "kept", "padding": "longest"}
_TINY: Row = {
    "kind": "hf",
    "card": ModelCard(
        weights="model.safetensors",
        bytes=983_932,
        license="Apache-2.0",
        trained_on=("rendered-scenes",),
        quick_gelu=True,
        captions={**_TINY_CAPTIONS, "max_tokens": 16, "special_tokens": "text"},
    ),
    "ttm_defaults": {"lr": 5e-4, "epochs": 5},
}
_NO_DOWNLOAD = "built-in CLIP trained on rendered scenes; needs no download"
_STORED = "stored features with trainable residual heads: --model_args path=FILE"
_BUILT_IN: list[Row] = [
    {"name": "embeddings", "kind": "embeddings", "summary": _STORED, "ttm_defaults": {"lr": 3e-4}},
    {"name": "tiny-clip", "summary": _NO_DOWNLOAD, "model_args": {"pretrained": "tiny_clip"}, **_TINY},
    {
        "name": "tiny-clip-seed1",
        "summary": "tiny-clip trained with another seed",
        "model_args": {"pretrained": "tiny_clip_seed1"},
        **_TINY,
    },
]
_ANY_CHAT = "any model with a chat template: --model_args pretrained=<hub id>"
_KINDS = {
    "hf": "any CLIP or SigLIP of transformers: --model_args pretrained=<hub id or folder>",
    "open_clip": "any model of open_clip: --model_args model=<name>,pretrained=<tag or file>, or model=hf-hub:<id>",
    "itm": "matching head of BLIP, BLIP-2, FLAVA, ViLT or BridgeTower: --model_args pretrained=<hub id>",
    "sentence_transformers": "any embedding model with images of Sentence Transformers: -a pretrained=<hub id>",
    "multi_vector": "late interaction (ColQwen2, ColPali, ...) of Sentence Transformers: -a pretrained=<hub id>",
    "cross_encoder": "any reranker of Sentence Transformers that reads images: -a pretrained=<hub id>",
    "vqascore": f"P(yes) of {_ANY_CHAT}",
    "visualgpt": "P(caption|image) of a generative model: --model_args pretrained=<hub id>",
    "choice": f"forced choices of {_ANY_CHAT}[,side_by_side=true]",
    "blind": "P(caption) without the image: --model_args pretrained=<hub id>",
}
_ANY_SERVED = "any model behind an OpenAI-compatible server: --model_args model=<name>[,base_url=...][,scorer=choice]"
_GPT = "GPT-4.1 of 2025-04-14, VQAScore from log-probabilities; prices as OpenAI listed them at its release"
_GPT_ARGS = {"model": "gpt-4.1-2025-04-14", "price_in": 2.0, "price_out": 8.0}
_SERVED: list[Row] = [
    {"name": "openai", "kind": "openai", "summary": _ANY_SERVED},
    {"name": "gpt-4.1", "kind": "openai", "summary": _GPT, "model_args": _GPT_ARGS},
]
