"""PEFT adapters: equal to merging by hand, digested with their base, and refused where they do not fit it."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.adapter_inputs import CAPTIONS, logits_of, one_step, random_images
from support.rounding import bound

import ttmbench
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import hf, vqascore
from ttmbench.testing import check_adapter

peft = pytest.importorskip("peft")
RANK, ALPHA = 4, 6
LAYERS = ["q_proj", "v_proj"]


def write_adapter(folder: Path, base: Path, kind: str = "AutoModel", named: str | None = "me/base", **config) -> Path:
    """A LoRA adapter with weights that change scores, as peft saves it."""
    model = getattr(transformers, kind).from_pretrained(base)
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": LAYERS, **config}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an old name
        made = peft.get_peft_model(model, peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(5)
    for name, parameter in made.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    made.save_pretrained(folder)
    change_config(folder, base_model_name_or_path=named)
    return folder


def change_config(folder: Path, **changes) -> None:
    path = folder / "adapter_config.json"
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(content), encoding="utf-8")


def change_weights(folder: Path, change) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


@pytest.fixture(scope="module")
def adapter(tiny_hf_clip, tmp_path_factory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), tiny_hf_clip, modules_to_save=["text_projection"])


@pytest.fixture
def copied(adapter, tmp_path) -> Path:
    return shutil.copytree(adapter, tmp_path / "copied")


@pytest.fixture(scope="module")
def by_hand(adapter, tiny_hf_clip, tmp_path_factory) -> Path:
    """The base with alpha / r * B A added to its layers, and the layer that was trained as a whole."""
    folder = Path(shutil.copytree(tiny_hf_clip, tmp_path_factory.mktemp("by_hand") / "model"))
    weights, change = load_file(folder / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    change = {name.removeprefix("base_model.model."): tensor for name, tensor in change.items()}
    for name, tensor in change.items():
        if name.endswith("lora_A.weight"):
            layer = name.removesuffix(".lora_A.weight")
            weights[f"{layer}.weight"] += ALPHA / RANK * change[f"{layer}.lora_B.weight"] @ tensor
        elif "lora_" not in name:
            weights[name] = tensor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("merge", [True, False])
def test_it_is_the_base_with_the_product_added(merge, adapter, by_hand, tiny_hf_clip):
    found = hf.load(pretrained=str(tiny_hf_clip), peft=str(adapter), merge=merge, device="cpu")
    expected = hf.load(pretrained=str(by_hand), device="cpu")
    plain = hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    scores, merged = logits_of(found), logits_of(expected)
    tolerance = bound(found.model, merged)
    assert torch.allclose(scores, merged, atol=tolerance, rtol=0)
    assert (scores - logits_of(plain)).abs().max() > 10 * tolerance, "an adapter that changes nothing shows nothing"
    assert [file["name"] for file in found.files.provenance()["beside"]] == [adapter.name]


def test_the_contract_holds_and_what_is_saved_is_a_model_of_its_own(adapter, tiny_hf_clip, tmp_path):
    for merge in (True, False):
        made = hf.load(pretrained=str(tiny_hf_clip), peft=str(adapter), merge=merge, device="cpu")
        assert "the state comes back after training" in check_adapter(made)
        one_step(made)
        (tmp_path / str(merge)).mkdir()
        made.save(tmp_path / str(merge))
        assert not (tmp_path / str(merge) / "adapter_config.json").exists()
        again = hf.load(pretrained=str(tmp_path / str(merge)), device="cpu")
        tolerance = bound(made.model, logits_of(made))
        assert torch.allclose(logits_of(again), logits_of(made), atol=tolerance, rtol=0), merge
        logits_of(made)  # saving leaves the model as it was


def test_the_fingerprint_covers_base_and_adapter(adapter, copied, tiny_hf_clip, by_hand):
    def of(folder: Path = adapter, **options) -> str:
        made = hf.load(pretrained=str(tiny_hf_clip), peft=str(folder), device="cpu", **options)
        return json.dumps(made.fingerprint()["peft"])

    first = of()
    assert of(folder=copied) == first, "a copy in another folder is the same adapter"
    change_config(copied, lora_alpha=7)
    scaled = of(folder=copied)
    change_config(copied, lora_alpha=ALPHA)
    change_weights(copied, lambda tensors: {name: 2 * tensor for name, tensor in tensors.items()})
    assert len({first, scaled, of(folder=copied), of(merge=False)}) == 4
    whole = [
        hf.load(pretrained=str(base), peft=str(adapter), device="cpu").fingerprint() for base in (tiny_hf_clip, by_hand)
    ]
    assert whole[0]["weights_sha256"] != whole[1]["weights_sha256"]


def test_ttm_trains_on_top_or_the_adapter_alone(adapter, tiny_hf_clip):
    def trained(train: str, merge: bool) -> dict:
        of = {"pretrained": str(tiny_hf_clip), "peft": str(adapter), "merge": merge}
        how = {"ttm": {"iterations": 1, "epochs": 1, "train": train}, "limit": 4, "device": "cpu", "bootstrap_iters": 0}
        return ttmbench.simple_evaluate("hf", "shapes_color", model_args=of, **how)["methods"]["shapes_color"]["ttm"]

    trained("norm", merge=True)
    with pytest.raises(UsageError, match=r"train=adapter: this model has no such parameters; .*merge=false"):
        trained("adapter", merge=True)
    # A and B of two layers in two blocks of two towers, and the text projection
    change = {name: one for name, one in load_file(adapter / "adapter_model.safetensors").items()}
    record = trained("adapter", merge=False)
    assert len(change) == 2 * 2 * len(LAYERS) * 2 + 1 and record["settings"]["train"] == "adapter"
    assert record["trained"]["parameters"] == sum(one.numel() for one in change.values())


def test_an_adapter_alone_names_its_base_and_may_lie_on_the_hub(adapter, tiny_hf_clip, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(transformers.utils.hub, "TRANSFORMERS_CACHE", str(tmp_path), raising=False)  # of transformers 4
    for name, folder in (("base", tiny_hf_clip), ("adapter", adapter)):
        tiny_models.into_cache(tmp_path, f"me/{name}", folder)
        shutil.rmtree(tmp_path / f"models--me--{name}" / ".no_exist")
    expected = logits_of(hf.load(pretrained=str(tiny_hf_clip), peft=str(adapter), device="cpu"))
    ways = (
        {"pretrained": str(adapter)},
        {"pretrained": "me/adapter"},
        {"pretrained": "me/base", "peft": "me/adapter"},
        {"pretrained": str(tiny_hf_clip), "peft": "me/adapter@main"},
    )
    for way in ways:
        assert torch.equal(logits_of(hf.load(**way, offline=True, device="cpu")), expected), way
    assert [files.name for files in hf.locate(pretrained=str(adapter), offline=True)] == ["me/base", str(adapter)]


def test_chat_models_take_adapters_too(tiny_vlm, tmp_path):
    base = tiny_vlm("llava")
    folder = write_adapter(tmp_path / "a", base, "AutoModelForImageTextToText", named=None)
    images, captions = random_images()[:2], CAPTIONS[:2]
    found = {}
    for merge in (True, False):
        made = vqascore.load(pretrained=str(base), peft=str(folder), merge=merge, device="cpu")
        found[merge] = torch.from_numpy(made.score_pairs(images, captions))
        assert made.fingerprint()["peft"]["merged"] is merge
    plain = vqascore.load(pretrained=str(base), device="cpu")
    assert torch.allclose(found[True], found[False], atol=bound(plain.model, found[True]), rtol=0)
    assert not torch.equal(found[True], torch.from_numpy(plain.score_pairs(images, captions)))
    with pytest.raises(UsageError, match="lora trains factors of its own"):
        vqascore.load(pretrained=str(base), peft=str(folder), merge=False, lora=2, device="cpu")


TENSORS = {  # what becomes of those of an adapter, and what is said
    "does not fit": lambda of: {name: one.repeat(2, 2) for name, one in of.items()},
    "it has .*image_model": lambda of: {name.replace("vision_model", "image_model"): one for name, one in of.items()},
    "it lacks ": lambda of: {name: one for name, one in of.items() if "layers.0.self_attn.v_proj" not in name},
}
TOKENS = {"peft_type": "PROMPT_TUNING", "task_type": "FEATURE_EXTRACTION", "num_virtual_tokens": 2}
WRONG = {
    **{says: partial(change_weights, change=change) for says, change in TENSORS.items()},
    "does not fit .* target": partial(change_config, target_modules=["qkv"]),
    "no adapter_model.safetensors": lambda at: (at / "adapter_model.safetensors").unlink(),
    "no peft_type": partial(change_config, peft_type=None),
    "PROMPT_TUNING, which adds tokens": lambda at: (at / "adapter_config.json").write_text(json.dumps(TOKENS)),
    "cannot be read": lambda at: (at / "adapter_model.safetensors").write_bytes(b"x"),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(copied, tiny_hf_clip, says):
    WRONG[says](copied)
    with pytest.raises(DataError, match=says) as refused:
        hf.load(pretrained=str(tiny_hf_clip), peft=str(copied), device="cpu")
    assert "\n" not in str(refused.value)


def test_a_base_that_cannot_be_found_says_what_to_give(copied, tiny_hf_clip, tmp_path, monkeypatch, capsys):
    change_config(copied, base_model_name_or_path="/home/who/models/base")
    with pytest.raises(UsageError, match=r"names the folder /home/who/models/base as its base"):
        hf.load(pretrained=str(copied), device="cpu")
    hf.load(pretrained=str(tiny_hf_clip), peft=str(copied), device="cpu")
    assert "was made for /home/who/models/base, and is put on" in capsys.readouterr().err
    change_config(copied, base_model_name_or_path=None)
    with pytest.raises(UsageError, match="names no base"):
        hf.load(pretrained=str(copied), device="cpu")
    with pytest.raises(UsageError, match="is an adapter of peft, and so is"):
        hf.load(pretrained=str(copied), peft=str(copied), device="cpu")
    with pytest.raises(DataError, match=r"is not an adapter of peft: it has no adapter_config\.json"):
        hf.load(pretrained=str(tiny_hf_clip), peft=str(tiny_hf_clip), device="cpu")
    tensors = load_file(copied / "adapter_model.safetensors")
    (copied / "adapter_model.safetensors").unlink()
    torch.save(tensors, copied / "adapter_model.bin")
    pickled = logits_of(hf.load(pretrained=str(tiny_hf_clip), peft=str(copied), device="cpu"))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError, match=r"peft needs the package peft; pip install 'ttmbench\[lora\]'"):
        hf.load(pretrained=str(tiny_hf_clip), peft=str(copied), device="cpu")
    assert torch.isfinite(pickled).all()
