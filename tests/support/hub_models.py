"""Small copies of CLIP's, SigLIP's and SigLIP 2's repositories: real names, keys and formats, random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from support.hub_repos import write_repository
from support.hub_tokenizers import write_clip, write_gemma, write_json, write_sentencepiece

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
# What transformers wrote into every part of a configuration then.
OLD = {
    **{"_name_or_path": "", "add_cross_attention": False, "architectures": None, "attention_dropout": 0.0},
    **{"bad_words_ids": None, "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None},
    **{"decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False, "dropout": 0.0},
    **{"early_stopping": False, "encoder_no_repeat_ngram_size": 0, "exponential_decay_length_penalty": None},
    **{"finetuning_task": None, "forced_bos_token_id": None, "forced_eos_token_id": None},
    **{"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False, "is_encoder_decoder": False},
    **{"label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20, "min_length": 0},
    **{"no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1},
    **{"output_attentions": False, "output_hidden_states": False, "output_scores": False, "prefix": None},
    **{"problem_type": None, "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0},
    **{"return_dict": True, "return_dict_in_generate": False, "sep_token_id": None, "task_specific_params": None},
    **{"temperature": 1.0, "tie_encoder_decoder": False, "tie_word_embeddings": True, "tokenizer_class": None},
    **{"top_k": 50, "top_p": 1.0, "torch_dtype": None, "torchscript": False, "use_bfloat16": False},
}
CLIP_PIXELS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def saved_tensors(model: Any) -> dict[str, Any]:
    """A model's tensors by the names that ``save_pretrained`` gives them, which are those of the hub."""
    from tempfile import TemporaryDirectory

    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def random_tensors(folder: Path, kind: str, seed: int, dtype: Any = None, **fill: float) -> dict[str, Any]:
    """The tensors of a random model of transformers with the configuration of a folder, whose scores differ."""
    import torch
    import transformers

    torch.manual_seed(seed)
    made = getattr(transformers, kind)
    model = made(made.config_class.from_pretrained(folder))
    spread(model)
    with torch.no_grad():
        if hasattr(model, "query_tokens"):
            model.query_tokens.normal_()
        for name, value in fill.items():
            getattr(model, name).fill_(value)
    return saved_tensors(model if dtype is None else model.to(dtype))


def write_card(folder: Path, license: str, title: str) -> None:
    (folder / "README.md").write_text(f"---\nlicense: {license}\n---\n\n# {title}\n", encoding="utf-8")


def write_safetensors(tensors: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


def write_pickle(tensors: dict[str, Any], path: Path) -> None:
    """As ``torch.save`` of a state dict: what ``pytorch_model.bin`` is."""
    import torch

    torch.save(tensors, path)


def write_decoys(folder: Path, *names: str) -> None:
    """Files that no run needs; whoever fetches them gets nothing that could be read."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"{name} is not for ttmbench".encode() * 200)


def copy_files(source: Path, target: Path, *, but: tuple[str, ...] = ()) -> None:
    """All files of one commit for another."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*but), dirs_exist_ok=True)


def spread(model: Any, scale: float = 4.0) -> None:
    """Makes scores differ: random weights as they are made are too small for that."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)


# --- CLIP --------------------------------------------------------------------------------------------------------


def clip(
    root: Path, repo: str, main: str, *, patch: int, safe: tuple[str, str] | None = None, side: int = 224, seed: int = 0
) -> None:
    """openai's CLIP: main holds pickles (``safe``: reference and commit of the converted weights), or both."""
    refs = {"main": main} | ({safe[0]: safe[1]} if safe else {})
    repository = write_repository(root, "models", repo, refs)
    folder = repository.folder / main
    tokens = write_clip(folder, repo)
    write_json(folder / "config.json", _clip_config(tokens, patch, side, filled=safe is None))
    write_json(
        folder / "preprocessor_config.json",
        {
            **{"crop_size": side, "do_center_crop": True, "do_normalize": True, "do_resize": True},
            **{"feature_extractor_type": "CLIPFeatureExtractor", **CLIP_PIXELS, "resample": 3, "size": side},
        },
    )
    (folder / "README.md").write_text("---\ntags:\n- vision\n---\n\n# Model Card: CLIP\n", encoding="utf-8")
    tensors = _clip_tensors(folder, seed)
    write_pickle(tensors, folder / "pytorch_model.bin")
    write_decoys(folder, "tf_model.h5", "flax_model.msgpack")
    if safe is None:
        write_safetensors(tensors, folder / "model.safetensors")
    else:
        copy_files(folder, repository.folder / safe[1])
        write_safetensors(tensors, repository.folder / safe[1] / "model.safetensors")


def _clip_config(tokens: int, patch: int, side: int, *, filled: bool) -> dict[str, Any]:
    shared = {**OLD, "hidden_act": "quick_gelu", "initializer_factor": 1.0, "initializer_range": 0.02, **TOWER}
    shared |= {"layer_norm_eps": 1e-05, "projection_dim": 24, "transformers_version": "4.16.0.dev0"}
    text = {"bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 77, "model_type": "clip_text_model"}
    text |= {"pad_token_id": 1, "vocab_size": tokens}
    vision = {"bos_token_id": None, "eos_token_id": None, "image_size": side, "model_type": "clip_vision_model"}
    vision |= {"pad_token_id": None, "patch_size": patch}
    return {
        "architectures": ["CLIPModel"],
        "initializer_factor": 1.0,
        "logit_scale_init_value": 2.6592,
        "model_type": "clip",
        "projection_dim": 24,
        "text_config": {**shared, **text},
        "text_config_dict": {**TOWER, "projection_dim": 24, "vocab_size": tokens} if filled else None,
        "torch_dtype": "float32",
        "transformers_version": "4.16.0.dev0" if filled else None,
        "vision_config": {**shared, **vision},
        "vision_config_dict": {**TOWER, "patch_size": patch, "projection_dim": 24} if filled else None,
    }


def _clip_tensors(folder: Path, seed: int) -> dict[str, Any]:
    import torch

    tensors = random_tensors(folder, "CLIPModel", seed, logit_scale=4.6052)
    # Buffers that were kept in files before transformers 4.31.
    tensors["text_model.embeddings.position_ids"] = torch.arange(77).unsqueeze(0)
    count = len(tensors["vision_model.embeddings.position_embedding.weight"])
    tensors["vision_model.embeddings.position_ids"] = torch.arange(count).unsqueeze(0)
    return tensors


# --- SigLIP ------------------------------------------------------------------------------------------------------


def siglip(root: Path, repo: str, main: str, *, side: int, version: int = 1, seed: int = 0) -> None:
    """Google's SigLIP: safetensors, a SentencePiece tokenizer; of version 2 Gemma's, without a SentencePiece file."""
    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    tokens = (write_sentencepiece if version == 1 else write_gemma)(folder)
    made_by = "4.37.0.dev0" if version == 1 else "4.49.0.dev0"
    config: dict[str, Any] = {
        "architectures": ["SiglipModel"],
        "initializer_factor": 1.0,
        "model_type": "siglip",
        "text_config": {**TOWER, "model_type": "siglip_text_model", "vocab_size": tokens},
        "torch_dtype": "float32",
        "transformers_version": made_by,
        "vision_config": {**TOWER, "image_size": side, "model_type": "siglip_vision_model"},
    }
    config["text_config"] |= {"projection_size": 32} if version == 2 else {}
    write_json(folder / "config.json", config)
    square = {"height": side, "width": side}
    write_json(
        folder / "preprocessor_config.json",
        {
            **({"do_convert_rgb": None} if version == 2 else {}),
            **{"do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5]},
            **{"image_processor_type": "SiglipImageProcessor", "image_std": [0.5, 0.5, 0.5]},
            **{"processor_class": "SiglipProcessor", "resample": 3 if version == 1 else 2},
            **{"rescale_factor": 0.00392156862745098, "size": square},
        },
    )
    write_card(folder, "apache-2.0", "SigLIP")
    tensors = random_tensors(folder, "SiglipModel", seed, logit_scale=4.77, logit_bias=-12.9)
    assert tensors["logit_scale"].shape == tensors["logit_bias"].shape == (1,)
    write_safetensors(tensors, folder / "model.safetensors")
