"""Objects of transformers and open_clip in place of a name: the same numbers, also after TTM, and what is refused."""

from __future__ import annotations

import open_clip
import pytest
import torch
from support import tiny_models
from support.adapter_inputs import random_images
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer, CLIPProcessor

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import as_adapter

SHORT = {"limit": 6, "bootstrap_iters": 0, "device": "cpu", "ttm": {"iterations": 1, "epochs": 1}, "seeds": [0]}
SETTINGS = {"device": "auto", "dtype": "fp32", "compile": False}


@pytest.fixture(scope="module")
def clip(tiny_hf_clip):
    """A model and its processor, as a program loads them."""
    parts = AutoImageProcessor.from_pretrained(tiny_hf_clip), AutoTokenizer.from_pretrained(tiny_hf_clip)
    return AutoModel.from_pretrained(tiny_hf_clip), CLIPProcessor(*parts)


@pytest.fixture(scope="module")
def triple(tmp_path_factory):
    """What `open_clip.create_model_and_transforms` and `get_tokenizer` return, and the folder that they come from."""
    folder = tiny_models.open_clip(tmp_path_factory.mktemp("triple"))
    model, training, validation = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    return folder, model, training, validation, open_clip.get_tokenizer(f"local-dir:{folder}")


def numbers(*args, **kwargs):
    result = ttmbench.simple_evaluate(*args, tasks="shapes_color", **SHORT, **kwargs)
    return result.results["shapes_color"], result["model_info"], result


def test_a_model_of_transformers_equals_its_folder(clip, tiny_hf_clip):
    model, processor = clip
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours, info, result = numbers(model, processor=processor)
    named, stated, _ = numbers("hf", model_args={"pretrained": str(tiny_hf_clip)})
    assert ours == named and "group_match,ttm" in ours
    assert info["fingerprint"] == stated["fingerprint"] and "source" not in info
    assert result.model_name.startswith("TransformersModel-")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "as it was"


def test_objects_of_open_clip_equal_their_folder(triple):
    folder, model, _, validation, tokenizer = triple
    ours, info, _ = numbers((model, validation, tokenizer))
    named, stated, _ = numbers("open_clip", model_args={"model": f"local-dir:{folder}"})
    assert ours == named and "group_match,ttm" in ours
    others = {"model", "config_sha256"}
    assert {**info["fingerprint"], **dict.fromkeys(others)} == {**stated["fingerprint"], **dict.fromkeys(others)}
    again = as_adapter((model, validation, tokenizer), None, SETTINGS)
    assert again.fingerprint() == info["fingerprint"], "also after an adapter has replaced its layers"
    assert not again.savable


def test_another_transform_is_used_as_it_is(triple):
    _, model, _, validation, tokenizer = triple
    adapter = as_adapter((model, lambda image: 2 * validation(image), tokenizer), None, SETTINGS)
    images = random_images()
    assert torch.equal(adapter.prepare_images(images), torch.stack([2 * validation(image) for image in images]))
    assert adapter.fingerprint()["preprocessing"].startswith("<function") and " at 0x" not in str(adapter.fingerprint())
    with pytest.raises(UsageError, match="cannot be enlarged"):
        adapter.prepare_enlarged(images, 1.1)


def test_wrong_combinations_are_one_line(clip, triple, tiny_hf_clip):
    model, processor = clip
    _, theirs, training, validation, tokenizer = triple
    whole, tower = "a model of open_clip is given without processor", type(model.vision_model).__name__
    for given, mine, *facts in (
        ("hf", processor, "processor is for a contrastive dual encoder of transformers"),
        (theirs, processor, "processor", "CLIP is not one"),
        (model.vision_model, processor, f"{tower} is not one"),
        (model, processor.tokenizer, "processor must have a tokenizer and an image_processor"),
        ((theirs, validation), None, whole, "got (CLIP, Compose)"),
        ((model, validation, tokenizer), None, whole, "got (CLIPModel, Compose, SimpleTokenizer)"),
        ((theirs, training, validation), None, whole, "get_tokenizer"),
        ((theirs, training, tokenizer), None, whole, "validation"),
        ((theirs, tokenizer, tokenizer), None, whole),
        ((theirs, validation, tokenizer), processor, whole),
    ):
        with pytest.raises(UsageError) as caught:
            as_adapter(given, mine, SETTINGS)
        assert all(fact in str(caught.value) for fact in facts), str(caught.value)
    half = type(model)(model.config).half()
    with pytest.raises(UsageError, match=r"the weights of CLIPModel are float16; load it in float32, and give dtype="):
        as_adapter(half, processor, SETTINGS)
