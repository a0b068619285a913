"""Small copies of open_clip's repositories: laion's and timm's, with small architectures or those of their names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from support.hub_models import copy_files, spread, write_card, write_pickle, write_safetensors
from support.hub_repos import write_repository
from support.hub_tokenizers import token, write_clip, write_gemma, write_json, write_sentencepiece

TOWER = {"width": 32, "layers": 2}
HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
CLIP_MEAN = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}


def laion(
    root: Path,
    repo: str,
    main: str,
    *,
    patch: int,
    safe: str | None = None,
    pull: tuple[str, str] | None = None,
    architecture: str | None = None,
) -> None:
    """A CLIP of laion's.

    Args:
        root: of the stand-in hub.
        repo: id.
        main: commit.
        patch: size of the small model's patches.
        safe: name of the safetensors on main, if there are any.
        pull: reference and commit of a bot's safetensors, which have a name of their own.
        architecture: open_clip's name of the full-size model that its tags build; without, a small one.
    """
    refs = {"main": main} | ({pull[0]: pull[1]} if pull else {})
    repository = write_repository(root, "models", repo, refs)
    folder = repository.folder / main
    write_clip(folder, repo)
    shape: dict[str, Any] = {
        "embed_dim": 24,
        "vision_cfg": {**TOWER, "head_width": 16, "image_size": 224, "patch_size": patch},
        "text_cfg": {**TOWER, "heads": 2, "context_length": 77, "vocab_size": 49408},
    }
    tensors = _written(folder, shape, CLIP_MEAN, architecture)
    # transformers' own files lie beside open_clip's.
    write_json(folder / "config.json", {"architectures": ["CLIPModel"], "model_type": "clip"})
    write_json(folder / "preprocessor_config.json", {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224})
    write_card(folder, "mit", "CLIP of LAION")
    if safe:
        write_safetensors(tensors, folder / safe)
    if architecture is None or not safe:
        write_pickle(tensors, folder / "open_clip_pytorch_model.bin")
    foreign = {"text_model.embeddings.token_embedding.weight": tensors["logit_scale"].reshape(1)}
    write_pickle(foreign, folder / "pytorch_model.bin")
    if pull:
        copy_files(folder, repository.folder / pull[1])
        write_safetensors(tensors, repository.folder / pull[1] / "open_clip_pytorch_model.safetensors")


def timm_siglip(root: Path, repo: str, main: str, *, version: int, architecture: str | None = None) -> None:
    """A SigLIP of timm's: no ``config.json``, a tokenizer that the configuration names by this repository's id."""
    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    if version == 1:
        tokens = write_sentencepiece(folder)
        (folder / "spiece.model").unlink()
        named = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
        write_json(folder / "special_tokens_map.json", named)
        added = {"1": {**token("</s>"), "special": True}, "2": {**token("<unk>"), "special": True}}
        write_json(
            folder / "tokenizer_config.json",
            {
                **{"added_tokens_decoder": added, "additional_special_tokens": [], **named, "extra_ids": 0},
                **{"clean_up_tokenization_spaces": True, "model_max_length": 64, "sp_model_kwargs": {}},
                "tokenizer_class": "T5Tokenizer",
            },
        )
    else:
        tokens = write_gemma(folder)
    text = {
        **{"context_length": 64, "vocab_size": tokens, "hf_tokenizer_name": repo, "heads": 2, "layers": 2},
        **{"tokenizer_kwargs": {"clean": "canonicalize"}, "width": 64, "no_causal_mask": True, "proj_bias": True},
        **{"pool_type": "last", "norm_kwargs": {"eps": 1e-06}},
    }
    shape = {
        **{"embed_dim": 64, "init_logit_bias": -10, "custom_text": True},
        "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"},
        "text_cfg": text,
    }
    preprocess = {**HALF, "interpolation": "bicubic", "resize_mode": "squash"}
    tensors = _written(folder, shape, preprocess, architecture)
    write_card(folder, "apache-2.0", "SigLIP of timm")
    # That the first has safetensors, too, is not established.
    if version == 1:
        write_pickle(tensors, folder / "open_clip_pytorch_model.bin")
    else:
        write_safetensors(tensors, folder / "open_clip_model.safetensors")


def _written(
    folder: Path, shape: dict[str, Any], preprocess: dict[str, Any], architecture: str | None
) -> dict[str, Any]:
    """Writes the configuration; gives the tensors of a random model with it."""
    import open_clip
    import torch

    if architecture is not None:
        shape = open_clip.get_model_config(architecture)
    write_json(folder / "open_clip_config.json", {"model_cfg": shape, "preprocess_cfg": preprocess})
    torch.manual_seed(12)
    logging.disable(logging.WARNING)  # open_clip warns that these weights are random
    try:
        model = open_clip.create_model(architecture or f"local-dir:{folder}", load_weights=False)
    finally:
        logging.disable(logging.NOTSET)
    spread(model, 1.0 if architecture else 3.0)
    with torch.no_grad():
        model.logit_scale.fill_(4.6)
        if model.logit_bias is not None:
            model.logit_bias.fill_(-12.0)
    return dict(model.state_dict())
