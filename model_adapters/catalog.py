"""The models that have a name: kind, commit, and a card for users.

A kind of model is a module beside this one with `load`. Commits are pinned where they are known, and to one with
safetensors where there is one. Sizes are of the files that are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

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
    "open_clip": "open_clip_options:OpenClipOptions",
    "embeddings": "options:EmbeddingsOptions",
    "openai": "served_options:ServedOptions",
    "vllm": "served_options:VllmOptions",
}
_APACHE, _BSD, _MIT = "Apache-2.0", "BSD-3-Clause", "MIT"
_SAFETENSORS, _PICKLE, _PICKLED = "model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model"
_NEEDS = {"open_clip": ("open_clip_torch",), "openai": ("ttmbench[api]",), "vllm": ("ttmbench[vllm]",)}
_TINY = {"lr": 5e-4, "epochs": 5}
_GB = 1_000_000_000
# Image collections, as the models' papers and cards list them.
_WEB = ("coco", "visual-genome", "conceptual-captions", "sbu", "laion")  # BLIP's 129 million images, and BLIP-2's
_PMD = (
    *("coco", "visual-genome", "conceptual-captions", "sbu", "localized-narratives", "wit", "redcaps", "yfcc"),
    "imagenet",
)
_CAULDRON = ("the-cauldron", "docmatix", "coco", "visual-genome")  # the last two by way of the first


def adapters() -> list[AdapterSpec]:
    """Every name, as the registry takes it."""
    return [*_BUILT_IN, *_KINDS, *_CONTRASTIVE, *_OPEN_CLIP, *_FUSED, *_GENERATIVE, *_SERVED, *listed()]


def listed() -> list[AdapterSpec]:
    """The rows of ``named_models.json``: models finetuned for compositionality, and tags of open_clip."""
    rows = json.loads(Path(__file__).with_name("named_models.json").read_text(encoding="utf-8"))
    for row in rows:
        collections = row["card"].pop("trained_on", None)
        row["card"] = ModelCard(**row["card"], trained_on=None if collections is None else tuple(collections))
    return [_spec(**row) for row in rows]


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


def _pinned(name: str, kind: str, summary: str, pretrained: str, commit: str | None, card: ModelCard) -> AdapterSpec:
    return _spec(name, kind, summary, {"pretrained": pretrained} | ({"revision": commit} if commit else {}), card)


def _tagged(name: str, summary: str, model: str, tag: str, commit: str, card: ModelCard) -> AdapterSpec:
    arguments = {"model": model, "pretrained": tag, "revision": commit}
    return _spec(f"open_clip-{name}", "open_clip", summary, arguments, card)


_TINY_CARD = ModelCard(_SAFETENSORS, 983_932, _APACHE, trained_on=("rendered-scenes",), quick_gelu=True)
_BUILT_IN = [
    _spec(name, "tiny_clip", summary, {"training_seed": seed}, _TINY_CARD, _TINY)
    for seed, name, summary in (
        (0, "tiny-clip", "built-in CLIP trained on rendered scenes; needs no download"),
        (1, "tiny-clip-seed1", "tiny-clip trained with another seed"),
    )
]
_KINDS = [
    _spec(kind, kind, summary, ttm_defaults=defaults)
    for kind, summary, defaults in (
        ("hf", "any CLIP or SigLIP of transformers: --model_args pretrained=<hub id or folder>", {}),
        (
            "open_clip",
            "any model of open_clip: --model_args model=<name>,pretrained=<tag or file>, or model=hf-hub:<id>",
            {},
        ),
        ("embeddings", "stored features with trainable residual heads: --model_args path=FILE", {"lr": 3e-4}),
        ("vqascore", "P(yes) of any model with a chat template: --model_args pretrained=<hub id>", {}),
        ("visualgpt", "P(caption|image) of a generative model: --model_args pretrained=<hub id>", {}),
        (
            "choice",
            "forced choices of any model with a chat template: --model_args pretrained=<hub id>[,side_by_side=true]",
            {},
        ),
        (
            "vllm",
            "vqascore, visualgpt or choice in vLLM's engine: --model_args pretrained=<hub id>[,scorer=choice]",
            {},
        ),
        ("blind", "P(caption) without the image: --model_args pretrained=<hub id>", {}),
    )
]
_CONTRASTIVE = [
    # The models of the TTM paper that share transformers' dual-encoder API. main of the CLIPs has no safetensors; these
    # commits, proposed to it, have.
    _pinned(
        *("siglip-b16", "hf", "SigLIP base, patch 16, 224 px"),
        *("google/siglip-base-patch16-224", "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed"),
        ModelCard(_SAFETENSORS, int(0.81 * _GB), _APACHE, trained_on=("webli",)),
    ),
    _pinned(
        *("siglip-l16", "hf", "SigLIP large, patch 16, 256 px"),
        *("google/siglip-large-patch16-256", "d0da9f876e7d66b4e250cd2450c3ba2ce735e447"),
        ModelCard(_SAFETENSORS, int(2.6 * _GB), _APACHE, trained_on=("webli",)),
    ),
    _pinned(
        *("clip-b16", "hf", "CLIP base, patch 16, 224 px"),
        *("openai/clip-vit-base-patch16", "5ef227a78de3f75873f373246dac80def63b0003"),
        ModelCard(_SAFETENSORS, int(0.6 * _GB), quick_gelu=True),
    ),
    _pinned(
        *("clip-b32", "hf", "CLIP base, patch 32, 224 px"),
        *("openai/clip-vit-base-patch32", "c237dc49a33fc61debc9276459120b7eac67e7ef"),
        ModelCard(_SAFETENSORS, 605_157_884, quick_gelu=True),
    ),
]
_OPEN_CLIP = [
    _tagged(
        *("vit-b32", "CLIP base, patch 32, 224 px, trained on LAION-2B", "ViT-B-32", "laion2b_s34b_b79k"),
        "1a25a446712ba5ee05982a381eed697ef9b435cf",
        ModelCard("open_clip_model.safetensors", 605_143_316, _MIT, trained_on=("laion",), quick_gelu=False),
    ),
    _tagged(
        *("vit-b16", "CLIP base, patch 16, 224 px, trained on DataComp-XL", "ViT-B-16", "datacomp_xl_s13b_b90k"),
        "05fa70d888b3dcddcaeb5906c71e35e736bc8d42",  # refs/pr/2; main has no safetensors
        ModelCard(f"{_PICKLED}.safetensors", int(0.6 * _GB), _MIT, trained_on=("datacomp",), quick_gelu=False),
    ),
    _tagged(
        *("vit-l14", "CLIP large, patch 14, 224 px, trained on DataComp-XL", "ViT-L-14", "datacomp_xl_s13b_b90k"),
        "84c9828e63dc9a9351d1fe637c346d4c1c4db341",
        ModelCard(f"{_PICKLED}.bin", int(1.7 * _GB), _MIT, trained_on=("datacomp",), quick_gelu=False),
    ),
    _tagged(
        *("siglip-b16", "SigLIP base, patch 16, 224 px", "ViT-B-16-SigLIP", "webli"),
        "41f575766f40e752fdd1383e9565b7f02388c1c4",
        ModelCard(f"open_clip_model.safetensors, else {_PICKLED}.bin", int(0.81 * _GB), _APACHE, trained_on=("webli",)),
    ),
    _tagged(
        *("siglip2-b16", "SigLIP 2 base, patch 16, 224 px", "ViT-B-16-SigLIP2", "webli"),
        "eee10eff6dd8cabae2d7f379d4e8cfcd352030aa",
        ModelCard("open_clip_model.safetensors", 1_500_786_832, _APACHE, trained_on=("webli",)),
    ),
]
_FUSED = [
    _pinned(f"{name}-{kind}", kind, f"{title}: {part}", pretrained, commit, card)
    for name, title, pretrained, commit, card in (
        (
            *("blip", "BLIP base"),
            *("Salesforce/blip-itm-base-coco", "bed8ad38cb2d04a5a4bdf2d071b3c3c0a4aa724c"),
            ModelCard(_PICKLE, 895_139_697, _BSD, trained_on=_WEB),
        ),
        (
            *("blip2", "BLIP-2, first stage"),
            *("Salesforce/blip2-itm-vit-g", "520bf73fd0ef6ccce791cd3f06908040aef2d8cc"),
            ModelCard(f"{_SAFETENSORS}, or its shards", int(4.7 * _GB), _MIT, trained_on=_WEB),
        ),
        (
            *("flava", "FLAVA"),
            *("facebook/flava-full", None),  # no commit of it is known
            ModelCard(f"{_SAFETENSORS}, else {_PICKLE}", int(1.43 * _GB), _BSD, trained_on=_PMD),
        ),
    )
    for kind, part in (("itc", "contrastive half"), ("itm", "matching head"))
]
_GENERATIVE = [
    _pinned(
        *("vqascore-smolvlm-256m", "vqascore", "SmolVLM 256M, asked whether the image shows the caption"),
        *("HuggingFaceTB/SmolVLM-256M-Instruct", "7e3e67edbbed1bf9888184d9df282b700a323964"),
        ModelCard(_SAFETENSORS, 513_028_808, _APACHE, trained_on=_CAULDRON),
    ),
    _pinned(  # main has no safetensors; this commit, proposed to it, has
        *("visualgpt-blip", "visualgpt", "BLIP base, captioner: P(caption|image)"),
        *("Salesforce/blip-image-captioning-base", "4d828b6083e66786427fc15ccba5d7b8ff028a0c"),
        ModelCard(_SAFETENSORS, 989_820_849, _BSD, trained_on=_WEB),
    ),
    _pinned(
        *("visualgpt-blip2", "visualgpt", "BLIP-2 with OPT 2.7B: P(caption|image)"),
        *("Salesforce/blip2-opt-2.7b", "59a1ef6c1e5117b3f65523d1c6066825bcf315e3"),
        ModelCard("model.safetensors in two shards", 14_978_207_136, _MIT, trained_on=_WEB),
    ),
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
