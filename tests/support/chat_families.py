"""Tiny random models of every family in transformers' image-text-to-text mapping, from shrunk default configurations.

A stand-in for the processor gives each of them images in the first form that its encoder takes, and as many
placeholders as that returns: what is tested is how encoded images and prompts reach the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import count

import numpy as np
import torch
import transformers as tf
from PIL import Image
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as FAMILIES

from support import tiny_models

WIDTHS = "hidden_size dim d_model embed_dim hidden_dim out_hidden_size output_dim text_hidden_size projection_dim"
SMALL = {
    **dict.fromkeys((*WIDTHS.split(), "vision_output_dim", "projector_input_dim", "projector_output_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "intermediate_dim", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "depth", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("n_kv_heads", "num_kv_heads", "spatial_merge_size", "temporal_patch_size"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "n_shared_experts", "n_group", "topk_group"), 1),
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_lora_rank", "q_lora_rank", "v_head_dim", "qk_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "patch_size"), 8),
    **dict.fromkeys(("image_size", "img_size"), 32),
    **{"num_global_layers": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "pad_token_id": 0},
    **{"max_position_embeddings": 512, "num_position_embeddings": 64, "initializer_range": 0.02, "bos_token_id": 1},
    **{"fullatt_block_indexes": [1], "deepstack_visual_indexes": [0], "mrope_section": [2, 3, 3], "eos_token_id": 2},
    **{"pooling_kernel_size": 2, "mm_tokens_per_image": 4, "vision_feature_layers": [-2, -3], "per_layer_config": {}},
    **{"image_grid_pinpoints": [[32, 32], [32, 64]], "projector_patch_to_query_dict": {16: 4}},
    **{"activation_sparsity_pattern": [0.0, 0.0], "num_kv_shared_layers": 0, "partial_rotary_factor": 1.0},
    "sliding_window": 3,  # fewer than the tokens that prompts share
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **{"global_attn_indexes": [0, 1], "downsample_channels": [32, 32], "vision_soft_tokens_per_image": 4},
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
OWN: dict[str, dict[str, object]] = {  # where parts of a configuration depend on each other
    "llama4": {"vision_config": {"intermediate_size": 128}},  # four patches of 32 become one
    "chameleon": {"vq_config": {"num_embeddings": 8}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 1}},
    "dots3_note": {
        "vision_config": {"adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
    },
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {**ROPE, "mrope_section": [3, 3, 2]}}},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0}},
    "hy_v4_vl": {"text_config": {"rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}}},
    "mistral_large4": {"text_config": {"kv_source_layers": [0, 1]}},
    "fast_vlm": {"vision_config": {"architecture": "test_convnext", "hidden_size": 64, "model_args": {}}},
    "gemma3n": {"vision_config": {"architecture": "fastvit_sa12", "hidden_size": 1024}},
    "gemma4_unified": {"vision_config": {"mm_embed_dim": 32, "output_proj_dims": 32}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}, "vision_config": {"num_position_embeddings": 16}},
    "step3p7": {"text_config": {"sliding_window": 3}},
    "idefics2": {"text_config": {"sliding_window": 16}},  # all its layers are such
    "kimi_k25": {"projection_hidden_size": 32, "text_config": {"head_dim": 8}},
    "muse_glimmer": {"out_hidden_size": 128},
    "muse_spark": {"audio_config": {"num_hidden_layers": 4}, "out_hidden_size": 128},
    "nemotron_h_omni": {"vision_hidden_size": 32, "projector_hidden_size": 64},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 7},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 7},
    "vipllava": {"vision_feature_layer": [-2, -1]},
}


def _shrunk(settings: dict, words: int, image: int, free: Iterator[int]) -> dict:
    found = {}
    for name, value in settings.items():
        if name in SMALL and value is not None:
            is_list = isinstance(value, list) and not isinstance(SMALL[name], list)
            value = [SMALL[name]] * min(2, len(value)) if is_list else SMALL[name]
        elif isinstance(value, dict):
            value = _shrunk(value, words, image, free)
            value |= {"mrope_section": SMALL["mrope_section"]} if name == "rope_parameters" else {}
        elif name in ("image_token_id", "image_token_index", "image_patch_id"):
            value = image
        elif name == "vocabulary_map":
            value = {"<image>": image, **{f"IMGIMG{chr(65 + code)}Z": words - 30 + code for code in range(8)}}
        elif name == "vocab_size":
            value = words
        elif str(name).endswith(("_token_id", "_token_index")) and isinstance(value, int):
            value = next(free)
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            value = [*dict.fromkeys(value), value[-1]][:2]  # of each kind
        elif "dropout" in str(name) and isinstance(value, float):
            value = 0.0
        found[name] = value
    return found


def build(family: str, words: tf.PreTrainedTokenizerFast) -> tf.PreTrainedModel:
    """A model of two layers, 32 wide, in float32."""
    kind = CONFIG_MAPPING[family]
    plain = kind()
    settings = plain.to_dict()
    for name in getattr(kind, "sub_configs", {}):
        part = getattr(plain, name, None) or (kind.sub_configs[name]() if name == "vision_config" else None)
        if part is not None:
            settings[name] = part.to_dict()
    image, free = words.convert_tokens_to_ids("<image>"), count(len(words))
    small = _shrunk(settings, len(words) + 40, image, free)
    for part, more in OWN.get(family, {}).items():
        small[part] = {**small[part], **more} if isinstance(more, dict) else more
    config = kind.from_dict(small)
    torch.manual_seed(0)
    model = getattr(tf, FAMILIES[family])(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4) if parameter.any() else parameter.normal_(std=0.1)
    return model


SQUARE, DOUBLE = {"height": 32, "width": 32}, {"height": 64, "width": 64}
POOLED = {"patch_size": 8, "pooling_kernel_size": 2, "max_soft_tokens": 70}
SHAPERS: dict[str, tuple[str, dict[str, object]]] = {  # image processors, of small settings
    "deepseek_vl_hybrid": ("DeepseekVLHybridImageProcessor", {"size": SQUARE, "high_res_size": SQUARE}),
    "fast_vlm": ("CLIPImageProcessor", {"size": DOUBLE, "crop_size": DOUBLE}),
    "gemma3n": ("SiglipImageProcessor", {"size": DOUBLE}),
    "gemma4": ("Gemma4ImageProcessor", POOLED),
    "gemma4_unified": ("Gemma4UnifiedImageProcessor", POOLED),
    "deepseek_ocr2": ("DeepseekOcr2ImageProcessor", {"size": SQUARE, "tile_size": 32, "max_patches": 2}),
    "granite_docling": ("GraniteDoclingImageProcessor", {"size": SQUARE, "max_patches": 2}),
    **dict.fromkeys(("inkling2", "inkling2_loop"), ("Inkling2ImageProcessor", {"size": {"height": 16, "width": 16}})),
    "inkling_mm_model": ("InklingImageProcessor", {"size": {"height": 8, "width": 8}}),
    "kimi_k25": ("Kimi_K25ImageProcessor", {"patch_size": 8}),
    "molmo2": ("Molmo2ImageProcessor", {"size": SQUARE, "patch_size": 8, "overlap_margins": [1, 1], "max_crops": 2}),
    "step3p7": ("Step3p7ImageProcessor", {"size": SQUARE, "patch_size": 24, "max_image_size": 64}),
    "unlimited_ocr": ("UnlimitedOcrImageProcessor", {"size": SQUARE, "tile_size": 32, "max_patches": 2}),
}


def forms(image: torch.Tensor) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs of vision encoders for pixels [3, 32, 32]."""
    size = torch.tensor([[32, 32]])
    for times in (2, 1):
        patches = image.reshape(3, 2, 2, 8, 2, 2, 8).permute(1, 4, 2, 5, 0, 3, 6).reshape(16, 3, 1, 8, 8)
        patches = patches.expand(-1, -1, times, -1, -1).reshape(16, -1)
        grid = torch.tensor([[1, 4, 4]])
        yield {"pixel_values": patches, "image_grid_thw": grid}
        yield {"pixel_values": patches, "image_grid_thw": grid, "image_merge_sizes": torch.tensor([2])}
    flat, spatial = image.reshape(3, 4, 8, 4, 8).permute(1, 3, 2, 4, 0).reshape(1, 16, 192), torch.tensor([[4, 4]])
    squares = image.reshape(3, 4, 8, 4, 8).permute(1, 3, 0, 2, 4).reshape(16, 3, 8, 8)
    yield {"pixel_values": squares, "image_grid_thw": torch.tensor([[1, 4, 4]])}
    yield {"pixel_values": flat[0], "image_grid_hw": spatial}
    yield {"pixel_values": flat, "spatial_shapes": spatial, "pixel_attention_mask": torch.ones(1, 16).long()}
    yield {"pixel_values": squares.permute(1, 2, 0, 3).reshape(1, 3, 8, 128), "target_sizes": spatial}
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), dim=-1).reshape(1, 16, 2)
    yield {"pixel_values": flat, "image_position_ids": places}
    yield {"pixel_values": flat}
    yield {"pixel_values": image.expand(2, 3, 32, 32)[None]}
    yield {"pixel_values": torch.stack([image, image.flip(2)])[None], "image_sizes": size}
    yield {"pixel_values": image[None], "image_sizes": size}
    yield {"pixel_values": image[None, None], "pixel_attention_mask": torch.ones(1, 1, 32, 32, dtype=torch.bool)}
    yield {"pixel_values": image[None], "pixel_attention_mask": torch.ones(1, 32, 32, dtype=torch.bool)}
    yield {"pixel_values": image[None], "high_res_pixel_values": image[None]}
    yield {"pixel_values": image[None], "pixel_mask": torch.ones(1, 32, 32, dtype=torch.bool)}
    yield {"pixel_values": image[None], "num_patches": torch.tensor([1])}
    yield {"pixel_values": image[None]}
    yield {"pixel_values": image[None, None]}
    yield {"pixel_values_images": image[None]}


class Processor:
    """A stand-in: words, and an image in one form or as a real image processor has it, with so many placeholders."""

    chat_template, image_token = "one", "<image>"

    def __init__(self, model: tf.PreTrainedModel, words: tf.PreTrainedTokenizerFast) -> None:
        name, how = SHAPERS.get(model.config.model_type, ("", {}))
        self.tokenizer, self.is_real = words, bool(name)
        self.image_processor = getattr(tf, name)(**how) if name else None
        self.image_id = words.convert_tokens_to_ids("<image>")
        self.types = {"token_type_ids", "mm_token_type_ids"} & set(inspect.signature(model.forward).parameters)
        self.see = getattr(model, "model", model).get_image_features
        self.takes = takes = inspect.signature(self.see).parameters
        required = {
            name for name, one in takes.items() if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD
        }
        self.tried: list[str] = []
        image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (32, 32, 3), dtype=np.uint8))
        for number, inputs in enumerate([self.shaped(image)] if name else forms(pixels_of(image))):
            if required <= set(inputs) <= set(takes):
                self.number, self.marks = number, 0
                try:
                    with torch.no_grad():
                        model(**self(text=["<image> a red circle"], images=[image]))
                    return
                except Exception as error:
                    self.tried.append(f"{sorted(inputs)}: {type(error).__name__}: {error}")
        raise ValueError(f"takes {sorted(required)}; " + "; ".join(self.tried))

    def apply_chat_template(self, turns: list, **_: object) -> str:
        parts = [part for turn in turns for part in turn["content"]]
        return " ".join("<image>" if part["type"] == "image" else part["text"] for part in parts)

    def __call__(self, text: list[str], images: list, **_: object) -> tf.BatchFeature:
        shown = self.shaped(*images) if self.is_real else list(forms(pixels_of(*images)))[self.number]
        if self.is_real or not self.marks:
            with torch.no_grad():
                self.marks = rows_of(self.see(**shown, return_dict=True).pooler_output)
        ids = self.tokenizer(text[0])["input_ids"]
        ids = [one for token in ids for one in [token] * (self.marks if token == self.image_id else 1)]
        tokens = torch.tensor([ids])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        inputs |= {name: (tokens == self.image_id).long() for name in self.types}
        return tf.BatchFeature(inputs | shown)

    def shaped(self, image: Image.Image) -> dict[str, torch.Tensor]:
        """What the model takes of a real image processor's output."""
        found = self.image_processor(images=[image], return_tensors="pt")
        return {name: value for name, value in found.items() if name in self.takes}


def pixels_of(image: Image.Image) -> torch.Tensor:
    """Pixels [3, 32, 32] from 0 to 1."""
    return torch.from_numpy(np.array(image.resize((32, 32)))).permute(2, 0, 1) / 255


def rows_of(features: object) -> int:
    """How many tokens features are."""
    if isinstance(features, torch.Tensor):
        return features.numel() // features.shape[-1]
    return sum(map(rows_of, features))


def words() -> tf.PreTrainedTokenizerFast:
    """The stand-in's tokenizer."""
    tiny_models.needs_chat()
    return tiny_models.tokenizer(None, special=("<image>",))
