"""Names that people type for models: the error prints options that run them."""

from __future__ import annotations

import inspect
import shlex

import pytest

from ttmbench.cli import main
from ttmbench.config import parse_pairs
from ttmbench.plugins.registry import arguments_of, build_registry, load_target

TYPED = {
    "gpt-4o": "--model openai --model_args model=gpt-4o",
    "gpt-4.1-mini": "--model openai --model_args model=gpt-4.1-mini",
    "openai/gpt-4o-mini": "--model openai --model_args model=gpt-4o-mini",
    "gpt-4.1-2025-04-14": "--model gpt-4.1",
    "o3": "--model openai --model_args model=o3,scorer=choice,temperature=none,max_tokens=2000",
    "claude-sonnet-4-5": (
        "--model openai --model_args model=claude-sonnet-4-5,base_url=ADDRESS,api_key_env=VARIABLE,scorer=choice"
    ),
    "openai/clip-vit-base-patch32": "--model clip-b32",
    "OpenAI/CLIP-ViT-Base-Patch32": "--model clip-b32",
    "openai/clip-vit-large-patch14": "--model hf --model_args pretrained=openai/clip-vit-large-patch14",
    "google/siglip2-base-patch16-224": "--model siglip2-b16",
    "google/siglip2-large-patch16-256": "--model hf --model_args pretrained=google/siglip2-large-patch16-256",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": (
        "--model open_clip --model_args model=hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    ),
    "Salesforce/blip-itm-base-coco": "--model blip-itc or --model blip-itm",
    "Salesforce/blip-itm-large-coco": "--model blip-itm --model_args pretrained=Salesforce/blip-itm-large-coco",
    "llava-hf/llava-1.5-7b-hf": "--model vqascore --model_args pretrained=llava-hf/llava-1.5-7b-hf",
    "llava": "--model vqascore --model_args pretrained=llava-hf/llava-1.5-7b-hf",
    "llava-v1.5-13b": "--model vqascore --model_args pretrained=llava-hf/llava-1.5-13b-hf",
    "qwen2.5-vl-3b": "--model vqascore --model_args pretrained=Qwen/Qwen2.5-VL-3B-Instruct",
    "ViT-B/32": "--model open_clip --model_args model=ViT-B-32,pretrained=openai",
}


@pytest.mark.parametrize("typed", TYPED)
def test_a_name_that_people_type_gets_the_options_that_run_it(typed, capsys):
    assert main(["--model", typed, "--tasks", "shapes_color"]) == 2
    assert capsys.readouterr().err == f"ttmbench: unknown model '{typed}'; run it with: {TYPED[typed]}\n"


@pytest.mark.parametrize("options", sorted({one for told in TYPED.values() for one in told.split(" or ")}))
def test_the_options_name_a_model_that_is_there_and_arguments_that_it_has(options):
    words = shlex.split(options)
    registry = build_registry()
    spec = registry.adapter(words[1])
    given = arguments_of(spec, parse_pairs(words[3]) if len(words) > 2 else {})
    if spec.needs and spec.needs[0] == "open_clip_torch":
        pytest.importorskip("open_clip")
    parameters = inspect.signature(load_target(spec.target)).parameters
    assert set(given) <= set(parameters), options


def test_a_folder_is_taken_for_weights_of_transformers(tmp_path, capsys):
    assert main(["--model", str(tmp_path), "--tasks", "shapes_color"]) == 2
    assert f"run it with: --model hf --model_args pretrained={tmp_path}\n" in capsys.readouterr().err


def test_other_names_get_near_ones(capsys):
    assert main(["--model", "siglp-b16", "--tasks", "shapes_color"]) == 2
    assert "unknown model 'siglp-b16'; did you mean 'siglip-b16'" in capsys.readouterr().err
