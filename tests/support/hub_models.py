"""Small copies of models' repositories: their names, commits and formats of weights, with random tiny models."""

from __future__ import annotations

import shutil
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import transformers
from safetensors.torch import load_file, save_file

from support import siglip_tokenizers, tiny_models
from support.hub_repos import made_up_commit, write_repository

EMBEDDING, RERANKER = "Qwen/Qwen3-VL-Embedding-2B", "Qwen/Qwen3-VL-Reranker-2B"
COLQWEN, COLMODERN, GEMMA = "vidore/colqwen2-v1.0-hf", "ModernVBERT/colmodernvbert-merged", "google/embeddinggemma-2"
GEMMAS, SENTENCE = "914f7f89142e33e77833254d9c9b90c3cef7303b", tiny_models.sentence_model
Saved = Literal["safetensors", "pickle", "both"]


def write_model(
    root: Path,
    repo: str,
    make: Callable[[Path], object],
    main: str,
    *,
    pull: tuple[str, str] | None = None,
    saved: Saved | int = "safetensors",
    dtype: str | None = None,
    rename: Callable[[str], str] = str,
    positions: tuple[str, ...] = (),
    decoys: tuple[str, ...] = (),
) -> None:
    """Writes a repository of transformers; ``pull``, a pull request, has what main has as safetensors.

    ``saved`` is the format on main, or a number of shards; ``positions`` are buffers that older versions stored too,
    ``decoys`` files that no run needs.
    """
    from huggingface_hub import save_torch_state_dict

    folder = write_repository(root, "models", repo, {"main": main, **dict([pull] if pull else [])}).folder
    make(folder / main)
    weights = folder / main / "model.safetensors"
    tensors = {rename(name): one.to(getattr(torch, dtype or "float32")) for name, one in load_file(weights).items()}
    weights.unlink()
    for name in decoys:
        (folder / main / name).parent.mkdir(exist_ok=True)
        (folder / main / name).write_bytes(f"{name} is not for ttmbench".encode() * 200)
    if saved in ("pickle", "both"):
        buffers = {name: torch.arange(512).unsqueeze(0) for name in positions}
        torch.save({**tensors, **buffers}, folder / main / "pytorch_model.bin")
    if isinstance(saved, int):
        size = sum(one.nbytes for one in tensors.values())
        save_torch_state_dict(tensors, folder / main, max_shard_size=size * 10 // (saved * 10 - 5))
        assert len(list((folder / main).glob("model-*.safetensors"))) == saved
    if saved in ("safetensors", "both"):
        save_file(tensors, weights, {"format": "pt"})
    if pull:
        shutil.copytree(folder / main, folder / pull[1], dirs_exist_ok=True)
        save_file(tensors, folder / pull[1] / "model.safetensors", {"format": "pt"})


# Rows of the embeddings are those of the releases; vocabularies are small.
SIGLIP_WORDS, SIGLIP2_WORDS = 32_000, 256_000


def siglip(folder: Path, *, version: int = 1) -> None:
    """SigLIP with its SentencePiece tokenizer; SigLIP 2 of one resolution, in configuration SigLIP, with Gemma's."""
    rows = SIGLIP_WORDS if version == 1 else SIGLIP2_WORDS
    tiny_models.siglip(folder, rows=rows, length=siglip_tokenizers.LENGTH)
    for file in ("tokenizer.json", "special_tokens_map.json"):  # the second by transformers 4 alone
        (folder / file).unlink(missing_ok=True)
    (siglip_tokenizers.siglip if version == 1 else siglip_tokenizers.gemma)(folder)


def bridgetower(folder: Path) -> None:
    """With RoBERTa's tokenizer, whose settings are not among the files."""
    tiny_models.bridgetower(folder)
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "\u0120", *string.ascii_lowercase]
    transformers.RobertaTokenizer({word: at for at, word in enumerate(words)}, []).save_pretrained(folder)
    (folder / "tokenizer_config.json").unlink()


def gpt2(root: Path, repo: str, main: str) -> None:
    """GPT-2, whose id has another repository by now; its tensors have no prefix, and buffers are among them."""
    write_repository(root, "models", "gpt2", {}, moved_to=repo)
    others = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "64.tflite", "onnx/decoder_model.onnx")
    make = partial(tiny_models.language_model, kind="gpt2")
    buffers = ("h.0.attn.bias", "h.1.attn.bias")
    how = {"rename": lambda name: name.removeprefix("transformer."), "positions": buffers, "decoys": others}
    write_model(root, repo, make, main, saved="both", **how)


def laion(root: Path, repo: str, main: str, *, safe: str | None = None, pull: tuple[str, str] | None = None) -> None:
    """A CLIP of LAION for open_clip: a pickle, and a ``safe`` file or a bot's in a ``pull`` request."""
    folder = write_repository(root, "models", repo, {"main": main, **dict([pull] if pull else [])}).folder
    tiny_models.open_clip(folder / main, files=[*([safe] if safe else []), "open_clip_pytorch_model.bin"])
    # transformers' own files lie beside open_clip's.
    (folder / main / "config.json").write_text('{"architectures": ["CLIPModel"], "model_type": "clip"}')
    torch.save({"text_model.embeddings.weight": torch.ones(1)}, folder / main / "pytorch_model.bin")
    if pull:
        shutil.copytree(folder / main, folder / pull[1], dirs_exist_ok=True)
        tiny_models.open_clip(folder / pull[1], files=["open_clip_pytorch_model.safetensors"])


def timm_siglip(root: Path, repo: str, main: str, *, version: int) -> None:
    """A SigLIP of timm's: no ``config.json``, a tokenizer that the configuration names by this repository's id."""
    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    (siglip_tokenizers.t5 if version == 1 else siglip_tokenizers.gemma)(folder)
    shape = tiny_models.timm_shape(repo, SIGLIP_WORDS if version == 1 else SIGLIP2_WORDS)
    # Whether the first has safetensors too is not known.
    file = "open_clip_pytorch_model.bin" if version == 1 else "open_clip_model.safetensors"
    half = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    tiny_models.open_clip(folder, shape, half, [file])


_CLIP_POSITIONS = ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids")
_OTHERS = ("tf_model.h5", "flax_model.msgpack")
_CLIP = {"make": tiny_models.clip, "positions": _CLIP_POSITIONS, "decoys": _OTHERS}
_BLIP = {"saved": "pickle", "decoys": _OTHERS[:1]}
_CAPTIONS = {"make": partial(tiny_models.blip, captioner=True), "positions": ("text_decoder.bert.position_ids",)}
_MATCHES = {"make": partial(tiny_models.blip, captioner=False), "positions": ("text_encoder.position_ids",)}
_EXPORTS = tuple(f"onnx/{name}.onnx" for name in ("decoder_model_merged", "embed_tokens_q4", "vision_encoder"))
_OLD_SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json")


def _old_llava(name: str) -> str:
    return name.replace("vision_tower.", "vision_tower.vision_model.", 1)


MODELS: dict[str, dict[str, object]] = {  # repository -> arguments of `write_model`
    "openai/clip-vit-base-patch32": {
        **{**_CLIP, "saved": "pickle", "main": "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268"},
        "pull": ("refs/pr/21", "c237dc49a33fc61debc9276459120b7eac67e7ef"),
    },
    "openai/clip-vit-base-patch16": {
        **{**_CLIP, "saved": "pickle", "main": "57c216476eefef5ab752ec549e440a49ae4ae5f3"},
        "pull": ("refs/pr/17", "5ef227a78de3f75873f373246dac80def63b0003"),
    },
    "openai/clip-vit-large-patch14": {**_CLIP, "saved": "both", "main": "32bd64288804d66eefd0ccbe215aa642df71cc41"},
    "google/siglip-base-patch16-224": {"make": siglip, "main": "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed"},
    "google/siglip-large-patch16-256": {"make": siglip, "main": "d0da9f876e7d66b4e250cd2450c3ba2ce735e447"},
    "google/siglip2-base-patch16-224": {
        **{"make": partial(siglip, version=2), "main": "75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2"}
    },
    "Salesforce/blip-itm-base-coco": {**_MATCHES, **_BLIP, "main": "bed8ad38cb2d04a5a4bdf2d071b3c3c0a4aa724c"},
    "Salesforce/blip-image-captioning-base": {
        **{**_CAPTIONS, **_BLIP, "main": "82a37760796d32b1411fe092ab5d4e227313294b"},
        "pull": ("refs/pr/50", "4d828b6083e66786427fc15ccba5d7b8ff028a0c"),
    },
    "Salesforce/blip2-itm-vit-g": {
        **{"make": partial(tiny_models.blip2, captioner=False), "saved": "both"},
        "main": "520bf73fd0ef6ccce791cd3f06908040aef2d8cc",
    },
    "Salesforce/blip2-opt-2.7b": {
        **{"make": partial(tiny_models.blip2, captioner=True), "saved": 2, "decoys": _OLD_SHARDS},
        "main": "59a1ef6c1e5117b3f65523d1c6066825bcf315e3",
    },
    "facebook/flava-full": {
        **{"make": tiny_models.flava, "saved": "pickle", "main": made_up_commit("facebook/flava-full")},
        "positions": ("flava.text_model.embeddings.position_ids",),
    },
    "HuggingFaceTB/SmolVLM-256M-Instruct": {
        **{"make": partial(tiny_models.chat, kind="idefics3"), "dtype": "bfloat16", "decoys": _EXPORTS},
        "main": "cee7dc33d83ff2ddec17238b7aba85145169e631",
        "pull": ("refs/pr/1", "7e3e67edbbed1bf9888184d9df282b700a323964"),
    },
    "llava-hf/llava-1.5-7b-hf": {
        **{"make": partial(tiny_models.chat, kind="llava"), "dtype": "float16", "rename": _old_llava, "saved": 3},
        "main": "b234b804b114d9e37bb655e11cbbb5f5e971b7a9",
    },
    "Qwen/Qwen3-VL-2B-Instruct": {
        **{"make": partial(tiny_models.chat, kind="qwen3_vl"), "dtype": "bfloat16"},
        "main": "89644892e4d85e24eaac8bacfd4f463576704203",
    },
    "microsoft/xclip-base-patch32": {
        **{"make": tiny_models.xclip, "saved": "both", "main": "a2e27a78a2b5d802e894b8a1ef14f3a8ce490963"}
    },
    "google/videoprism-lvt-base-f16r288": {
        **{"make": tiny_models.videoprism, "main": "fb6de9f0eb7bc285be86bdca1cf7daa3e3ef51ff"}
    },
    "BridgeTower/bridgetower-base-itm-mlm": {
        **{"make": bridgetower, "saved": "pickle"},
        "main": "6cfb318bb08588808368a9ab1fe26609bc148f1f",
    },
    "florence-community/Florence-2-base": {
        **{"make": tiny_models.florence2, "dtype": "float16", "main": "00921df66db728a9ceb750f5eca43e5c203a2051"}
    },
    "microsoft/kosmos-2-patch14-224": {
        **{"make": tiny_models.kosmos2, "saved": "both", "main": "e91cfbcb4ce051b6a55bfb5f96165a3bbf5eb82c"}
    },
    **{
        name: {"make": partial(make, kind=kind), "dtype": "bfloat16", "main": commit}
        for name, make, kind, commit in (
            (EMBEDDING, SENTENCE, "SentenceTransformer", "9f2f7e710d6d81056aa5c0a4f04764fec6bb7bda"),
            (RERANKER, SENTENCE, "CrossEncoder", "4bd860ac4f15ad1897a214615cccc700f8f71818"),
            (COLQWEN, tiny_models.retriever, "ColQwen2", "ddc07d2317c80f75fc742b7362ee9ad1912908f9"),
            ("vidore/colpali-v1.3-hf", tiny_models.retriever, "ColPali", "133a9eb02947310513f52f8f0d39d622e0eab8dc"),
            (GEMMA, partial(SENTENCE, family="embedding_gemma2"), "SentenceTransformer", GEMMAS),
            (COLMODERN, partial(SENTENCE, family="modernvbert"), "MultiVectorEncoder", made_up_commit(COLMODERN)),
        )
    },
    **{
        name: {"make": make, "saved": "pickle", "main": made_up_commit(name)}
        for name, make in (
            ("dandelin/vilt-b32-finetuned-flickr30k", tiny_models.vilt),
            ("dandelin/vilt-b32-finetuned-coco", tiny_models.vilt),
            ("microsoft/git-base-coco", tiny_models.git),
        )
    },
}
WRITERS: dict[str, Callable[..., None]] = {  # repository -> what writes it below a root
    **{repo: partial(write_model, repo=repo, **how) for repo, how in MODELS.items()},
    "openai-community/gpt2": partial(
        gpt2, repo="openai-community/gpt2", main="607a30d783dfa663caf39e06633721c8d4cfcd7e"
    ),
    **{
        repo: partial(write, repo=repo, main=main, **how)
        for repo, write, main, how in (
            (
                *("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", laion, "1a25a446712ba5ee05982a381eed697ef9b435cf"),
                {"safe": "open_clip_model.safetensors"},
            ),
            (
                *("laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K", laion, "d110532e8d4ff91c574ee60a342323f28468b287"),
                {"pull": ("refs/pr/2", "05fa70d888b3dcddcaeb5906c71e35e736bc8d42")},
            ),
            ("laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K", laion, "84c9828e63dc9a9351d1fe637c346d4c1c4db341", {}),
            ("timm/ViT-B-16-SigLIP", timm_siglip, "41f575766f40e752fdd1383e9565b7f02388c1c4", {"version": 1}),
            ("timm/ViT-B-16-SigLIP2", timm_siglip, "eee10eff6dd8cabae2d7f379d4e8cfcd352030aa", {"version": 2}),
        )
    },
}
