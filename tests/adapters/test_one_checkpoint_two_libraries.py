"""A checkpoint that transformers and open_clip both load gets the same tokens from each, whatever a caption holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as tf
from support import siglip_tokenizers, tiny_models
from support.siglip_tokenizers import CAPTIONS, LENGTH

from ttmbench.model_adapters import catalog, hf, itc, itm, open_clip, visualgpt, vqascore

CARDS = {spec.name: spec.card for spec in catalog.adapters()}
CANONICAL = {"context_length": LENGTH, "tokenizer_kwargs": {"clean": "canonicalize"}}


def siglip(folder: Path) -> tuple[Path, Path]:
    """SentencePiece: transformers reads it by SigLIP's tokenizer, open_clip by T5's, as ViT-B-16-SigLIP names it."""
    return siglip_tokenizers.siglip(folder / "Siglip"), siglip_tokenizers.t5(folder / "T5")


def siglip2(folder: Path) -> tuple[Path, Path]:
    """Gemma's, for both."""
    return siglip_tokenizers.gemma(folder), folder


def clip(folder: Path) -> tuple[Path, None]:
    """OpenAI's merges, which open_clip ships, in the files of transformers."""
    import open_clip

    own = open_clip.SimpleTokenizer()
    tokens = [*list(own.encoder)[:-2], "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, own.bpe_ranks)]))
    ends = {"bos_token": tokens[-2], "eos_token": tokens[-1], "pad_token": tokens[-1], "unk_token": tokens[-1]}
    settings = {**ends, "tokenizer_class": "CLIPTokenizer", "do_lower_case": True, "model_max_length": 77}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder, None


def adapters(make, root: Path):
    """The adapters of both libraries, with a small random model of one vocabulary each."""
    ours, theirs = make(root / "ours")
    rows = len(tf.AutoTokenizer.from_pretrained(ours))
    text = {**tiny_models.TEXT, "vocab_size": rows, "max_position_embeddings": 77 if theirs is None else LENGTH}
    towers = {"vision_config": tiny_models.SMALL_VISION}
    if theirs is None:
        config = tf.CLIPConfig(text_config=text | {"bos_token_id": rows - 2, "eos_token_id": rows - 1}, **towers)
        model, images = tf.CLIPModel(config), tf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
        shape = {**tiny_models.OPEN_CLIP, "text_cfg": {**tiny_models.OPEN_CLIP["text_cfg"], "context_length": 77}}
    else:
        config = tf.SiglipConfig(text_config=text | {"projection_size": 32}, **towers)
        model, images = tf.SiglipModel(config), tf.SiglipImageProcessor(size=tiny_models.SQUARE)
        named = {**CANONICAL, "hf_tokenizer_name": "tiny/named", "vocab_size": rows}
        shape = {**tiny_models.OPEN_CLIP, "text_cfg": {**tiny_models.OPEN_CLIP["text_cfg"], **named}}
        shape |= {"init_logit_bias": -10, "custom_text": True}
    model.save_pretrained(ours)
    images.save_pretrained(ours)
    other = tiny_models.open_clip(root / "theirs" if theirs is None else theirs, shape)
    return hf.load(pretrained=str(ours), device="cpu"), open_clip.load(model=f"local-dir:{other}", device="cpu")


def own_ids(ids: torch.Tensor, end: int) -> list[int]:
    """The tokens of a caption up to its first end of text."""
    row = ids.tolist()
    return row[: row.index(end) + 1]


@pytest.mark.parametrize("make", [clip, siglip, siglip2])
def test_both_libraries_give_the_same_tokens(tmp_path, make):
    ours, theirs = adapters(make, tmp_path)
    texts = [*CAPTIONS.values()]
    prepared, others = ours.prepare_captions(texts), theirs.prepare_captions(texts)
    ids, end = prepared["input_ids"], ours.tokenizer.eos_token_id
    if make is clip:  # padding comes behind the end, where a causal tower does not look
        found = {name: (own_ids(a, end), own_ids(b, end)) for name, a, b in zip(CAPTIONS, ids, others, strict=True)}
    else:
        assert ids.shape == (len(texts), LENGTH) and "attention_mask" not in prepared
        found = {name: (a.tolist(), b.tolist()) for name, a, b in zip(CAPTIONS, ids, others, strict=True)}
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}
    assert ours.truncated(texts) == theirs.truncated(texts)
    assert ours.refused(texts) == theirs.refused(texts)
    named = {clip: ("clip-b32", "open_clip-vit-b32"), siglip: ("siglip-b16", "open_clip-siglip-b16")}
    for adapter, name in zip((ours, theirs), named.get(make, ("siglip2-b16", "open_clip-siglip2-b16")), strict=True):
        assert adapter.fingerprint()["captions"] == CARDS[name].captions


@pytest.mark.parametrize(
    ("card", "name", "load"),
    [
        *((f"{name}-{kind.__name__[-3:]}", name, kind) for name in ("blip", "blip2") for kind in (itc, itm)),
        ("visualgpt-blip", "blip-captioner", visualgpt),
        ("visualgpt-blip2", "blip2-opt", visualgpt),
        ("vqascore-smolvlm-256m", "idefics3", vqascore),
    ],
)
def test_cards_state_captions_as_fingerprints_do(tmp_path, card, name, load):
    made = json.loads((tiny_models.MODELS[name](tmp_path) / "tokenizer.json").read_text())
    bert = CARDS[card].captions["case"] == "lower"  # uncased, as BLIP's text encoders have it
    (tmp_path / "tokenizer.json").write_text(json.dumps(made | {"normalizer": {"type": "Lowercase"} if bert else None}))
    assert load.load(pretrained=str(tmp_path), device="cpu").fingerprint()["captions"] == CARDS[card].captions


def test_cards_state_the_captions_of_open_clip():
    from open_clip import get_model_config

    cards = {
        spec.model_args["model"]: spec.card
        for spec in catalog.adapters()
        if spec.target.endswith(".open_clip:load") and spec.card
    }
    known = {model: card.captions for model, card in cards.items() if card.captions}
    assert len(known) > 8
    for model, captions in known.items():
        text = get_model_config(model)["text_cfg"]
        cleaning = text.get("tokenizer_kwargs", {}).get("clean", "lower")
        assert (captions["max_tokens"], captions["cleaning"]) == (text["context_length"], cleaning), model
