"""The models that have a name: where each comes from, at which commit, and what a person wants to know beforehand.

A row here is a name; a kind of model is a module beside this one with `load`. Commits are pinned where they are known,
and to one that holds safetensors where there is one. Sizes are of the files that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ttmbench.types import AdapterSpec, ModelCard

_HERE = "ttmbench.model_adapters"
_OPTIONS = {
    "tiny_clip": "TinyClipOptions",
    "hf": "ContrastiveOptions",
    "itc": "ContrastiveHalfOptions",
    "itm": "MatchingOptions",
    "vqascore": "VqaScoreOptions",
    "choice": "ChoiceOptions",
    "visualgpt": "VisualGptOptions",
    "blind": "BlindOptions",
    "open_clip": "OpenClipOptions",
    "embeddings": "EmbeddingsOptions",
    "openai": "ServedOptions",
}
_APACHE, _BSD, _MIT = "Apache-2.0", "BSD-3-Clause", "MIT"
_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_OPEN_CLIP, _OPENAI = ("open_clip_torch",), ("ttmbench[api]",)
_TINY = {"lr": 5e-4, "epochs": 5}
_TINY_BYTES = 983_932
_GB = 1_000_000_000
# Image collections, as the models' papers and cards state them.
_WEB = ("coco", "visual-genome", "conceptual-captions", "sbu", "laion")  # BLIP's 129 million images, and BLIP-2's
_PMD = (
    *("coco", "visual-genome", "conceptual-captions", "sbu", "localized-narratives", "wit", "redcaps", "yfcc"),
    "imagenet",
)
_CAULDRON = ("the-cauldron", "docmatix", "coco", "visual-genome")  # the last two by way of the first


def adapters() -> list[AdapterSpec]:
    """Every name, as the registry takes it."""
    before = [*_built_in(), *_kinds(), *map(_hub_model, _CONTRASTIVE), *_open_clip()]
    return [*before, *_matching(), *map(_hub_model, _GENERATIVE), *_served()]


def _spec(name: str, kind: str, summary: str, **more: Any) -> AdapterSpec:
    options = f"{_HERE}._shared.options:{_OPTIONS[kind]}"
    return AdapterSpec(name, f"{_HERE}.{kind}:load", summary, options=options, **more)


def _built_in() -> Iterator[AdapterSpec]:
    card = ModelCard(_SAFETENSORS, _TINY_BYTES, _APACHE, trained_on=("rendered-scenes",), quick_gelu=True)
    for seed, name, summary in (
        (0, "tiny-clip", "built-in CLIP trained on rendered scenes; needs no download"),
        (1, "tiny-clip-seed1", "tiny-clip trained with another seed"),
    ):
        yield _spec(name, "tiny_clip", summary, model_args={"training_seed": seed}, ttm_defaults=_TINY, card=card)


def _kinds() -> Iterator[AdapterSpec]:
    """Kinds of models: the user says which one."""
    of_open_clip = "any model of open_clip: --model_args model=<name>,pretrained=<tag or file>, or model=hf-hub:<id>"
    of_features = "stored features with trainable residual heads: --model_args path=FILE"
    choices = "forced choices of any model with a chat template: --model_args pretrained=<hub id>[,side_by_side=true]"
    yield _spec("hf", "hf", "any CLIP or SigLIP of transformers: --model_args pretrained=<hub id or folder>")
    yield _spec("open_clip", "open_clip", of_open_clip, needs=_OPEN_CLIP)
    yield _spec("embeddings", "embeddings", of_features, ttm_defaults={"lr": 3e-4})
    yield _spec("vqascore", "vqascore", "P(yes) of any model with a chat template: --model_args pretrained=<hub id>")
    yield _spec("visualgpt", "visualgpt", "P(caption|image) of a generative model: --model_args pretrained=<hub id>")
    yield _spec("choice", "choice", choices)
    yield _spec("blind", "blind", "P(caption) without the image: --model_args pretrained=<hub id>")


_CONTRASTIVE = (
    # The models of the TTM paper that share transformers' dual-encoder API. main of the CLIPs has no safetensors; these
    # commits, proposed to it, have.
    (
        *("siglip-b16", "hf", "SigLIP base, patch 16, 224 px"),
        *("google/siglip-base-patch16-224", "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed"),
        ModelCard(_SAFETENSORS, int(0.81 * _GB), _APACHE, trained_on=("webli",)),
    ),
    (
        *("siglip-l16", "hf", "SigLIP large, patch 16, 256 px"),
        *("google/siglip-large-patch16-256", "d0da9f876e7d66b4e250cd2450c3ba2ce735e447"),
        ModelCard(_SAFETENSORS, int(2.6 * _GB), _APACHE, trained_on=("webli",)),
    ),
    (
        *("clip-b16", "hf", "CLIP base, patch 16, 224 px"),
        *("openai/clip-vit-base-patch16", "5ef227a78de3f75873f373246dac80def63b0003"),
        ModelCard(_SAFETENSORS, int(0.6 * _GB), quick_gelu=True),
    ),
    (
        *("clip-b32", "hf", "CLIP base, patch 32, 224 px"),
        *("openai/clip-vit-base-patch32", "c237dc49a33fc61debc9276459120b7eac67e7ef"),
        ModelCard(_SAFETENSORS, 605_157_884, quick_gelu=True),
    ),
)
_GENERATIVE = (
    (
        *("vqascore-smolvlm-256m", "vqascore", "SmolVLM 256M, asked whether the image shows the caption"),
        *("HuggingFaceTB/SmolVLM-256M-Instruct", "7e3e67edbbed1bf9888184d9df282b700a323964"),
        ModelCard(_SAFETENSORS, 513_028_808, _APACHE, trained_on=_CAULDRON),
    ),
    (  # main has no safetensors; this commit, proposed to it, has
        *("visualgpt-blip", "visualgpt", "BLIP base, captioner: P(caption|image)"),
        *("Salesforce/blip-image-captioning-base", "4d828b6083e66786427fc15ccba5d7b8ff028a0c"),
        ModelCard(_SAFETENSORS, 989_820_849, _BSD, trained_on=_WEB),
    ),
    (
        *("visualgpt-blip2", "visualgpt", "BLIP-2 with OPT 2.7B: P(caption|image)"),
        *("Salesforce/blip2-opt-2.7b", "59a1ef6c1e5117b3f65523d1c6066825bcf315e3"),
        ModelCard("model.safetensors in two shards", 14_978_207_136, _MIT, trained_on=_WEB),
    ),
)


def _hub_model(row: tuple[str, str, str, str, str, ModelCard]) -> AdapterSpec:
    name, kind, summary, pretrained, commit, card = row
    return _spec(name, kind, summary, model_args=_pin(pretrained, commit), card=card)


def _open_clip() -> Iterator[AdapterSpec]:
    tags = {
        "vit-b32": (
            ("CLIP base, patch 32, 224 px, trained on LAION-2B", "ViT-B-32", "laion2b_s34b_b79k"),
            "1a25a446712ba5ee05982a381eed697ef9b435cf",
            ModelCard("open_clip_model.safetensors", 605_143_316, _MIT, trained_on=("laion",), quick_gelu=False),
        ),
        "vit-b16": (
            ("CLIP base, patch 16, 224 px, trained on DataComp-XL", "ViT-B-16", "datacomp_xl_s13b_b90k"),
            "05fa70d888b3dcddcaeb5906c71e35e736bc8d42",  # refs/pr/2; main has no safetensors
            ModelCard(
                "open_clip_pytorch_model.safetensors", int(0.6 * _GB), _MIT, trained_on=("datacomp",), quick_gelu=False
            ),
        ),
        "vit-l14": (
            ("CLIP large, patch 14, 224 px, trained on DataComp-XL", "ViT-L-14", "datacomp_xl_s13b_b90k"),
            "84c9828e63dc9a9351d1fe637c346d4c1c4db341",
            ModelCard("open_clip_pytorch_model.bin", int(1.7 * _GB), _MIT, trained_on=("datacomp",), quick_gelu=False),
        ),
        "siglip-b16": (
            ("SigLIP base, patch 16, 224 px", "ViT-B-16-SigLIP", "webli"),
            "41f575766f40e752fdd1383e9565b7f02388c1c4",
            ModelCard(
                "open_clip_model.safetensors, else open_clip_pytorch_model.bin",
                int(0.81 * _GB),
                _APACHE,
                trained_on=("webli",),
            ),
        ),
        "siglip2-b16": (
            ("SigLIP 2 base, patch 16, 224 px", "ViT-B-16-SigLIP2", "webli"),
            "eee10eff6dd8cabae2d7f379d4e8cfcd352030aa",
            ModelCard("open_clip_model.safetensors", 1_500_786_832, _APACHE, trained_on=("webli",)),
        ),
    }
    for name, ((summary, model, tag), commit, card) in tags.items():
        arguments = {"model": model, "pretrained": tag, "revision": commit}
        yield _spec(f"open_clip-{name}", "open_clip", summary, needs=_OPEN_CLIP, model_args=arguments, card=card)


def _matching() -> Iterator[AdapterSpec]:
    """Models in which image and caption meet before the last layer, and their contrastive halves."""
    for name, title, arguments, card in (
        (
            "blip",
            "BLIP base",
            _pin("Salesforce/blip-itm-base-coco", "bed8ad38cb2d04a5a4bdf2d071b3c3c0a4aa724c"),
            ModelCard(_PICKLE, 895_139_697, _BSD, trained_on=_WEB),
        ),
        (
            "blip2",
            "BLIP-2, first stage",
            _pin("Salesforce/blip2-itm-vit-g", "520bf73fd0ef6ccce791cd3f06908040aef2d8cc"),
            ModelCard(f"{_SAFETENSORS}, or its shards", int(4.7 * _GB), _MIT, trained_on=_WEB),
        ),
        (
            "flava",
            "FLAVA",
            {"pretrained": "facebook/flava-full"},  # no commit of it is known
            ModelCard(f"{_SAFETENSORS}, else {_PICKLE}", int(1.43 * _GB), _BSD, trained_on=_PMD),
        ),
    ):
        yield _spec(f"{name}-itc", "itc", f"{title}: contrastive half", model_args=arguments, card=card)
        yield _spec(f"{name}-itm", "itm", f"{title}: matching head", model_args=arguments, card=card)


def _served() -> Iterator[AdapterSpec]:
    yield _spec(
        "openai",
        "openai",
        "any model behind an OpenAI-compatible server: --model_args model=<name>[,base_url=...][,scorer=choice]",
        needs=_OPENAI,
    )
    yield _spec(
        "gpt-4.1",
        "openai",
        "GPT-4.1 of 2025-04-14, VQAScore from log-probabilities; prices as OpenAI listed them at its release",
        needs=_OPENAI,
        model_args={"model": "gpt-4.1-2025-04-14", "price_in": 2.0, "price_out": 8.0},
    )


def _pin(pretrained: str, commit: str) -> Mapping[str, str]:
    return {"pretrained": pretrained, "revision": commit}
