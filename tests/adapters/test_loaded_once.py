"""A model that the suite copies instead of reading it again (``support/loaded_models.py``) is as if it were read."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from support.loaded_models import LoadedOnce, key_of

from ttmbench.errors import DataError
from ttmbench.model_adapters import hf, vqascore
from ttmbench.model_adapters._shared import pretrained
from ttmbench.model_adapters._shared.options import HubFiles


def scores(adapter):
    images = [Image.new("RGB", (40, 40), color) for color in ("red", "blue")]
    return adapter.score_pairs(images, ["a red circle", "a blue square"])


@pytest.fixture
def reads(monkeypatch):
    """The stand-in, fresh, with what it read, and the loader of the package behind it."""
    found, real = [], pretrained._load
    while isinstance(real, LoadedOnce):
        real = real._load

    def load(kind, *rest):
        found.append(kind.__name__)
        return real(kind, *rest)

    monkeypatch.setattr(pretrained, "_load", LoadedOnce(load))
    return found


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "paligemma"])
def test_copies_are_models_of_their_own(kind, tiny_vlm, reads):
    folder = str(tiny_vlm("chat", kind=kind))
    fresh = vqascore.load(pretrained=folder, device="cpu")
    count = len(reads)
    other, one, third = (vqascore.load(pretrained=folder, device="cpu") for _ in range(3))
    assert len(reads) == 2 * count, "read when first asked for, and when first asked for again"
    assert list(scores(other)) == list(scores(fresh)) and other.fingerprint() == fresh.fingerprint()
    for parameter in one.parameters():
        parameter.detach().zero_()
    one.chat.model.config.text_config.vocab_size = 3
    one.chat.processor.tokenizer.add_tokens(["new"])
    assert list(scores(one)) != list(scores(fresh))
    for untouched in (other, third, vqascore.load(pretrained=folder, device="cpu")):
        assert list(scores(untouched)) == list(scores(fresh))
        assert untouched.chat.model.config.text_config.vocab_size != 3
        assert len(untouched.chat.processor.tokenizer) == len(fresh.chat.processor.tokenizer)
    assert len(reads) == 2 * count


def test_tensors_that_are_one_stay_one(tiny_vlm, reads):
    folder = str(tiny_vlm("language_model", kind="gpt2"))
    found = pretrained.find(HubFiles(pretrained=folder))
    for _ in range(3):
        model = pretrained.load_weights(transformers.AutoModelForCausalLM, found)
        assert model.lm_head.weight is model.transformer.wte.weight and not model.training
    assert len(reads) == 2


def test_other_files_other_options_and_another_reader_are_read(tiny_hf_clip, tmp_path, reads, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(tiny_hf_clip, folder)

    def load(**options):
        return hf.load(pretrained=str(folder), device="cpu", **options)

    first, *_, last = (load() for _ in range(3))
    usual = len(reads)
    load(attn_implementation="eager")
    assert reads[usual:] == ["AutoModel"]
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "logit_scale": tensors["logit_scale"] + 1}, folder / "model.safetensors", {"format": "pt"})
    others = [load() for _ in range(3)]
    assert all(torch.equal(other.model.logit_scale, first.model.logit_scale + 1) for other in others)
    assert torch.equal(last.model.logit_scale, first.model.logit_scale)
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError):
        load()
    shutil.copy(tiny_hf_clip / "config.json", folder)
    for _ in range(3):
        load()

    def lacking(*_, **__):
        raise OSError("no such tokenizer")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lacking)
    with pytest.raises(DataError, match="no such tokenizer"):
        load()
    assert key_of(transformers.AutoModel, str(folder), {"device_map": "auto"}) is None
    assert key_of(transformers.AutoModel, "openai/some-id", {}) is None
