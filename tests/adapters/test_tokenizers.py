"""Tokenizers: files that are missing or another model's, and special tokens in captions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import siglip_tokenizers, tiny_models

from ttmbench import Task, simple_evaluate
from ttmbench.errors import TtmbenchError
from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.pretrained import as_text
from ttmbench.model_adapters.open_clip import without_special_tokens


def siglip(folder: Path, tokenizer: Callable[[Path], Path]) -> Path:
    """SigLIP with the tokenizer of its first or second version."""
    tiny_models.siglip(folder, rows=200, length=64)
    (folder / "tokenizer.json").unlink()
    return tokenizer(folder)


OF = {  # adapter -> tiny models
    "hf": "clip siglip metaclip2",
    "visualgpt": "blip-captioner blip2-opt qwen2_vl",
    "blind": "gpt2 t5 bart",
    "vqascore": " ".join(["instructblip-t5", *tiny_models.CHATS]),
    "choice": "llava",
    **{f"{name}-{kind}": name for name in ("blip", "blip2", "flava") for kind in ("itm", "itc")},
}
FAMILIES: dict[str, tuple[str, Callable[[Path], Path]]] = {  # name -> adapter, and what writes the model
    **{f"{kind}-{name}": (kind, tiny_models.MODELS[name]) for kind, names in OF.items() for name in names.split()},
    **{
        f"hf-{name}": ("hf", partial(siglip, tokenizer=getattr(siglip_tokenizers, kind)))
        for name, kind in (("siglip-real", "siglip"), ("siglip2-real", "gemma"))
    },
    "open_clip": ("open_clip", tiny_models.open_clip),
    "open_clip-t5": ("open_clip", partial(tiny_models.open_clip_siglip, tokenizer=siglip_tokenizers.t5)),
    "open_clip-gemma": ("open_clip", tiny_models.open_clip_siglip),
}
ONE_EACH = ["hf-clip", "blip-itm-blip", "visualgpt-blip2-opt", "blind-t5", "vqascore-instructblip-t5", "vqascore-llava"]
ALL = [pytest.param(name, marks=() if name in ONE_EACH else pytest.mark.slow) for name in FAMILIES]


def outcome(model: str, folder: Path) -> object:
    """Scores or answers of a run of a folder's model."""
    out = folder.parent / "out.json"
    how = {"limit": 3, "use_cache": "off", "log_samples": True, "output_path": str(out), "device": "cpu"}
    given = {"model": f"local-dir:{folder}"} if model == "open_clip" else {"pretrained": str(folder)}
    simple_evaluate(model, "shapes_color", model_args=given, bootstrap_iters=0, **how)
    rows = map(json.loads, (folder.parent / "out_samples_shapes_color.jsonl").read_text().splitlines())
    kept = [{key: value for key, value in row.items() if key in ("scores", "answers")} for row in rows]
    out.unlink()
    assert all(kept)
    return kept


@pytest.mark.parametrize("family", ALL)
def test_no_missing_file_changes_a_score(tmp_path, family):
    model, make = FAMILIES[family]
    whole = make(tmp_path / "whole")
    expected = outcome(model, whole)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert {"tokenizer.json", "spiece.model"} & {file.name for file in files} or family == "open_clip"
    for file in files:
        part = shutil.copytree(whole, tmp_path / "part")
        (part / file).unlink()
        try:
            assert outcome(model, part) == expected, file
        except TtmbenchError as error:
            assert error.exit_code in (2, 4), (file, error)
        shutil.rmtree(part)


@pytest.mark.parametrize("family", ALL)
def test_a_vocabulary_beyond_the_embedding_is_refused(tmp_path, family):
    model, make = FAMILIES[family]
    files = [*make(tmp_path / "model").rglob("tokenizer.json")]
    assert files or family in ("hf-siglip-real", "open_clip")
    for file in files:
        whole = file.read_text(encoding="utf-8")
        made = json.loads(whole)
        known, words = made["model"]["vocab"], [f"word{number}" for number in range(1000)]
        if isinstance(known, dict):
            known |= {word: len(known) + number for number, word in enumerate(words)}
        else:
            known += [[word, -99.0] for word in words]
        file.write_text(json.dumps(made), encoding="utf-8")
        with pytest.raises(TtmbenchError, match=r"belongs to another model|image tokens do not match") as caught:
            outcome(model, tmp_path / "model")
        assert caught.value.exit_code == (1 if family == "vqascore-paligemma" else 4)
        file.write_text(whole, encoding="utf-8")


def test_bytes_need_no_vocabulary(tmp_path):
    import transformers

    folder = tiny_models.language_model(tmp_path / "t5", "t5")
    (folder / "tokenizer.json").unlink()
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(folder)
    config = transformers.T5Config.from_pretrained(folder, vocab_size=300)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    assert len(outcome("blind", folder)) == 3


@pytest.mark.parametrize(
    "family", ["blind-t5", "visualgpt-blip-captioner", "vqascore-llava", "vqascore-qwen2_vl", "choice-llava"]
)
def test_a_special_token_in_a_prompt_is_refused(tmp_path, family):
    model, make = FAMILIES[family]
    special = {"vqascore-llava": "<image>", "choice-llava": "<image>", "vqascore-qwen2_vl": "<|image_pad|>"}
    images = [Image.new("RGB", (32, 32), color) for color in ("red", "blue")]
    captions = [f"a red {special.get(family, '</s>')} left", "a blue right"]
    task = Task.from_groups([images], [captions], name="signs")
    with pytest.raises(TtmbenchError, match="group 0: the caption") as caught:
        simple_evaluate(model, task, model_args={"pretrained": str(make(tmp_path / "model"))}, use_cache="off")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", ["clip", "siglip", "blip"])
def test_an_encoder_reads_a_special_token_as_text(tmp_path, name):
    from ttmbench.model_adapters import hf, itc

    module = itc if name == "blip" else hf
    adapter = module.load(pretrained=str(tiny_models.MODELS[name](tmp_path / "model")))
    ends = "[SEP]" if name == "blip" else "</s>"
    captions = [f"a red {ends} left", f"a red {ends} right"]
    assert adapter.refused(captions) == [None, None]
    ids = adapter.prepare_captions(captions)["input_ids"]
    assert int((ids[0] != ids[1]).sum()) == 1
    images = adapter.encode_images(adapter.prepare_images([Image.new("RGB", (32, 32), "red")]))
    scores = adapter.logits(images, adapter.encode_captions(adapter.prepare_captions(captions)))[0]
    assert not np.isclose(*scores.detach().numpy(), rtol=0, atol=1e-7)


def test_open_clips_tokenizer_reads_its_special_tokens_as_text():
    import open_clip

    own = open_clip.SimpleTokenizer()
    plain, special = without_special_tokens(own)
    captions = ["A dog's 2 bowls, <start> of_text?", "", "naïve ﬁ &amp; “quoted”", "word " * 100]
    assert plain(captions).equal(own(captions)) and not special
    assert not set(plain.encode("a <end_of_text> b <START_OF_TEXT>")) & set(own.all_special_ids)
    assert own.all_special_ids[1] in own.encode("a <end_of_text> b")


def test_a_special_token_that_stays_one_is_refused():
    transformers = pytest.importorskip("transformers", minversion="5.0")  # makes T5's from a vocabulary

    pieces = ["<pad>", "</s>", "<unk>", "▁", "▁a", "<", "/", "s", ">"]
    unigram = transformers.T5Tokenizer(vocab=[(piece, -float(at)) for at, piece in enumerate(pieces)], extra_ids=0)
    model = hf.load(pretrained="tiny_clip", device="cpu")
    model.special_tokens = as_text(unigram)[1]
    assert model.refused(["a </s> a", "a </S>", "a < / s >"]) == ["</s>", "</s>", None]
