"""Names that people type for models: the error prints options that run them."""

from __future__ import annotations

import pytest

from ttmbench.cli import main

TYPED = {
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
}


@pytest.mark.parametrize("typed", TYPED)
def test_a_name_that_people_type_gets_the_options_that_run_it(typed, capsys):
    assert main(["--model", typed, "--tasks", "shapes_color"]) == 2
    assert capsys.readouterr().err == f"ttmbench: unknown model '{typed}'; run it with: {TYPED[typed]}\n"


def test_a_folder_is_taken_for_weights_of_transformers(tmp_path, capsys):
    assert main(["--model", str(tmp_path), "--tasks", "shapes_color"]) == 2
    assert f"run it with: --model hf --model_args pretrained={tmp_path}\n" in capsys.readouterr().err


def test_other_names_get_near_ones(capsys):
    assert main(["--model", "siglp-b16", "--tasks", "shapes_color"]) == 2
    assert "unknown model 'siglp-b16'; did you mean 'siglip-b16'" in capsys.readouterr().err
