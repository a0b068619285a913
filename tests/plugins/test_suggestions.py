"""Names that people type for models: the error prints options that run them."""

from __future__ import annotations

import json

import pytest
import torch

from ttmbench.cli import main

TYPED = {
    "OpenAI/CLIP-ViT-Base-Patch32": "--model clip-b32",
    "Salesforce/blip-itm-base-coco": "--model blip-itc --tasks shapes_color or ttmbench --model blip-itm",
}


CHAT = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
FILES = {  # of a folder, and the options that read it
    "--model hf --model_args pretrained={}": {"config.json": {"model_type": "clip", "architectures": ["CLIPModel"]}},
    "--model vqascore --model_args pretrained={}": {"config.json": CHAT},
    "--model itm --model_args pretrained={}": {"config.json": {"model_type": "blip"}},
    "--model visualgpt --model_args pretrained={}": {
        "config.json": {"model_type": "blip", "architectures": ["BlipForConditionalGeneration"]}
    },
    "--model blind --model_args pretrained={}": {"config.json": {"model_type": "gpt2"}},
    "--model sentence_transformers --model_args pretrained={}": {"modules.json": [], "config.json": CHAT},
    "--model multi_vector --model_args pretrained={}": {
        **{"modules.json": [], "config_sentence_transformers.json": {"model_type": "MultiVectorEncoder"}}
    },
    "--model open_clip --model_args model=local-dir:{}": {"open_clip_config.json": {}},
}


def error_of(capsys, model, *more):
    assert main(["--model", str(model), "--tasks", "shapes_color", "--limit", "2", *more]) in (2, 4)
    return capsys.readouterr().err


@pytest.mark.parametrize("typed", TYPED)
def test_a_name_that_people_type_gets_the_options_that_run_it(typed, capsys):
    command = f"ttmbench {TYPED[typed]} --tasks shapes_color"
    assert error_of(capsys, typed) == f"ttmbench: unknown model '{typed}'; run it with: {command}\n"


@pytest.mark.parametrize("options", FILES)
def test_a_folder_gets_the_adapter_of_its_files(options, tmp_path, capsys):
    for name, content in FILES[options].items():
        (tmp_path / name).write_text(json.dumps(content))
    command = f"ttmbench {options.format(tmp_path)} --tasks shapes_color"
    assert error_of(capsys, tmp_path) == f"ttmbench: unknown model '{tmp_path}'; run it with: {command}\n"


@pytest.mark.parametrize(
    ("written", "why"), [(None, "no such file or folder"), ("", "no model adapter"), ("{", "config")]
)
def test_what_no_adapter_reads_is_named(written, why, tmp_path, capsys):
    place = tmp_path / "model"
    if written is not None:
        place.mkdir()
        (place / ("config.json" if written else "notes.txt")).write_text(written)
    assert why in error_of(capsys, place)


def test_a_checkpoint_of_open_clip_gets_its_architecture(tmp_path, capsys):
    file, sizes = tmp_path / "my epoch.pt", {"positional_embedding": (77, 512), "token_embedding.weight": (49408, 512)}
    sizes |= {"visual.conv1.weight": (768, 3, 32, 32), "visual.positional_embedding": (50, 768)}
    layers = [f"{side}transformer.resblocks.{n}.ln_1.weight" for side in ("visual.", "") for n in range(12)]
    sizes |= {"text_projection": (512, 512), **dict.fromkeys(layers, (1,))}
    torch.save({"state_dict": {f"module.{name}": torch.zeros(1).expand(size) for name, size in sizes.items()}}, file)
    command = f"ttmbench --model open_clip --model_args 'model=ViT-B-32,pretrained={file}' --tasks shapes_color\n"
    for model, *more in ([file], ["hf", "-a", f"pretrained={file}"], ["open_clip", "-a", f"model={file}"]):
        assert error_of(capsys, model, *more).endswith(f"; run it with: {command}")


@pytest.mark.parametrize("model", ["vqascore", "blind", "itm", "blip-itc", "sentence_transformers", "open_clip"])
def test_another_adapter_names_that_of_the_files(model, tiny_hf_clip, capsys):
    given = f"model=local-dir:{tiny_hf_clip}" if model == "open_clip" else f"pretrained={tiny_hf_clip}"
    command = f"ttmbench --model hf --model_args pretrained={tiny_hf_clip} --tasks shapes_color"
    assert error_of(capsys, model, "-a", given).endswith(f"; run it with: {command}\n")


def test_files_where_the_command_runs_say_nothing_of_a_named_model(tiny_hf_clip, monkeypatch, capsys):
    monkeypatch.chdir(tiny_hf_clip)
    assert "run it with" not in error_of(capsys, "clip-b32", "--offline")


def test_an_adapter_of_peft_gets_its_base(tiny_hf_clip, tmp_path, capsys):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tiny_hf_clip)}))
    command = f"--model hf --model_args pretrained={tiny_hf_clip},peft={tmp_path} --tasks shapes_color"
    assert error_of(capsys, tmp_path).endswith(f"; run it with: ttmbench {command}\n")


def test_an_id_that_the_hub_does_not_show_needs_an_adapter(capsys):
    assert "--model hf -a pretrained=ID" in error_of(capsys, "llava-hf/llava-1.5-7b-hf", "--offline")


def test_a_model_with_two_heads_gets_the_matching_one(tiny_vlm, capsys):
    assert "run it with: ttmbench --model itm " in error_of(capsys, "hf", "-a", f"pretrained={tiny_vlm('blip')}")


def test_an_error_of_the_right_adapter_stays_as_it_is(tiny_hf_clip, capsys):
    given = f"pretrained={tiny_hf_clip},processor={tiny_hf_clip}/absent"
    assert "run it with" not in error_of(capsys, "hf", "-a", given)
