"""Small copies of BLIP's, BLIP-2's and FLAVA's repositories: matching heads, captioners and what stands beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.hub_models import (
    CLIP_PIXELS,
    OLD,
    TOWER,
    copy_files,
    random_tensors,
    write_card,
    write_decoys,
    write_pickle,
    write_safetensors,
)
from support.hub_repos import write_repository
from support.hub_tokenizers import token, write_bert, write_bytes_bpe, write_json

RESCALE = {"do_rescale": True, "rescale_factor": 0.00392156862745098}
RANGE = {"initializer_range": 0.02, "initializer_factor": 1.0}


# --- BLIP --------------------------------------------------------------------------------------------------------


def blip(root: Path, repo: str, main: str, *, captioner: bool, safe: tuple[str, str] | None = None) -> None:
    """Salesforce's BLIP, with a matching head or as a captioner: pickles on main, safetensors on a pull request."""
    import torch

    refs = {"main": main} | ({safe[0]: safe[1]} if safe else {})
    repository = write_repository(root, "models", repo, refs)
    folder = repository.folder / main
    words = write_bert(folder, "BlipProcessor")
    kind = "BlipForConditionalGeneration" if captioner else "BlipForImageTextRetrieval"
    write_json(folder / "config.json", _blip_config(words, kind))
    _blip_pixels(folder, "BlipProcessor", 384, size_divisor=32, do_pad=True)
    write_card(folder, "bsd-3-clause", "BLIP")
    tensors = random_tensors(folder, kind, 3 + captioner)
    pickled = dict(tensors)
    decoder = "text_decoder.bert" if captioner else "text_encoder"
    pickled[f"{decoder}.embeddings.position_ids"] = torch.arange(512).unsqueeze(0)
    if captioner:  # tied tensors are in a pickle twice
        pickled["text_decoder.cls.predictions.decoder.weight"] = tensors[f"{decoder}.embeddings.word_embeddings.weight"]
        pickled["text_decoder.cls.predictions.decoder.bias"] = tensors["text_decoder.cls.predictions.bias"]
    write_pickle(pickled, folder / "pytorch_model.bin")
    write_decoys(folder, "tf_model.h5")
    if safe is not None:
        copy_files(folder, repository.folder / safe[1])
        write_safetensors(tensors, repository.folder / safe[1] / "model.safetensors")


def _blip_config(words: int, architecture: str) -> dict[str, Any]:
    shared = {**OLD, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, **TOWER, **RANGE}
    text = {"bos_token_id": words, "encoder_hidden_size": 32, "eos_token_id": 2, "is_decoder": True}
    text |= {"max_position_embeddings": 512, "model_type": "blip_text_model", "pad_token_id": 0, "sep_token_id": 102}
    text |= {"projection_dim": 32, "vocab_size": words + 2}
    vision = {"image_size": 384, "model_type": "blip_vision_model", "patch_size": 16, "projection_dim": 32}
    return {
        **{"architectures": [architecture], "image_text_hidden_size": 24, "model_type": "blip", "projection_dim": 32},
        **{"text_config": {**shared, **text}, "torch_dtype": "float32", "vision_config": {**shared, **vision}},
    }


def _blip_pixels(folder: Path, processor: str, side: int, **more: Any) -> None:
    square = {"height": side, "width": side}
    write_json(
        folder / "preprocessor_config.json",
        {
            **{"do_normalize": True, "do_resize": True, **RESCALE, **CLIP_PIXELS, "size": square, "resample": 3},
            **{"image_processor_type": "BlipImageProcessor", "processor_class": processor, **more},
        },
    )


# --- BLIP-2 ------------------------------------------------------------------------------------------------------


def blip2_itm(root: Path, repo: str, main: str, older: str | None = None) -> None:
    """BLIP-2's first stage: one file of safetensors and the same as a pickle; main knows an image token."""
    repository = write_repository(root, "models", repo, {"main": main} | ({"refs/pr/1": older} if older else {}))
    folder = repository.folder / main
    words = write_bert(folder, "Blip2Processor", ("[DEC]", "<image>"))
    # As on the hub, the embedding ends before the image token.
    config = _blip2_config(words - 1, "Blip2ForImageTextRetrieval", {"model_type": "opt"}, query_text=True)
    write_json(folder / "config.json", {**config, "image_text_hidden_size": 24, "image_token_index": words - 1})
    _blip2_processor(folder, 4)
    write_card(folder, "mit", "BLIP-2")
    tensors = random_tensors(folder, "Blip2ForImageTextRetrieval", 5)
    write_safetensors(tensors, folder / "model.safetensors")
    write_pickle(tensors, folder / "pytorch_model.bin")
    if older:
        copy_files(folder, repository.folder / older, but=("processor_config.json",))
        before = {key: value for key, value in config.items() if key != "image_token_index"}
        write_json(repository.folder / older / "config.json", {**before, "image_text_hidden_size": 24})


def blip2_opt(root: Path, repo: str, main: str) -> None:
    """BLIP-2 with OPT: two shards, an image token beyond the words, and pickled shards that nobody needs."""
    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    words = write_bytes_bpe(folder, ("<s>", "<pad>", "</s>", "<unk>"), ("<image>",), begins_with="</s>")
    language = {
        **{"_name_or_path": "facebook/opt-2.7b", "_remove_final_layer_norm": False, "activation_dropout": 0.0},
        **{"activation_function": "relu", "architectures": ["OPTForCausalLM"], "do_layer_norm_before": True},
        **{"eos_token_id": 50118 % words, "ffn_dim": 48, "hidden_size": 32, "model_type": "opt"},
        **{"num_attention_heads": 2, "num_hidden_layers": 2, "prefix": "</s>", "torch_dtype": "float16"},
        **{"vocab_size": words + 39, "word_embed_proj_dim": 32, "max_position_embeddings": 256},
    }
    config = _blip2_config(30523, "Blip2ForConditionalGeneration", language, query_text=False)
    write_json(
        folder / "config.json", {**config, "image_token_index": words - 1, "use_decoder_only_language_model": True}
    )
    write_json(folder / "generation_config.json", {"_from_model_config": True, "bos_token_id": 1, "pad_token_id": 1})
    write_json(folder / "added_tokens.json", {"<image>": words - 1})
    named = {"bos_token": token("</s>", normalized=True), "eos_token": token("</s>", normalized=True)}
    named |= {"pad_token": token("<pad>", normalized=True), "unk_token": token("</s>", normalized=True)}
    write_json(folder / "special_tokens_map.json", named)
    image = {str(words - 1): {**token("<image>"), "special": True}}
    write_json(
        folder / "tokenizer_config.json",
        {
            **{key: value["content"] for key, value in named.items()},
            "added_tokens_decoder": {
                **{"1": {**token("<pad>", normalized=True), "special": True}},
                **{"2": {**token("</s>", normalized=True), "special": True}, **image},
            },
            **{"add_bos_token": True, "add_prefix_space": False, "clean_up_tokenization_spaces": True},
            **{"errors": "replace", "model_max_length": 1000000000000000019884624838656},
            **{"processor_class": "Blip2Processor", "tokenizer_class": "GPT2Tokenizer"},
        },
    )
    _blip2_processor(folder, 4)
    write_card(folder, "mit", "BLIP-2, OPT-2.7b")
    write_shards(random_tensors(folder, "Blip2ForConditionalGeneration", 6), folder, 2)
    shards = [f"pytorch_model-0000{index}-of-00002.bin" for index in (1, 2)]
    write_decoys(folder, *shards, "pytorch_model.bin.index.json")


def write_shards(tensors: dict[str, Any], folder: Path, count: int) -> None:
    """Safetensors in several files, with their index."""
    names = sorted(tensors)
    where = {}
    for index in range(count):
        part = names[index * len(names) // count : (index + 1) * len(names) // count]
        file = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
        write_safetensors({name: tensors[name] for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index_of = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_of, indent=2), encoding="utf-8")


def _blip2_config(words: int, architecture: str, language: dict[str, Any], *, query_text: bool) -> dict[str, Any]:
    queries = {
        **{**OLD, **TOWER, "cross_attention_frequency": 2, "encoder_hidden_size": 32, "model_type": "blip_2_qformer"},
        **{"transformers_version": "4.27.0.dev0", "vocab_size": words, "use_qformer_text_input": query_text},
    }
    vision = {
        **{**OLD, **TOWER, "image_size": 224, "initializer_range": 0.02, "model_type": "blip_2_vision_model"},
        **{"patch_size": 14, "projection_dim": 32, "qkv_bias": True, "transformers_version": "4.27.0.dev0"},
    }
    return {
        **{"_commit_hash": None, "architectures": [architecture], "initializer_factor": 1.0, "model_type": "blip-2"},
        **{"initializer_range": 0.02, "num_query_tokens": 4, "qformer_config": queries, "text_config": language},
        **{"torch_dtype": "float32", "use_decoder_only_language_model": True, "vision_config": vision},
    }


def _blip2_processor(folder: Path, queries: int) -> None:
    _blip_pixels(folder, "Blip2Processor", 224)
    image = {**token("<image>"), "special": True, "__type": "AddedToken"}
    write_json(
        folder / "processor_config.json",
        {"image_token": image, "num_query_tokens": queries, "processor_class": "Blip2Processor"},
    )


# --- FLAVA -------------------------------------------------------------------------------------------------------


def flava(root: Path, repo: str, main: str) -> None:
    """facebook/flava-full: a pickle alone, with the codebook, and the feature extractor of its day."""
    import torch

    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    words = write_bert(folder, "FlavaProcessor")
    write_json(folder / "config.json", _flava_config(words))
    write_json(folder / "preprocessor_config.json", _flava_pixels())
    write_card(folder, "bsd-3-clause", "FLAVA")
    tensors = random_tensors(folder, "FlavaForPreTraining", 7)
    tensors["flava.text_model.embeddings.position_ids"] = torch.arange(512).unsqueeze(0)
    write_pickle(tensors, folder / "pytorch_model.bin")


def _flava_config(words: int) -> dict[str, Any]:
    shared = {**OLD, **TOWER, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    image = {"image_size": 224, "model_type": "flava_image_model", "patch_size": 16, "vocab_size": 16}
    text = {"max_position_embeddings": 512, "model_type": "flava_text_model", "vocab_size": words}
    codebook = {"hidden_size": 8, "model_type": "flava_image_codebook", "num_blocks_per_group": 1, "vocab_size": 16}
    return {
        **{"architectures": ["FlavaForPreTraining"], "hidden_size": 32, "model_type": "flava", "projection_dim": 24},
        **{"image_codebook_config": {**OLD, **codebook}, "image_config": {**shared, **image}, "init_codebook": True},
        "multimodal_config": {**shared, "model_type": "flava_multimodal_model", "use_cls_token": True},
        **{"text_config": {**shared, **text}, "torch_dtype": "float32", "transformers_version": None},
    }


def _flava_pixels() -> dict[str, Any]:
    return {
        **{"codebook_crop_size": 112, "codebook_resample": 1, "codebook_size": 112, **CLIP_PIXELS},
        **{"crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3},
        **{"feature_extractor_type": "FlavaFeatureExtractor", "processor_class": "FlavaProcessor", "size": 224},
    }
