"""Small copies of chat models' repositories, SmolVLM, LLaVA 1.5 and Qwen3-VL, and of GPT-2's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.hub_models import (
    CLIP_PIXELS,
    TOWER,
    copy_files,
    random_tensors,
    write_card,
    write_decoys,
    write_pickle,
    write_safetensors,
)
from support.hub_models_fused import RESCALE, write_shards
from support.hub_repos import write_repository
from support.hub_tokenizers import token, write_bytes_bpe, write_json, write_llama

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
LANGUAGE = {**TOWER, "num_key_value_heads": 2, "rms_norm_eps": 1e-05}
SMOLVLM_TURNS = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
LLAVA_TURNS = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
QWEN_TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for content in message.content %}{% if content.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content.type == 'text' %}{{ content.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def smolvlm(root: Path, repo: str, main: str, newer: str) -> None:
    """SmolVLM: an Idefics 3 in bf16, a template beside the tokenizer, and exports to ONNX that nobody needs."""
    import torch

    repository = write_repository(root, "models", repo, {"main": newer, "refs/pr/1": main})
    folder = repository.folder / main
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    last = ("<global-img>", *rows, "<fake_token_around_image>", "<image>", "<end_of_utterance>")
    tokens = write_bytes_bpe(folder, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), last)
    image = tokens - 2
    named = {"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>", "pad_token": "<|im_end|>"}
    named["unk_token"] = "<|endoftext|>"
    more = ["<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": more, **named})
    write_json(folder / "added_tokens.json", {one: tokens - len(last) + at for at, one in enumerate(last)})
    added = {str(tokens - len(last) + at): {**token(one), "special": True} for at, one in enumerate(last)}
    write_json(
        folder / "tokenizer_config.json",
        {
            **{"add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": more, **named},
            **{"chat_template": SMOLVLM_TURNS, "clean_up_tokenization_spaces": False, "legacy": False},
            **{"model_max_length": 8192, "processor_class": "Idefics3Processor", "tokenizer_class": "GPT2Tokenizer"},
            **{"truncation_side": "left", "vocab_size": tokens - len(last)},
        },
    )
    write_json(folder / "chat_template.json", {"chat_template": SMOLVLM_TURNS})
    write_json(folder / "processor_config.json", {"image_seq_len": 4, "processor_class": "Idefics3Processor"})
    write_json(folder / "config.json", _smolvlm_config(tokens, image))
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": tokens - 1, "pad_token_id": 2})
    write_json(
        folder / "preprocessor_config.json",
        {
            **{"do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, **RESCALE},
            **{"do_resize": True, **HALF, "image_processor_type": "Idefics3ImageProcessor", "resample": 1},
            **{"max_image_size": {"longest_edge": 128}, "processor_class": "Idefics3Processor"},
            "size": {"longest_edge": 256},
        },
    )
    write_card(folder, "apache-2.0", "SmolVLM-256M")
    tensors = random_tensors(folder, "Idefics3ForConditionalGeneration", 8, torch.bfloat16)
    write_safetensors(tensors, folder / "model.safetensors")
    exports = ("decoder_model_merged", "embed_tokens_q4", "vision_encoder")
    write_decoys(folder, *(f"onnx/{name}.onnx" for name in exports))
    copy_files(folder, repository.folder / newer)


def _smolvlm_config(tokens: int, image: int) -> dict[str, Any]:
    language = {**LANGUAGE, "architectures": ["VLlama3ForCausalLM"], "head_dim": 16, "max_position_embeddings": 8192}
    language |= {"model_type": "llama", "pad_token_id": 2, "perceiver_config": {}, "vocab_size": tokens}
    vision = {**TOWER, "image_size": 128, "max_image_size": {"longest_edge": 128}, "model_type": "idefics3"}
    vision |= {"patch_size": 16, "size": {"longest_edge": 256}}
    return {
        **{"architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": image, "model_type": "idefics3"},
        **{"scale_factor": 4, "text_config": language, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
        **{"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "vision_config": vision},
    }


def llava(root: Path, repo: str, main: str) -> None:
    """LLaVA 1.5: three shards in fp16, Llama's tokenizer, a template of its own file."""
    import torch

    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    tokens = write_llama(folder)
    size = tokens + 62
    language = {"_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], **LANGUAGE}
    language |= {"max_position_embeddings": 4096, "model_type": "llama", "torch_dtype": "float16", "vocab_size": size}
    vision = {**TOWER, "image_size": 84, "model_type": "clip_vision_model", "patch_size": 14}
    vision |= {"projection_dim": 24, "vocab_size": 32000}
    write_json(
        folder / "config.json",
        {
            **{"architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_seq_length": 36},
            **{"image_token_index": tokens - 2, "model_type": "llava", "pad_token_id": tokens - 1},
            **{"projector_hidden_act": "gelu", "text_config": language, "tie_word_embeddings": False},
            **{"torch_dtype": "float16", "transformers_version": "4.36.0.dev0", "vision_config": vision},
            **{"vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": size},
        },
    )
    write_json(folder / "generation_config.json", {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2})
    square = {"height": 84, "width": 84}
    write_json(
        folder / "preprocessor_config.json",
        {
            **{"crop_size": square, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True, **RESCALE},
            **{"do_resize": True, "image_processor_type": "CLIPImageProcessor", **CLIP_PIXELS, "resample": 3},
            **{"processor_class": "LlavaProcessor", "size": {"shortest_edge": 84}},
        },
    )
    write_json(
        folder / "processor_config.json",
        {
            **{"image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 14},
            **{"processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default"},
        },
    )
    write_json(folder / "chat_template.json", {"chat_template": LLAVA_TURNS})
    write_card(folder, "llama2", "LLaVA")
    tower = "vision_tower."
    old_names = {
        name.replace(tower, f"{tower}vision_model.", 1) if name.startswith(tower) else name: one
        for name, one in random_tensors(folder, "LlavaForConditionalGeneration", 9, torch.float16).items()
    }
    write_shards(old_names, folder, 3)


def qwen3_vl(root: Path, repo: str, main: str) -> None:
    """Qwen3-VL: pixels in patches, a processor for films, Qwen's tokenizer."""
    import torch

    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    vision_tokens = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
    last = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *vision_tokens)
    tokens = write_bytes_bpe(folder, (), last)
    ids = {one: tokens - len(last) + at for at, one in enumerate(last)}
    write_json(
        folder / "tokenizer_config.json",
        {
            **{"add_bos_token": False, "add_prefix_space": False, "bos_token": None, "chat_template": QWEN_TURNS},
            "added_tokens_decoder": {str(at): {**token(one), "special": True} for one, at in ids.items()},
            **{"additional_special_tokens": list(last[1:]), "clean_up_tokenization_spaces": False},
            **{"eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 262144},
            **{"pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer"},
            "unk_token": None,
        },
    )
    write_json(folder / "chat_template.json", {"chat_template": QWEN_TURNS})
    write_json(folder / "config.json", _qwen3_vl_config(tokens, ids))
    endings = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}
    write_json(folder / "generation_config.json", {**endings, "do_sample": True, "pad_token_id": ids["<|endoftext|>"]})
    patches = {"merge_size": 2, "patch_size": 16, "temporal_patch_size": 2, **HALF}
    patches["processor_class"] = "Qwen3VLProcessor"
    pixels = {"longest_edge": 9216, "shortest_edge": 4096}
    kind = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": pixels}
    write_json(folder / "preprocessor_config.json", {**patches, **kind})
    kind = {"video_processor_type": "Qwen3VLVideoProcessor", "size": pixels}
    write_json(folder / "video_preprocessor_config.json", {**patches, **kind})
    write_card(folder, "apache-2.0", "Qwen3-VL")
    tensors = random_tensors(folder, "Qwen3VLForConditionalGeneration", 10, torch.bfloat16)
    write_safetensors(tensors, folder / "model.safetensors")


def _qwen3_vl_config(tokens: int, ids: dict[str, int]) -> dict[str, Any]:
    language = {
        **{**LANGUAGE, "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "head_dim": 16},
        **{"max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "rope_theta": 5000000},
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        **{"tie_word_embeddings": True, "vocab_size": tokens},
    }
    vision = {
        **{"deepstack_visual_indexes": [0], "depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32},
        **{"in_channels": 3, "initializer_range": 0.02, "intermediate_size": 48, "model_type": "qwen3_vl"},
        **{"num_heads": 2, "num_position_embeddings": 64, "out_hidden_size": 32, "patch_size": 16},
        **{"spatial_merge_size": 2, "temporal_patch_size": 2},
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        **{"image_token_id": ids["<|image_pad|>"], "model_type": "qwen3_vl", "text_config": language},
        **{"tie_word_embeddings": True, "transformers_version": "4.57.0.dev0"},
        **{"video_token_id": ids["<|video_pad|>"], "vision_config": vision},
        **{"vision_end_token_id": ids["<|vision_end|>"], "vision_start_token_id": ids["<|vision_start|>"]},
    }


def gpt2(root: Path, repo: str, main: str) -> None:
    """GPT-2: names of tensors without a prefix, buffers among them, and weights for five other libraries."""
    import torch

    write_repository(root, "models", "gpt2", {}, moved_to=repo)
    folder = write_repository(root, "models", repo, {"main": main}).folder / main
    tokens = write_bytes_bpe(folder, (), ("<|endoftext|>",))
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1024})
    write_json(
        folder / "config.json",
        {
            **{"architectures": ["GPT2LMHeadModel"], "bos_token_id": tokens - 1, "eos_token_id": tokens - 1},
            **{"model_type": "gpt2", "n_ctx": 1024, "n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": tokens},
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
    )
    write_json(folder / "generation_config.json", {"bos_token_id": tokens - 1, "eos_token_id": tokens - 1})
    write_card(folder, "mit", "GPT-2")
    tensors = random_tensors(folder, "GPT2LMHeadModel", 11)
    tensors = {name.removeprefix("transformer."): one for name, one in tensors.items()}
    mask = torch.tril(torch.ones(1024, 1024)).view(1, 1, 1024, 1024)
    tensors |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(2)}
    write_safetensors(tensors, folder / "model.safetensors")
    write_pickle(tensors, folder / "pytorch_model.bin")
    others = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "64.tflite", "onnx/decoder_model.onnx")
    write_decoys(folder, *others)
