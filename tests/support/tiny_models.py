"""Tiny random models of every architecture that the adapters know, written as hub models are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = (
    "a the and of on at in left right top bottom above below photo dogs cat two Does this figure show Please answer "
    "yes no or Yes No USER ASSISTANT User Assistant user assistant Describe image caption en is it"
).split()
SIDE = 32
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TEXT, "image_size": SIDE, "patch_size": 8, "initializer_range": 0.02}  # BLIP's own is 1e-10
# What holds of several layers is held by LLaVA, Qwen 2, PaliGemma, BLIP and all that is no chat model.
ONE = {"num_hidden_layers": 1}


def tokenizer(*, ends: str | None, special: tuple[str, ...] = (), length: int = 256, more: tuple[str, ...] = ()):
    """Words and punctuation; ``ends`` is put around a text as BERT ([CLS], [SEP]), T5 (</s>) or Llama (<s>) do.

    Every further word (``more``) changes what random weights a model gets.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from ttmbench.data.rendered.scenes import COLORS, SHAPES

    fixed = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]"]
    words = list(dict.fromkeys([*fixed, *WORDS, *COLORS, *SHAPES, *'"?.:,', "[DEC]", *more]))
    vocabulary = {word: index for index, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    around = {"bert": ("[CLS] $A [SEP]", ["[CLS]", "[SEP]"]), "t5": ("$A </s>", ["</s>"]), "llama": ("<s> $A", ["<s>"])}
    around["bart"] = ("<s> $A </s>", ["<s>", "</s>"])
    if ends is not None:
        single, names = around[ends]
        made.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(name, vocabulary[name]) for name in names]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=length,
        padding_side="left",
        **({"cls_token": "[CLS]", "sep_token": "[SEP]"} if ends == "bert" else {}),
    )
    if special:
        wrapped.add_special_tokens(
            {"additional_special_tokens": [AddedToken(name, normalized=False, special=True) for name in special]}
        )
    return wrapped


def _spread(model, scale: float) -> None:
    """Random weights as they are made are so small that every score is nearly the same.

    T5 makes most of its weights large: larger ones would amplify rounding a thousandfold, as no trained model does.
    """
    t5 = [module for module in model.modules() if type(module).__name__.startswith("T5")]
    large = {id(one) for module in t5 for one in module.parameters() if one.ndim > 1 and one.std() > 0.1}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and id(parameter) not in large:
                parameter.mul_(scale)


def siglip(folder: Path) -> Path:
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    torch.manual_seed(0)
    config = SiglipConfig(
        text_config={**TEXT, "vocab_size": 60, "max_position_embeddings": 16, "projection_size": 32},
        vision_config={**TEXT, "image_size": SIDE, "patch_size": 8},
    )
    model = SiglipModel(config)
    with torch.no_grad():
        model.logit_scale.fill_(2.3)
        model.logit_bias.fill_(-5.0)
    model.save_pretrained(folder)
    word_tokenizer(eos="</s>", pad="</s>", length=16).save_pretrained(folder)
    SiglipImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


def clip(folder: Path) -> Path:
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    torch.manual_seed(1)
    tokens = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    config = CLIPConfig(
        text_config={**TEXT, **tokens, "vocab_size": 60, "max_position_embeddings": 20},
        vision_config={**TEXT, "image_size": SIDE, "patch_size": 8},
        projection_dim=24,
    )
    CLIPModel(config).save_pretrained(folder)
    word_tokenizer(eos="</s>", pad="<pad>", length=20).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


def open_clip(folder: Path) -> Path:
    import json

    from open_clip import create_model
    from safetensors.torch import save_file

    tower = {"width": 32, "layers": 2}
    vision = {**tower, "head_width": 16, "image_size": SIDE, "patch_size": 8}
    shape = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": {**tower, "heads": 2, "context_length": 20}}
    config = {"model_cfg": shape, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(0)
    model = create_model(f"local-dir:{folder}", load_weights=False)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


def word_tokenizer(eos: str, pad: str, length: int):
    """A tokenizer of whole words, as dual encoders have one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from ttmbench.data.rendered.scenes import COLORS, SHAPES

    words = [*"a the and of on at left right top bottom above below photo dogs cat two".split(), *COLORS, *SHAPES]
    vocabulary = {word: index for index, word in enumerate(["<pad>", "</s>", "<unk>", "<s>", *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 3), ("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token=eos, pad_token=pad, model_max_length=length
    )


def blip(folder: Path, *, captioner: bool) -> Path:
    from transformers import BlipConfig, BlipForConditionalGeneration, BlipForImageTextRetrieval, BlipImageProcessor

    torch.manual_seed(0)
    words = tokenizer(ends="bert")
    config = BlipConfig(
        text_config={
            **TEXT,
            "encoder_hidden_size": TEXT["hidden_size"],
            "vocab_size": len(words) + 1,  # [ENC] is behind [DEC] and in no tokenizer, as on the hub
            "max_position_embeddings": 64,
            "bos_token_id": words.convert_tokens_to_ids("[DEC]"),
            "eos_token_id": words.sep_token_id,
            "sep_token_id": words.sep_token_id,
            "pad_token_id": 0,
        },
        vision_config=VISION,
        image_text_hidden_size=24,
    )
    model = (BlipForConditionalGeneration if captioner else BlipForImageTextRetrieval)(config)
    return _write(folder, model, words, BlipImageProcessor(size={"height": SIDE, "width": SIDE}))


def blip2(folder: Path, *, captioner: bool, language: str = "opt") -> Path:
    from transformers import (
        Blip2Config,
        Blip2ForConditionalGeneration,
        Blip2ForImageTextRetrieval,
        BlipImageProcessor,
        OPTConfig,
        T5Config,
    )

    torch.manual_seed(1)
    words = tokenizer(ends={"opt": "llama", "t5": "t5"}[language] if captioner else "bert", special=("<image>",))
    text = (
        OPTConfig(**_opt(len(words)))
        if language == "opt"
        else T5Config(**_t5(len(words)), decoder_start_token_id=words.pad_token_id)
    )
    config = Blip2Config(
        vision_config=VISION,
        qformer_config=_qformer(len(words), use_qformer_text_input=not captioner),
        text_config=text,
        num_query_tokens=5,
        image_text_hidden_size=24,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    model = (Blip2ForConditionalGeneration if captioner else Blip2ForImageTextRetrieval)(config)
    with torch.no_grad():
        model.query_tokens.normal_()
    return _write(folder, model, words, BlipImageProcessor(size={"height": SIDE, "width": SIDE}))


def _qformer(words: int, **more: Any) -> dict[str, Any]:
    """A small Q-Former, which looks at the image in every layer."""
    return {
        **TEXT,
        "vocab_size": words,
        "max_position_embeddings": 64,
        "encoder_hidden_size": TEXT["hidden_size"],
        "cross_attention_frequency": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **more,
    }


def instructblip(folder: Path, *, language: str) -> Path:
    from transformers import (
        BlipImageProcessor,
        InstructBlipConfig,
        InstructBlipForConditionalGeneration,
        InstructBlipProcessor,
        LlamaConfig,
        T5Config,
    )

    torch.manual_seed(5)
    words, asked = (tokenizer(ends=ends, more=("Question",)) for ends in (language, "bert"))
    processor = InstructBlipProcessor(
        BlipImageProcessor(size={"height": SIDE, "width": SIDE}), words, asked, num_query_tokens=5
    )
    text = (
        LlamaConfig(**_llama(words, **ONE))
        if language == "llama"
        else T5Config(**_t5(len(words)), decoder_start_token_id=words.pad_token_id)
    )
    config = InstructBlipConfig(
        vision_config={**VISION, **ONE},
        qformer_config=_qformer(len(asked), **ONE),
        text_config=text,
        num_query_tokens=5,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    model = InstructBlipForConditionalGeneration(config)
    with torch.no_grad():
        model.query_tokens.normal_()
    return _write(folder, model, processor)


def flava(folder: Path) -> Path:
    from transformers import FlavaConfig, FlavaForPreTraining, FlavaImageProcessor

    torch.manual_seed(2)
    words = tokenizer(ends="bert")
    config = FlavaConfig(
        text_config={**TEXT, "vocab_size": len(words), "max_position_embeddings": 40, "pad_token_id": 0},
        image_config={**VISION, "vocab_size": 16},
        multimodal_config=TEXT,
        image_codebook_config={"hidden_size": 8, "vocab_size": 16, "num_groups": 1, "num_blocks_per_group": 1},
        hidden_size=32,
        projection_dim=24,
        init_codebook=False,
    )
    square = {"height": SIDE, "width": SIDE}
    return _write(folder, FlavaForPreTraining(config), words, FlavaImageProcessor(size=square, crop_size=square))


def language_model(folder: Path, kind: str) -> Path:
    import transformers

    torch.manual_seed(3)
    ends = {"gpt2": None, "opt": "llama", "t5": "t5", "bart": "bart"}[kind]
    words = tokenizer(ends=ends)
    count = len(words)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=count, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2
        )
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "opt":
        model = transformers.OPTForCausalLM(transformers.OPTConfig(**_opt(count)))
    elif kind == "t5":
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(**_t5(count), decoder_start_token_id=words.pad_token_id)
        )
    else:
        config = transformers.BartConfig(
            vocab_size=count,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
        )
        model = transformers.BartForConditionalGeneration(config)
    return _write(folder, model, words)


def _opt(count: int) -> dict:
    return {
        "vocab_size": count,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 96,
        "dropout": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _t5(count: int) -> dict:
    return {
        "vocab_size": count,
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 2,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "dropout_rate": 0.0,
    }


def _write(folder: Path, model, *parts, scale: float = 6.0) -> Path:
    _spread(model, scale)
    for part in (model, *parts):
        part.save_pretrained(folder)
    return folder


TURNS = (
    "{% for m in messages %}{{ m['role'] | upper }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def chat(folder: Path, kind: str, scale: float = 6.0) -> Path:
    """A model that is asked about an image in a chat: llava, llava_onevision, qwen2_vl, ..."""
    torch.manual_seed(4)
    model, processor, image_token = CHATS[kind]()
    processor.chat_template = None if kind == "paligemma" else TURNS.replace("IMAGE", image_token)
    return _write(folder, model, processor, scale=scale)


def _llama(words, kind="llama", **more) -> dict:
    return {
        **TEXT,
        "model_type": kind,
        "vocab_size": len(words),
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def _llava():
    import transformers as tf

    words = tokenizer(ends="llama", special=("<image>",))
    config = tf.LlavaConfig(
        vision_config={**VISION, "model_type": "clip_vision_model", "projection_dim": 32},
        text_config=_llama(words),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
    )
    images = tf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = tf.LlavaProcessor(
        images, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return tf.LlavaForConditionalGeneration(config), processor, "<image>\n"


def _llava_onevision():
    import transformers as tf

    words = tokenizer(ends=None, special=("<image>", "<video>"))
    pinpoints = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    config = tf.LlavaOnevisionConfig(
        vision_config={**VISION, **ONE, "model_type": "siglip_vision_model", "vision_use_head": False},
        text_config=_llama(words, "qwen2", **ONE),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
    )
    square = {"height": SIDE, "width": SIDE}
    processor = tf.LlavaOnevisionProcessor(
        tf.LlavaOnevisionImageProcessor(size=square, image_grid_pinpoints=pinpoints),
        words,
        tf.LlavaOnevisionVideoProcessor(size=square),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
    )
    return tf.LlavaOnevisionForConditionalGeneration(config), processor, "<image>\n"


def _qwen(kind: str):
    import transformers as tf

    special = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    words = tokenizer(ends=None, special=special)
    ids = [words.convert_tokens_to_ids(name) for name in special]
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    shared = {"depth": 2, "num_heads": 2, "patch_size": 8, "initializer_range": 0.02}
    vision = {
        "Qwen2VL": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
        "Qwen2_5_VL": {
            "hidden_size": 32,
            "out_hidden_size": 32,
            "intermediate_size": 48,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        "Qwen3VL": {
            "hidden_size": 32,
            "out_hidden_size": 32,
            "intermediate_size": 48,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
        },
    }[kind]
    text = _llama(
        words, {"Qwen2VL": "qwen2_vl_text", "Qwen2_5_VL": "qwen2_5_vl_text", "Qwen3VL": "qwen3_vl_text"}[kind]
    )
    if kind != "Qwen2VL":
        text |= ONE
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    if kind == "Qwen3VL":
        text["head_dim"] = 16
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config={**shared, **vision}, **dict(zip(names, ids, strict=True))
    )
    images = tf.Qwen2VLImageProcessor(
        patch_size=8, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    )
    films = getattr(tf, "Qwen3VLVideoProcessor" if kind == "Qwen3VL" else "Qwen2VLVideoProcessor")(
        patch_size=8, merge_size=2
    )
    processor = getattr(tf, f"{kind}Processor")(images, words, films)
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    return getattr(tf, f"{kind}ForConditionalGeneration")(config), processor, image


def _tiled(kind: str):
    import transformers as tf

    rows = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    words = tokenizer(
        ends=None, special=("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *rows)
    )
    config = getattr(tf, f"{kind}Config")(
        vision_config={**VISION, **ONE},
        text_config=_llama(words, **ONE),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    images = getattr(tf, f"{kind}ImageProcessor")(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    if kind == "SmolVLM":
        films = tf.SmolVLMVideoProcessor(
            size={"longest_edge": SIDE},
            max_image_size={"longest_edge": SIDE},
            video_sampling={"fps": 1, "max_frames": 4},
        )
        processor = tf.SmolVLMProcessor(images, words, films, image_seq_len=4)
    else:
        processor = tf.Idefics3Processor(images, words, image_seq_len=4)
    return getattr(tf, f"{kind}ForConditionalGeneration")(config), processor, "<image>"


def _internvl():
    import transformers as tf

    words = tokenizer(ends=None, special=("<IMG_CONTEXT>", "<img>", "</img>", "<video>"))
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    words._set_model_specific_special_tokens(special_tokens=named)
    config = tf.InternVLConfig(
        vision_config={**VISION, **ONE, "image_size": [SIDE, SIDE], "patch_size": [8, 8]},
        text_config=_llama(words, "qwen2", **ONE),
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    square = {"height": SIDE, "width": SIDE}
    processor = tf.InternVLProcessor(
        tf.GotOcr2ImageProcessor(size=square, crop_to_patches=True, min_patches=1, max_patches=4),
        words,
        tf.InternVLVideoProcessor(size=square),
        image_seq_length=4,
    )
    return tf.InternVLForConditionalGeneration(config), processor, "<IMG_CONTEXT>\n"


def _paligemma():
    import transformers as tf

    words = tokenizer(ends=None, special=("<image>",))
    images = tf.SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = 16
    processor = tf.PaliGemmaProcessor(images, words)
    count = len(words)
    config = tf.PaliGemmaConfig(
        vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False, "projection_dim": 32},
        text_config=_llama(words, "gemma", head_dim=16, vocab_size=count),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vocab_size=count,
        projection_dim=32,
        hidden_size=32,
    )
    return tf.PaliGemmaForConditionalGeneration(config), processor, "<image>"


CHATS = {
    "llava": _llava,
    "llava_onevision": _llava_onevision,
    "qwen2_vl": lambda: _qwen("Qwen2VL"),
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VL"),
    "qwen3_vl": lambda: _qwen("Qwen3VL"),
    "smolvlm": lambda: _tiled("SmolVLM"),
    "idefics3": lambda: _tiled("Idefics3"),
    "internvl": _internvl,
    "paligemma": _paligemma,
}
