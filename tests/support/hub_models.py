"""Small copies of models' repositories: their names, commits and formats of weights, with random tiny models."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from support import siglip_tokenizers, tiny_models
from support.hub_repos import write_repository


def write_model(
    root: Path,
    repo: str,
    make: Callable[[Path], object],
    main: str,
    *,
    pull: tuple[str, str] | None = None,
    pickled: bool = False,
    dtype: str = "float32",
    positions: tuple[str, ...] = (),
    decoys: tuple[str, ...] = (),
) -> None:
    """Writes a repository of transformers.

    Args:
        root: of the stand-in for the Hub.
        repo: id.
        make: writes configuration, tokenizer, processor and ``model.safetensors`` into a folder.
        main: commit.
        pull: reference and commit of a pull request: what main has, with safetensors.
        pickled: whether the weights on main are a pickle.
        dtype: of the stored weights.
        positions: buffers that older versions of transformers stored too.
        decoys: files that no run needs; what is fetched of them cannot be read.
    """
    folder = write_repository(root, "models", repo, {"main": main, **dict([pull] if pull else [])}).folder
    make(folder / main)
    weights = folder / main / "model.safetensors"
    tensors = {name: one.to(getattr(torch, dtype)) for name, one in load_file(weights).items()}
    weights.unlink()
    for name in decoys:
        (folder / main / name).parent.mkdir(exist_ok=True)
        (folder / main / name).write_bytes(f"{name} is not for ttmbench".encode() * 200)
    if pickled:
        buffers = {name: torch.arange(512).unsqueeze(0) for name in positions}
        torch.save({**tensors, **buffers}, folder / main / "pytorch_model.bin")
    else:
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


def timm_siglip(root: Path, repo: str, main: str, *, version: int) -> None:
    """A SigLIP of timm's: no ``config.json``, a tokenizer that the configuration names by this repository's id."""
    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    (siglip_tokenizers.t5 if version == 1 else siglip_tokenizers.gemma)(folder)
    shape = timm_shape(repo, SIGLIP_WORDS if version == 1 else SIGLIP2_WORDS)
    tensors = _open_clip(folder, shape)
    if version == 1:  # whether the first has safetensors too is not known
        torch.save(tensors, folder / "open_clip_pytorch_model.bin")
    else:
        save_file(tensors, folder / "open_clip_model.safetensors")


def timm_shape(repo: str, rows: int) -> dict[str, object]:
    """The configuration of timm's SigLIPs but for width and depth."""
    return {
        **{"embed_dim": 64, "init_logit_bias": -10, "custom_text": True},
        "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"},
        "text_cfg": {
            **{"context_length": 64, "vocab_size": rows, "hf_tokenizer_name": repo, "heads": 2, "layers": 2},
            **{"tokenizer_kwargs": {"clean": "canonicalize"}, "width": 32, "no_causal_mask": True, "proj_bias": True},
            **{"pool_type": "last", "norm_kwargs": {"eps": 1e-06}},
        },
    }


def _open_clip(folder: Path, shape: dict[str, object]) -> dict[str, torch.Tensor]:
    """Writes the configuration; returns the tensors of a random model with it."""
    import open_clip

    preprocess = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "squash"}
    config = {"model_cfg": shape, "preprocess_cfg": preprocess if "custom_text" in shape else {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(12)
    logging.disable(logging.WARNING)  # open_clip warns that these weights are random
    try:
        model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    finally:
        logging.disable(logging.NOTSET)
    return dict(model.state_dict())


# --- all of them -------------------------------------------------------------------------------------------------

_EXPORTS = tuple(f"onnx/{name}.onnx" for name in ("decoder_model_merged", "embed_tokens_q4", "vision_encoder"))
MODELS: dict[str, dict[str, object]] = {  # repository -> arguments of `write_model`
    "openai/clip-vit-base-patch32": {
        **{"make": tiny_models.clip, "pickled": True, "decoys": ("tf_model.h5", "flax_model.msgpack")},
        "positions": ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"),
        "main": "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268",
        "pull": ("refs/pr/21", "c237dc49a33fc61debc9276459120b7eac67e7ef"),
    },
    "google/siglip-base-patch16-224": {"make": siglip, "main": "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed"},
    "google/siglip2-base-patch16-224": {
        **{"make": partial(siglip, version=2), "main": "75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2"}
    },
    "Salesforce/blip-itm-base-coco": {
        **{"make": partial(tiny_models.blip, captioner=False), "pickled": True, "decoys": ("tf_model.h5",)},
        **{"positions": ("text_encoder.position_ids",), "main": "bed8ad38cb2d04a5a4bdf2d071b3c3c0a4aa724c"},
    },
    "HuggingFaceTB/SmolVLM-256M-Instruct": {
        **{"make": partial(tiny_models.chat, kind="idefics3"), "dtype": "bfloat16", "decoys": _EXPORTS},
        "main": "cee7dc33d83ff2ddec17238b7aba85145169e631",
        "pull": ("refs/pr/1", "7e3e67edbbed1bf9888184d9df282b700a323964"),
    },
}
WRITERS: dict[str, Callable[..., None]] = {  # repository -> what writes it below a root
    **{repo: partial(write_model, repo=repo, **how) for repo, how in MODELS.items()},
    **{
        repo: partial(timm_siglip, repo=repo, main=main, version=version)
        for repo, main, version in (
            ("timm/ViT-B-16-SigLIP", "41f575766f40e752fdd1383e9565b7f02388c1c4", 1),
            ("timm/ViT-B-16-SigLIP2", "eee10eff6dd8cabae2d7f379d4e8cfcd352030aa", 2),
        )
    },
}
