"""Tiny random models of every architecture that the adapters know, written as models of the Hub are."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from support import siglip_tokenizers
from ttmbench.data.sources.rendered import COLORS, SHAPES
from ttmbench.model_adapters._shared.image_text import CHAT

Settings = Mapping[str, object]
WORDS = (
    "a the and of on at in left right top bottom above below photo dogs cat two Does this figure show Please answer "
    "yes no or Yes No USER ASSISTANT User Assistant user assistant Describe image caption en is it"
).split()
FEW_WORDS = "a the and of on at left right top bottom above below photo dogs cat two".split()
SIDE = 32
SQUARE = {"height": SIDE, "width": SIDE}
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL_VISION = {**TEXT, "image_size": SIDE, "patch_size": 8}
VISION = {**SMALL_VISION, "initializer_range": 0.02}  # BLIP's own is 1e-10
# What holds of several layers is held by LLaVA, Qwen 2, PaliGemma, BLIP and all that is not a chat model.
ONE = {"num_hidden_layers": 1}
OPT = {
    **{"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"max_position_embeddings": 96, "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
T5 = {
    **{"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0},
    **{"pad_token_id": 0, "eos_token_id": 2},
}
BART = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    "forced_eos_token_id": None,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}
AROUND = {  # put around a text, as BERT, T5, Llama and BART do
    "bert": ("[CLS] $A [SEP]", ["[CLS]", "[SEP]"]),
    "t5": ("$A </s>", ["</s>"]),
    "llama": ("<s> $A", ["<s>"]),
    "bart": ("<s> $A </s>", ["<s>", "</s>"]),
}


def needs_chat() -> None:
    """Skips a test where transformers is older than what models that answer prompts need."""
    pytest.importorskip("transformers", minversion=CHAT)


def _whole_words(words: list[str], ends: str | None) -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends is not None:
        single, names = AROUND[ends]
        special = [(name, vocabulary[name]) for name in names]
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return made


def word_tokenizer(eos: str, pad: str, length: int) -> tf.PreTrainedTokenizerFast:
    """A tokenizer of whole words, as dual encoders have one."""
    made = _whole_words(["<pad>", "</s>", "<unk>", "<s>", *FEW_WORDS, *COLORS, *SHAPES], "bart")
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token=eos, pad_token=pad, model_max_length=length
    )


def tokenizer(
    ends: str | None, special: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> tf.PreTrainedTokenizerFast:
    """Words and punctuation; ``ends`` is a key of AROUND.

    Every further word (``more``) changes what random weights a model gets.
    """
    fixed = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]"]
    words = list(dict.fromkeys([*fixed, *WORDS, *COLORS, *SHAPES, *'"?.:,', "[DEC]", *more]))
    named = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), fixed, strict=False))
    named |= {"cls_token": "[CLS]", "sep_token": "[SEP]"} if ends == "bert" else {}
    wrapped = tf.PreTrainedTokenizerFast(
        tokenizer_object=_whole_words(words, ends), model_max_length=256, padding_side="left", **named
    )
    if special:
        tokens = [AddedToken(name, normalized=False, special=True) for name in special]
        wrapped.add_special_tokens({"additional_special_tokens": tokens})
    return wrapped


def _write(folder: Path, model: tf.PreTrainedModel, *parts: object, scale: float = 6.0) -> Path:
    """Saves a model with larger weights: random ones are so small that every score is nearly the same.

    T5 makes most of its weights large: larger ones would amplify rounding a thousandfold, as no trained model does.
    """
    t5 = [module for module in model.modules() if type(module).__name__.startswith("T5")]
    large = {id(weight) for module in t5 for weight in module.parameters() if weight.ndim > 1 and weight.std() > 0.1}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and id(parameter) not in large:
                parameter.mul_(scale)
    for part in (model, *parts):
        part.save_pretrained(folder)
    return folder


IDS = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}


def dual(
    folder: Path,
    kind: str,
    images: Any = None,
    *,
    seed: int = 1,
    length: int = 20,
    text: Settings = MappingProxyType({}),
    vision: Settings = SMALL_VISION,
    pad: str = "<pad>",
    **config: object,
) -> Path:
    """A dual encoder of transformers with a tokenizer of ``length`` words and an image processor, CLIP's if None."""
    torch.manual_seed(seed)
    text = {**TEXT, **IDS, "vocab_size": 60, "max_position_embeddings": length, **text}
    model = getattr(tf, f"{kind}Model")(getattr(tf, f"{kind}Config")(text_config=text, vision_config=vision, **config))
    for name, value in {"logit_scale": 2.3, "logit_bias": -5.0}.items() if hasattr(model, "logit_bias") else ():
        getattr(model, name).data.fill_(value)
    images = images or tf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    return _write(folder, model, word_tokenizer(eos="</s>", pad=pad, length=length), images, scale=1.0)


def siglip(folder: Path, *, rows: int = 60, length: int = 16) -> Path:
    text = {"vocab_size": rows, "max_position_embeddings": length, "projection_size": 32}
    text |= {name: tf.SiglipTextConfig().to_dict()[name] for name in IDS}
    return dual(folder, "Siglip", tf.SiglipImageProcessor(size=SQUARE), seed=0, length=16, text=text, pad="</s>")


clip = partial(dual, kind="CLIP", projection_dim=24)
metaclip2 = partial(dual, kind="MetaClip2", projection_dim=24)


def xclip(folder: Path) -> Path:
    """With the image processor that it has on the Hub; eight frames."""
    small = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**SMALL_VISION, "num_frames": 8, **{f"mit_{name}": size for name, size in small.items()}}
    prompts = {"projection_dim": 24, "prompt_layers": 1, "prompt_num_attention_heads": 2, "prompt_alpha": 0.5}
    images = tf.VideoMAEImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    return dual(folder, "XCLIP", images, seed=8, vision=vision, **prompts)


def videoprism(folder: Path) -> Path:
    pytest.importorskip("transformers.models.videoprism")
    torch.manual_seed(9)
    words = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0), (".", -2.0)]
    words += [(f"\u2581{word}", -1.0) for word in (*FEW_WORDS, *COLORS, *SHAPES, "enters", "before")]
    layers = {name: 1 for name in ("num_spatial_layers", "num_temporal_layers", "num_auxiliary_layers")}
    config = tf.VideoPrismConfig(
        text_config={**TEXT, "vocab_size": len(words), "max_position_embeddings": 64},
        vision_config={**TEXT, **layers, "image_size": SIDE, "tubelet_size": (1, 8, 8), "num_frames": 8},
    )
    tokenizer = tf.VideoPrismTokenizer(vocab=words, extra_ids=0, model_max_length=64)
    images = tf.LlavaOnevisionVideoProcessor(size=SQUARE, do_normalize=False, do_sample_frames=True, num_frames=8)
    return _write(folder, tf.VideoPrismClipModel(config), tokenizer, images, scale=3.0)


OPEN_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"width": 32, "layers": 2, "head_width": 16, "image_size": SIDE, "patch_size": 8},
    "text_cfg": {"width": 32, "layers": 2, "heads": 2, "context_length": 20},
}


def open_clip(
    folder: Path,
    shape: Settings = OPEN_CLIP,
    preprocess: Settings = MappingProxyType({}),
    files: Sequence[str] = ("open_clip_model.safetensors",),
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """A model as open_clip writes it, random or of these tensors, in a folder or a new one; safetensors or pickles."""
    from open_clip import create_model
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_cfg": shape, "preprocess_cfg": {**preprocess}}
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    if tensors is None:
        torch.manual_seed(0)
        logging.disable(logging.WARNING)  # open_clip warns that these weights are random
        tensors = create_model(f"local-dir:{folder}", load_weights=False).state_dict()
        logging.disable(logging.NOTSET)
    for file in files:
        if file.endswith(".safetensors"):
            save_file(dict(tensors), folder / file, {"format": "pt"})
        else:
            torch.save(dict(tensors), folder / file)
    return folder


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


def open_clip_siglip(folder: Path, tokenizer: Callable[[Path], Path] = siglip_tokenizers.gemma) -> Path:
    """As timm's SigLIPs, with the tokenizer of the second or another one."""
    return open_clip(tokenizer(folder), timm_shape("timm/other", 200))


def into_cache(cache: Path, repo: str, folder: Path) -> Path:
    """Copies a model into the Hub's cache as the newest commit of a repository."""
    root, commit = cache / f"models--{repo.replace('/', '--')}", "0" * 40
    for name, text in (("refs/main", commit), (f".no_exist/{commit}/config.json", "")):  # transformers asks for it
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text, encoding="utf-8")
    return shutil.copytree(folder, root / "snapshots" / commit)


def know_architectures(monkeypatch, folder: Path, shapes: dict[str, dict[str, object]]) -> None:
    """Makes open_clip know architectures by name, as long as the test runs."""
    from open_clip import add_model_config, factory

    folder.mkdir()
    for name, shape in shapes.items():
        (folder / f"{name}.json").write_text(json.dumps(shape), encoding="utf-8")
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", [*factory._MODEL_CONFIG_PATHS])
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", {**factory._MODEL_CONFIGS})
    add_model_config(folder)


def blip(folder: Path, *, captioner: bool) -> Path:
    torch.manual_seed(0)
    words = tokenizer("bert")
    text = {
        **{**TEXT, "encoder_hidden_size": TEXT["hidden_size"], "max_position_embeddings": 64, "pad_token_id": 0},
        "vocab_size": len(words) + 1,  # [ENC] is behind [DEC] and in no tokenizer, as on the Hub
        **{"bos_token_id": words.convert_tokens_to_ids("[DEC]"), "eos_token_id": words.sep_token_id},
        "sep_token_id": words.sep_token_id,
    }
    config = tf.BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=24)
    model = (tf.BlipForConditionalGeneration if captioner else tf.BlipForImageTextRetrieval)(config)
    return _write(folder, model, words, tf.BlipImageProcessor(size=SQUARE))


def _qformer(words: int, **more: object) -> Settings:
    """A small Q-Former, which looks at the image in every layer."""
    return {
        **{**TEXT, "vocab_size": words, "max_position_embeddings": 64, "encoder_hidden_size": TEXT["hidden_size"]},
        **{"cross_attention_frequency": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **more},
    }


def _t5(words: tf.PreTrainedTokenizerFast) -> tf.T5Config:
    return tf.T5Config(**T5, vocab_size=len(words), decoder_start_token_id=words.pad_token_id)


def blip2(folder: Path, *, captioner: bool, language: str = "opt") -> Path:
    if captioner:
        needs_chat()
    torch.manual_seed(1)
    words = tokenizer({"opt": "llama", "t5": "t5"}[language] if captioner else "bert", special=("<image>",))
    config = tf.Blip2Config(
        vision_config=VISION,
        qformer_config=_qformer(len(words), use_qformer_text_input=not captioner),
        text_config=(tf.OPTConfig(**OPT, vocab_size=len(words)) if language == "opt" else _t5(words)).to_dict(),
        num_query_tokens=5,
        image_text_hidden_size=24,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    model = (tf.Blip2ForConditionalGeneration if captioner else tf.Blip2ForImageTextRetrieval)(config)
    with torch.no_grad():
        model.query_tokens.normal_()
    return _write(folder, model, words, tf.BlipImageProcessor(size=SQUARE))


def instructblip(folder: Path, *, language: str) -> Path:
    needs_chat()
    torch.manual_seed(5)
    words, asked = (tokenizer(ends, more=("Question",)) for ends in (language, "bert"))
    processor = tf.InstructBlipProcessor(tf.BlipImageProcessor(size=SQUARE), words, asked, num_query_tokens=5)
    config = tf.InstructBlipConfig(
        vision_config={**VISION, **ONE},
        qformer_config=_qformer(len(asked), **ONE),
        text_config=tf.LlamaConfig(**_llama(words, **ONE)) if language == "llama" else _t5(words),
        num_query_tokens=5,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    model = tf.InstructBlipForConditionalGeneration(config)
    with torch.no_grad():
        model.query_tokens.normal_()
    return _write(folder, model, processor)


def flava(folder: Path) -> Path:
    torch.manual_seed(2)
    words = tokenizer("bert")
    config = tf.FlavaConfig(
        text_config={**TEXT, "vocab_size": len(words), "max_position_embeddings": 40, "pad_token_id": 0},
        image_config={**VISION, "vocab_size": 16},
        multimodal_config=TEXT,
        image_codebook_config={"hidden_size": 8, "vocab_size": 16, "num_groups": 1, "num_blocks_per_group": 1},
        hidden_size=32,
        projection_dim=24,
        init_codebook=False,
    )
    images = tf.FlavaImageProcessor(size=SQUARE, crop_size=SQUARE)
    return _write(folder, tf.FlavaForPreTraining(config), words, images)


def vilt(folder: Path, kind: str = "ImageAndTextRetrieval") -> Path:
    torch.manual_seed(6)
    words = tokenizer("bert")
    sizes = {**SMALL_VISION, "vocab_size": len(words), "max_position_embeddings": 40}
    model = getattr(tf, f"ViltFor{kind}")(tf.ViltConfig(**sizes))
    with torch.no_grad():
        model.vilt.embeddings.position_embeddings.normal_(std=0.02)
    return _write(folder, model, words, tf.ViltImageProcessor(size={"shortest_edge": SIDE}, size_divisor=8))


def bridgetower(folder: Path, kind: str = "ImageAndTextRetrieval") -> Path:
    torch.manual_seed(7)
    words = tokenizer("bert")
    wide = {"hidden_size": 64, "num_hidden_layers": 3}
    text = {**TEXT, **wide, "vocab_size": len(words), "max_position_embeddings": 64, "pad_token_id": 0}
    vision = {**wide, "image_size": SIDE, "patch_size": 8}
    config = tf.BridgeTowerConfig(
        **{"text_config": text, "vision_config": vision, "hidden_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "contrastive_hidden_size": 16},
    )
    edge = {"shortest_edge": SIDE}
    images = tf.BridgeTowerImageProcessor(size=edge, crop_size=edge, size_divisor=8)
    return _write(folder, getattr(tf, f"BridgeTowerFor{kind}")(config), words, images, scale=2.0)


def git(folder: Path) -> Path:
    torch.manual_seed(8)
    words = tokenizer("bert")
    text = {**TEXT, "vocab_size": len(words), "max_position_embeddings": 64, "pad_token_id": 0}
    config = tf.GitConfig(vision_config=SMALL_VISION, **text, bos_token_id=4, eos_token_id=5)
    return _write(folder, tf.GitForCausalLM(config), words, tf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE))


def kosmos2(folder: Path) -> Path:
    needs_chat()
    torch.manual_seed(9)
    words, images = tokenizer("bart"), tf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE)
    processor = tf.Kosmos2Processor(images, words, num_patch_index_tokens=4)
    text = {"embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 2, "max_position_embeddings": 96}
    text |= {"vocab_size": len(words), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = tf.Kosmos2Config(text_config=text, vision_config=SMALL_VISION, latent_query_num=5)
    return _write(folder, tf.Kosmos2ForConditionalGeneration(config), processor, scale=3.0)


def florence2(folder: Path) -> Path:
    needs_chat()
    torch.manual_seed(10)
    words = tokenizer("bart", special=("<image>",), more=("What", "does", "describe"))
    words._set_model_specific_special_tokens(special_tokens={"image_token": "<image>"})
    images = tf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE)
    images.image_seq_length = 17
    vision = {"depths": [1, 1], "patch_size": [3, 3], "patch_stride": [4, 2], "patch_padding": [1, 1]}
    vision |= {"patch_prenorm": [False, True], "embed_dim": [16, 32], "num_heads": [2, 2], "num_groups": [2, 2]}
    config = tf.Florence2Config(
        vision_config={**vision, "window_size": 4, "projection_dim": 32},
        text_config=tf.BartConfig(**BART, vocab_size=len(words)).to_dict(),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    return _write(folder, tf.Florence2ForConditionalGeneration(config), tf.Florence2Processor(images, words), scale=3.0)


def language_model(folder: Path, kind: str) -> Path:
    torch.manual_seed(3)
    words = tokenizer({"gpt2": None, "opt": "llama", "t5": "t5", "bart": "bart"}[kind])
    if kind == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2, vocab_size=len(words)))
    elif kind == "opt":
        model = tf.OPTForCausalLM(tf.OPTConfig(**OPT, vocab_size=len(words)))
    elif kind == "t5":
        model = tf.T5ForConditionalGeneration(_t5(words))
    else:
        model = tf.BartForConditionalGeneration(tf.BartConfig(**BART, vocab_size=len(words)))
    return _write(folder, model, words)


TURNS = (
    "{% for m in messages %}{{ m['role'] | upper }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
Chat = tuple[tf.PreTrainedModel, tf.ProcessorMixin, str]  # with what the template writes for an image


def chat(folder: Path, kind: str, scale: float = 6.0) -> Path:
    """A model that is asked about an image in a chat: llava, qwen2_vl, ..."""
    needs_chat()
    torch.manual_seed(4)
    model, processor, image_token = BASES[kind]()
    processor.chat_template = None if kind == "paligemma" else TURNS.replace("IMAGE", image_token)
    return _write(folder, model, processor, scale=scale)


def _llama(words: tf.PreTrainedTokenizerFast, kind: str = "llama", **more: object) -> Settings:
    return {
        **{**TEXT, "model_type": kind, "vocab_size": len(words), "num_key_value_heads": 2},
        **{"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **more},
    }


def _llava() -> Chat:
    words = tokenizer("llama", special=("<image>",))
    config = tf.LlavaConfig(
        vision_config={**VISION, "model_type": "clip_vision_model", "projection_dim": 32},
        text_config=_llama(words),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
    )
    images = tf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    how = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return tf.LlavaForConditionalGeneration(config), tf.LlavaProcessor(images, words, **how), "<image>\n"


QWEN_VISION = {
    "Qwen2VL": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
    "Qwen3VL": {
        **{"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "deepstack_visual_indexes": [0]},
        "num_position_embeddings": 64,
    },
}


def _qwen(kind: str) -> Chat:
    special = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    words = tokenizer(None, special=special)
    ids = {name: words.convert_tokens_to_ids(token) for name, token in zip(names, special, strict=True)}
    vision = {"depth": 2, "num_heads": 2, "patch_size": 8, "initializer_range": 0.02, **QWEN_VISION[kind]}
    model_types = {"Qwen2VL": "qwen2_vl_text", "Qwen3VL": "qwen3_vl_text"}
    text = _llama(words, model_types[kind], **({} if kind == "Qwen2VL" else ONE))
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    if kind == "Qwen3VL":
        text["head_dim"] = 16
    config = getattr(tf, f"{kind}Config")(text_config=text, vision_config=vision, **ids)
    size = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    images = tf.Qwen2VLImageProcessor(patch_size=8, merge_size=2, temporal_patch_size=2, size=size)
    films = tf.Qwen3VLVideoProcessor if kind == "Qwen3VL" else tf.Qwen2VLVideoProcessor
    processor = getattr(tf, f"{kind}Processor")(images, words, films(patch_size=8, merge_size=2))
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    return getattr(tf, f"{kind}ForConditionalGeneration")(config), processor, image


def _tiled(kind: str) -> Chat:
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    special = ("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *rows)
    words = tokenizer(None, special=special)
    config = getattr(tf, f"{kind}Config")(
        vision_config={**VISION, **ONE},
        text_config=_llama(words, **ONE),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    tile = {"longest_edge": SIDE}
    parts = [getattr(tf, f"{kind}ImageProcessor")(size={"longest_edge": 2 * SIDE}, max_image_size=tile), words]
    if kind == "SmolVLM":
        sampling = {"fps": 1, "max_frames": 4}
        parts.append(tf.SmolVLMVideoProcessor(size=tile, max_image_size=tile, video_sampling=sampling))
    processor = getattr(tf, f"{kind}Processor")(*parts, image_seq_len=4)
    return getattr(tf, f"{kind}ForConditionalGeneration")(config), processor, "<image>"


def _internvl() -> Chat:
    words = tokenizer(None, special=("<IMG_CONTEXT>", "<img>", "</img>", "<video>"))
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>"}
    named["context_image_token"] = "<IMG_CONTEXT>"
    words._set_model_specific_special_tokens(special_tokens=named)
    config = tf.InternVLConfig(
        vision_config={**VISION, **ONE, "image_size": [SIDE, SIDE], "patch_size": [8, 8]},
        text_config=_llama(words, "qwen2", **ONE),
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    images = tf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=4)
    processor = tf.InternVLProcessor(images, words, tf.InternVLVideoProcessor(size=SQUARE), image_seq_length=4)
    return tf.InternVLForConditionalGeneration(config), processor, "<IMG_CONTEXT>\n"


def _paligemma() -> Chat:
    words = tokenizer(None, special=("<image>",))
    images = tf.SiglipImageProcessor(size=SQUARE)
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


def _perception_lm() -> Chat:
    words = tokenizer(None, special=("<|image|>", "<|video|>"))
    words._set_model_specific_special_tokens(special_tokens={"image_token": "<|image|>", "video_token": "<|video|>"})
    vision = {"img_size": [SIDE, SIDE], "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = tf.PerceptionLMConfig(
        vision_config={
            **{"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224", "model_args": vision},
            **{"num_labels": 0, "do_pooling": False},
        },
        text_config=_llama(words, **ONE),
        image_token_id=words.convert_tokens_to_ids("<|image|>"),
        video_token_id=words.convert_tokens_to_ids("<|video|>"),
        projector_pooling_ratio=2,
    )
    config.vision_config.embed_dim = 32
    images = tf.PerceptionLMImageProcessor(tile_size=SIDE, max_num_tiles=4, vision_input_type="thumb+tile")
    films = tf.PerceptionLMVideoProcessor(size=SQUARE)
    processor = tf.PerceptionLMProcessor(films, images, words, patch_size=8, pooling_ratio=2)
    return tf.PerceptionLMForConditionalGeneration(config), processor, "<|image|>"


def _mllama() -> Chat:
    words = tokenizer(None, special=("<|image|>",))
    vision = {**SMALL_VISION, "attention_heads": 2, "num_global_layers": 1, "max_num_tiles": 4}
    config = tf.MllamaConfig(
        vision_config={**vision, "intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
        text_config={**_llama(words, "mllama_text_model"), "cross_attention_layers": [1], "vocab_size": len(words)},
        image_token_index=words.convert_tokens_to_ids("<|image|>"),
    )
    images = tf.MllamaImageProcessor(size=SQUARE, max_image_tiles=4)
    model = tf.MllamaForConditionalGeneration(config)
    with torch.no_grad():  # else closed: its images would change nothing
        for name, parameter in model.named_parameters():
            if "gate" in name and parameter.numel() == 1:
                parameter.fill_(0.5)
    return model, tf.MllamaProcessor(images, words), "<|image|>"


CHATS: dict[str, Callable[[], Chat]] = {
    "llava": _llava,
    "qwen2_vl": lambda: _qwen("Qwen2VL"),
    "qwen3_vl": lambda: _qwen("Qwen3VL"),
    "smolvlm": lambda: _tiled("SmolVLM"),
    "idefics3": lambda: _tiled("Idefics3"),
    "internvl": _internvl,
    "paligemma": _paligemma,
    "perception_lm": _perception_lm,
    "mllama": _mllama,
}


def _embedding_gemma2() -> Chat:
    named = {"image": "<image>", "boi": "<boi>", "eoi": "<eoi>", "video": "<|video|>"}
    words = tokenizer(None, special=tuple(named.values()))
    words._set_model_specific_special_tokens(special_tokens={f"{one}_token": text for one, text in named.items()})
    heads = {**TEXT, "head_dim": 16, "global_head_dim": 16, "num_key_value_heads": 2}
    text = {**_llama(words, "embedding_gemma2_text"), **heads, "hidden_size_per_layer_input": 8, "embedding_dim": 32}
    config = tf.EmbeddingGemma2Config(
        text_config={**text, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
        vision_config={**heads, "patch_size": 8, "pooling_kernel_size": 2, "position_embedding_size": 64},
        audio_config=None,
        **{f"{one}_token_id": words.convert_tokens_to_ids(text) for one, text in named.items()},
    )
    patches = {"patch_size": 8, "pooling_kernel_size": 2}
    parts = tf.Gemma4ImageProcessor(max_soft_tokens=70, **patches), words, tf.EmbeddingGemma2VideoProcessor(**patches)
    processor = tf.EmbeddingGemma2Processor(tf.Gemma4AudioFeatureExtractor(), *parts)
    return tf.EmbeddingGemma2Model(config), processor, "<image>"


def _modernvbert() -> Chat:
    _, processor, image_token = _tiled("Idefics3")
    words = processor.tokenizer
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = tf.ModernVBertConfig(
        text_config={**TEXT, **ends, "vocab_size": len(words), "local_attention": 16, "global_attn_every_n_layers": 2},
        vision_config={**VISION, **ONE},
        pixel_shuffle_factor=2,
        image_token_id=words.convert_tokens_to_ids(image_token),
    )
    return tf.ModernVBertModel(config), processor, image_token


BASES = {**CHATS, "embedding_gemma2": _embedding_gemma2, "modernvbert": _modernvbert}


def retriever(folder: Path, kind: str) -> Path:
    """ColQwen2 or ColPali of transformers, which Sentence Transformers reads without files of its own."""
    torch.manual_seed(4)
    base = {"ColQwen2": "qwen2_vl", "ColPali": "paligemma"}[kind]
    model, parts, _ = CHATS[base]()
    config = getattr(tf, f"{kind}Config")(vlm_config={**model.config.to_dict(), "model_type": base}, embedding_dim=16)
    processor = getattr(tf, f"{kind}Processor")(parts.image_processor, parts.tokenizer)
    made = getattr(tf, f"{kind}ForRetrieval")(config)
    torch.nn.init.normal_(made.embedding_proj_layer.bias, std=0.02)  # the vector of a padding token is not 0
    return _write(folder, made, processor, scale=3.0)


MODELS: dict[str, Callable[..., Path]] = {
    **{"clip": clip, "siglip": siglip, "metaclip2": metaclip2, "open_clip": open_clip, "flava": flava},
    "open_clip_siglip": open_clip_siglip,
    **{"blip": partial(blip, captioner=False), "blip-captioner": partial(blip, captioner=True)},
    "blip2": partial(blip2, captioner=False),
    **{"vilt": vilt, "bridgetower": bridgetower, "vilt-mlm": partial(vilt, kind="MaskedLM")},
    **{"bridgetower-mlm": partial(bridgetower, kind="MaskedLM"), "git": git, "kosmos2": kosmos2},
    "florence2": florence2,
    **{"xclip": xclip, "videoprism": videoprism},
    **{f"blip2-{language}": partial(blip2, captioner=True, language=language) for language in ("opt", "t5")},
    **{f"instructblip-{language}": partial(instructblip, language=language) for language in ("llama", "t5")},
    **{kind: partial(language_model, kind=kind) for kind in ("gpt2", "opt", "t5", "bart")},
    **{kind: partial(chat, kind=kind) for kind in CHATS},
}
"""What writes a tiny random model into a folder, by name."""


PROMPTS = {"query": "Describe ", "document": "Answer the photo "}


def sentence_model(folder: Path, kind: str, family: str = "qwen3_vl", prompts: Mapping[str, str] = PROMPTS) -> Path:
    """A model of Sentence Transformers: SentenceTransformer, MultiVectorEncoder or CrossEncoder, saved by itself."""
    if family.startswith("Col"):
        return retriever(folder, family)
    import sentence_transformers as library
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    raw = Path(tempfile.mkdtemp())
    _ = clip(raw) if family == "clip" else chat(raw, family)
    torch.manual_seed(6)
    how: dict[str, Any] = {"device": "cpu", "prompts": {**prompts}}
    if kind == "CrossEncoder":
        first = Transformer(str(raw), transformer_task="any-to-any")
        yes, no = first.tokenizer.convert_tokens_to_ids(["yes", "no"])
        made = library.CrossEncoder(modules=[first, LogitScore(yes, no)], **how)
    else:
        made = getattr(library, kind)(str(raw), **how)
    made.save_pretrained(str(folder), create_model_card=False)
    return folder
