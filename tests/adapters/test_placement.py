"""Models that are spread over devices, memory and disk have the scores and the identity of the same model whole."""

from __future__ import annotations

import importlib.metadata
import json

import numpy as np
import pytest
import torch
from PIL import Image

from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.model import ChoiceQuestion
from ttmbench.model_adapters import choice, hf, visualgpt, vqascore
from ttmbench.model_adapters._shared.options import ChatOptions
from ttmbench.model_adapters._shared.pretrained import placement_of, untrainable

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
pytest.importorskip("accelerate")
MAPS = {
    "whole": {"": "cpu"},
    "a word": "auto",
    "a device": "cpu",
    "disk": {"model": "disk", "lm_head": "cpu"},
    "parts": {"model.vision_model": "cpu", "model.connector": "disk", "model.text_model": "disk", "lm_head": "disk"},
}
IMAGES = [Image.new("RGB", (40, 30), color) for color in ("red", "blue", "green")]
CAPTIONS = ["a red circle", "a blue circle", "a green one"]


@pytest.fixture(scope="module")
def folder(tiny_vlm):
    return str(tiny_vlm("smolvlm"))


@pytest.fixture(scope="module")
def whole(folder):
    adapter = vqascore.load(pretrained=folder, device="cpu")
    return adapter.score_pairs(IMAGES, CAPTIONS), adapter.fingerprint()


@pytest.mark.parametrize("name", MAPS)
def test_a_map_moves_no_bit_and_is_no_part_of_the_model(name, folder, whole, tmp_path):
    adapter = vqascore.load(pretrained=folder, device_map=MAPS[name], offload_folder=str(tmp_path / "disk"))
    assert np.array_equal(adapter.score_pairs(IMAGES, CAPTIONS), whole[0])
    assert adapter.fingerprint() == whole[1] and adapter.device == torch.device("cpu")
    offloaded = name in ("disk", "parts")
    assert bool(adapter.untrainable) is offloaded and "offloaded" in (adapter.untrainable or "offloaded")


def test_weights_that_two_parts_share_count_once(tiny_vlm, tmp_path):
    tied = str(tiny_vlm("paligemma"))
    parts = ("model.vision_tower", "model.multi_modal_projector", "model.language_model", "lm_head")
    apart = vqascore.load(pretrained=tied, device_map=dict.fromkeys(parts, "disk"), offload_folder=str(tmp_path))
    assert apart.fingerprint() == vqascore.load(pretrained=tied, device="cpu").fingerprint()
    with pytest.raises(UsageError, match=r"device_map: 'lm_head.weight' shares its weights with a part that is else"):
        elsewhere = {**dict.fromkeys(parts, "cpu"), "lm_head": "disk"}
        vqascore.load(pretrained=tied, device_map=elsewhere, offload_folder=str(tmp_path))


def test_captions_and_choices_are_the_same_too(folder, tmp_path):
    apart = {"device_map": MAPS["parts"], "offload_folder": str(tmp_path)}
    one, other = visualgpt.load(pretrained=folder, device="cpu"), visualgpt.load(pretrained=folder, **apart)
    assert np.array_equal(one.score_pairs(IMAGES, CAPTIONS), other.score_pairs(IMAGES, CAPTIONS))
    assert one.fingerprint() == other.fingerprint()
    first, second = (choice.load(pretrained=folder, max_tokens=4, **how) for how in ({"device": "cpu"}, {**apart}))
    assert first.fingerprint() == second.fingerprint()
    question = ChoiceQuestion("A or B?", IMAGES[:1])
    assert first.answer([question]) == second.answer([question])


def run(folder, *more, args=""):
    words = ["--model", "vqascore", "--model_args", f"pretrained={folder}{args}", "--tasks", "shapes_color"]
    return main([*words, "--limit", "3", "--bootstrap_iters", "0", *more])


def test_the_command_takes_maps_and_the_cache_knows_the_model(folder, tmp_path, capsys):
    cache = ["--use_cache", str(tmp_path / "cache")]
    assert run(folder, "-o", str(tmp_path / "a.json"), "--device", "cpu", *cache) == 0
    parts = ",device_map.model=disk,device_map.lm_head=cpu,max_memory.cpu=2GiB"
    spread = f"{parts},offload_folder={tmp_path / 'disk'}"
    assert run(folder, "-o", str(tmp_path / "b.json"), *cache, args=spread) == 0, capsys.readouterr().err
    whole, apart = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert whole["results"] == apart["results"]
    assert whole["model_info"]["fingerprint"] == apart["model_info"]["fingerprint"]
    assert apart["datasets"]["shapes_color"]["from_store"] and apart["config"]["model_args"]["max_memory"]
    capsys.readouterr()
    assert run(folder, "--ttm", args=spread) == 2
    err = capsys.readouterr().err
    assert "cannot be adapted: a part of its weights is offloaded (cpu, disk) and copied in for each pass" in err
    assert run(folder, "--ttm", "--ttm_args", "iterations=1,epochs=1", args=",device_map=auto") == 0  # all in one place


def placement(**arguments):
    return placement_of(ChatOptions(pretrained="x", **arguments))


WRONG = {
    ",load_in_4bit=true": "bitsandbytes",
    ",load_in_4bit=true,quantization_config.bnb_type=nf4": "quantization_config.bnb_type is unknown; known: load_in",
    ",quantization_config.bnb_4bit_quant_type=nf4": "needs load_in_4bit=true or load_in_8bit=true",
    ",max_memory.cpu=1GiB": "add device_map=auto",
    ",device_map=nonsense": "nonsense",
    ",device_map=cuda:99": "cannot be loaded",
}


@pytest.mark.parametrize("args", WRONG)
def test_what_cannot_be_is_one_line(args, folder, capsys, monkeypatch):
    version = importlib.metadata.version
    known = lambda name: version("no-such-package" if name == "bitsandbytes" else name)  # noqa: E731
    monkeypatch.setattr(importlib.metadata, "version", known)
    by_library = args.startswith((",load_in_4bit=true", ",device_map")) and "bnb_type" not in args
    assert run(folder, args=args) == (4 if by_library else 2)
    err = capsys.readouterr().err
    assert WRONG[args] in err and err.count("\n") == 1, err


def test_a_map_and_a_device_and_models_without_a_template(folder, tiny_vlm, capsys, monkeypatch):
    assert run(folder, "--device", "cpu", args=",device_map=auto") == 2
    assert "device_map chooses the devices, so --device cpu has no meaning" in capsys.readouterr().err
    blip2 = tiny_vlm("blip2")
    for kind in (vqascore, visualgpt):
        with pytest.raises(UsageError, match="is loaded whole, on one device: device_map and quantisation are for"):
            kind.load(pretrained=str(blip2), device_map="auto")
    monkeypatch.setattr("transformers.integrations.accelerate.is_accelerate_available", lambda: False)
    with pytest.raises(DataError, match="accelerate"):
        vqascore.load(pretrained=folder, device_map="auto")


def test_quantisation_is_handed_on_and_named(monkeypatch):
    monkeypatch.setattr("transformers.BitsAndBytesConfig.post_init", lambda self: None)  # looks for bitsandbytes
    eight = placement(device="cpu", load_in_8bit=True, quantization_config={"llm_int8_threshold": 4.0})
    assert eight["device_map"] == {"": "cpu"}
    assert eight["quantization_config"].load_in_8bit and eight["quantization_config"].llm_int8_threshold == 4.0
    four = placement(device="cpu", load_in_4bit=True, quantization_config={"bnb_4bit_compute_dtype": "bf16"})
    assert four["quantization_config"].bnb_4bit_compute_dtype == torch.bfloat16
    other = placement(device="cpu", quantization_config={"quant_method": "torchao", "quant_type": "int8"})
    assert other["quantization_config"] == {"quant_method": "torchao", "quant_type": "int8"}
    loaded = hf.load(pretrained="tiny_clip", device="cpu").loaded
    loaded.model.is_quantized = True
    loaded.model.config.quantization_config = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    stated = loaded.describe("name", "0", torch.device("cpu"), "fp32")
    assert stated["quantization"] == {"load_in_4bit": True, "bnb_4bit_compute_dtype": "torch.bfloat16"}
    assert "its weights are quantised" in untrainable(loaded.model)
