"""What the prompts of an image share is computed once: how much work is left, and which prompts go together.

On an accelerator images of equal shape are encoded together, and prepared in threads wherever the model computes.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.adapter_inputs import random_images
from support.rounding import bound
from support.stand_in_gpu import stand_in_gpu

from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import find_task
from ttmbench.errors import UsageError
from ttmbench.model_adapters import vqascore
from ttmbench.model_adapters._shared.pair_model import projected
from ttmbench.plugins.registry import build_registry

SLOW = "llava_onevision qwen2_5_vl qwen3_vl smolvlm internvl".split()  # prepared as others are
KINDS = ["llava", "qwen2_vl", "idefics3", "paligemma", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_a_batch_computes_what_its_prompts_share_once(kind, tiny_vlm):
    registry, seen = build_registry(), []
    groups = load_task_data(registry, find_task(registry, "shapes_color"), limit=2).groups
    pairs = [(image.open(), caption) for group in groups for image in group.images for caption in group.captions]
    folder = str(tiny_vlm("chat", kind=kind))
    with stand_in_gpu(), torch.no_grad():
        adapter = vqascore.load(pretrained=folder, device="cuda")
        images = adapter.prepare_images([image for image, _ in pairs[::2]])
        encoded = adapter.encode_images([image for image in images for _ in range(2)])
        asked = adapter.prepare_captions([caption for _, caption in pairs])
        lengths = [
            len(adapter.chat.row(image, prompt)["input_ids"]) for (image, _), prompt in zip(encoded, asked, strict=True)
        ]
        adapter.model.model.language_model.register_forward_pre_hook(
            lambda _, args, given: seen.append(given["inputs_embeds"].shape[:2]), with_kwargs=True
        )
        together = adapter.score_prepared(encoded, asked)
        (images, shared), (captions, rest) = seen
        assert (images, captions, shared + rest) == (4, 8, max(lengths))
        alone = [adapter.score_prepared([image], [prompt]) for image, prompt in zip(encoded, asked, strict=True)]
        assert [length for _, length in seen[2:]] == lengths, "an image with one caption is computed at once"
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_prepared_in_threads_and_encoded_once(kind, tiny_vlm, monkeypatch):
    adapter = vqascore.load(pretrained=str(tiny_vlm("chat", kind=kind)), device="cpu")
    images = [image for pair in zip(random_images(3), random_images(3, (30, 90)), strict=True) for image in pair]
    prepared = adapter.prepare_images(images)
    with ThreadPoolExecutor(4) as threads:
        for one, (other,) in zip(
            prepared, threads.map(lambda image: adapter.prepare_images([image]), images), strict=True
        ):
            assert all(torch.equal(value, other.features[name]) for name, value in one.features.items())
    calls, encoded = [], adapter.chat._encoded
    monkeypatch.setattr(adapter.chat, "_encoded", lambda image: calls.append(image) or encoded(image))
    question = adapter.prepare_captions(["a red circle"] * 12)
    with torch.inference_mode():
        scores = adapter.score_prepared(adapter.encode_images(prepared * 2), question)
    assert len(calls) == 6 and np.ptp(scores) > 1e-3


def test_weights_are_as_the_checkpoint_has_them_on_an_accelerator(tiny_vlm, tmp_path, monkeypatch):
    """And what they are is stated; such weights are too coarse to train, which is known before anything is scored."""
    from transformers import AutoModelForImageTextToText

    folder = tmp_path / "model"
    shutil.copytree(tiny_vlm("chat", kind="llava"), folder)
    AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert "bfloat16" in json.loads((folder / "config.json").read_text()).values()
    here = vqascore.load(pretrained=str(folder), device="cpu")
    assert here.fingerprint()["weights"] == "float32" and here.untrainable is None
    with stand_in_gpu():
        there = vqascore.load(pretrained=str(folder), device="cuda")
        assert there.fingerprint()["weights"] == "bfloat16"
        assert "weights_dtype=fp32" in there.untrainable
        with pytest.raises(UsageError, match="too coarse to train"):
            there.check_trainable()
        asked = vqascore.load(pretrained=str(folder), device="cuda", weights_dtype="fp32")
        assert asked.fingerprint()["weights"] == "float32" and asked.untrainable is None


def test_the_last_layer_converts_its_weights_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr("ttmbench.model_adapters._shared.pair_model._ROWS", 7)
    layer = torch.nn.Linear(16, 40, dtype=torch.bfloat16)
    states = torch.randn(3, 16)
    whole = torch.nn.functional.linear(states, layer.weight.float(), layer.bias.float())
    found = projected(states, layer.weight, layer.bias.float())
    assert torch.allclose(found, whole, atol=bound(layer, whole.abs().max()), rtol=0)
