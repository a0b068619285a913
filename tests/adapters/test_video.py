"""Dual encoders of videos: scores are those of the library, of videos with their frames and of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from support.adapter_inputs import CAPTIONS, assert_same_gradients, logits_of, random_images

import ttmbench
from ttmbench._util.images import frames_of, stacked
from ttmbench.errors import UsageError
from ttmbench.model_adapters import hf
from ttmbench.testing import check_adapter

FAMILIES = ["xclip", "videoprism"]
FRAMES = 8
QUICK = {"limit": 3, "device": "cpu", "bootstrap_iters": 0}


@pytest.fixture(params=FAMILIES)
def folder(request, tiny_vlm):
    return tiny_vlm(request.param)


def videos(count=3):
    frames = random_images(count * FRAMES)
    return [stacked(frames[start : start + FRAMES]) for start in range(0, len(frames), FRAMES)]


def own_forward(folder, shown):
    """The library's model, and the logits of its processors and forward."""
    model, words = (getattr(transformers, f"Auto{part}").from_pretrained(folder) for part in ("Model", "Tokenizer"))
    frames, options = [frames_of(one) for one in shown], {"padding": True, "return_tensors": "pt"}
    if "xclip" in folder.name:
        images = transformers.AutoImageProcessor.from_pretrained(folder)
        inputs = transformers.XCLIPProcessor(images, words)(videos=frames, text=CAPTIONS, **options)
        inputs.pop("token_type_ids", None)
        return model, model(**inputs).logits_per_video
    videos = transformers.AutoVideoProcessor.from_pretrained(folder)
    shown = {"text": [f"{caption}." for caption in CAPTIONS], "videos": frames, "do_sample_frames": False}
    output = model(**transformers.VideoPrismProcessor(videos, words)(**shown, **{**options, "padding": "max_length"}))
    return model, output.video_embeds @ output.text_embeds.T / 0.01


def test_scores_loss_and_gradient_are_the_librarys(folder):
    adapter, shown = hf.load(pretrained=str(folder), device="cpu"), videos()
    (model, expected), scale = own_forward(folder, shown), float(adapter._scale_and_bias()[0].detach())
    together = logits_of(adapter, shown)
    near = {"atol": 1e-5 * scale, "rtol": 0}
    assert torch.allclose(together, expected, **near) and together.std(dim=1).min() > 1e-2
    single = torch.cat([own_forward(folder, [video])[1] for video in shown])
    assert torch.allclose(torch.cat([logits_of(adapter, [video]) for video in shown]), single, **near)
    assert torch.allclose(single, together, **near)
    loss = adapter.matching_loss(adapter.prepare_images(shown), adapter.prepare_captions(CAPTIONS))
    truth = torch.arange(len(CAPTIONS))
    own_loss = sum(torch.nn.functional.cross_entropy(one, truth) for one in (expected, expected.T)) / 2
    assert float(loss.detach()) == pytest.approx(float(own_loss.detach()), abs=1e-5 * scale)
    loss.backward()
    own_loss.backward()
    assert_same_gradients(adapter.model, model)


def test_videoprism_reads_captions_as_its_authors_clean_them(tiny_vlm):
    folder = tiny_vlm("videoprism")
    adapter, words = hf.load(pretrained=str(folder), device="cpu"), transformers.AutoTokenizer.from_pretrained(folder)
    read = adapter.prepare_captions(["A Red-circle,  the_Cat!"])["input_ids"]
    assert read.tolist() == words(["a red circle the cat."])["input_ids"]


def test_the_contract_holds_for_images_and_crops(folder):
    adapter = hf.load(pretrained=str(folder), device="cpu")
    assert "batch size changes no score" in check_adapter(adapter)
    still, equal = random_images(1), stacked(random_images(1) * FRAMES)
    assert torch.allclose(logits_of(adapter, still), logits_of(adapter, [equal]), atol=1e-5, rtol=0)
    cropped = adapter.crop(adapter.prepare_enlarged(videos(2), 1.25), np.full((2, 2), 0.5))["pixel_values"]
    assert cropped.shape == adapter.prepare_images(videos(2))["pixel_values"].shape


@pytest.mark.parametrize("train", ["all", "lora:16", "last_block"])
def test_ttm_adapts_to_the_order_of_frames(folder, train, tmp_path):
    settings = {"iterations": 1, "epochs": 1, "tau_start": 0.0, "tau_end": 0.0, "train": train, "lr": 1e-3}
    options = {**QUICK, "ttm": True, "ttm_args": settings, "model_args": {"pretrained": str(folder)}}
    run = ttmbench.simple_evaluate("hf", "shapes_order", dtype="bf16", use_cache=str(tmp_path), **options)
    (record,) = run.document["methods"]["shapes_order"]["ttm"]["iterations"]
    assert record["selected"] == 3 and all(np.isfinite(record["loss"]))
    raw, adapted = (run.scores["shapes_order"][one][0].groups for one in ("none", "ttm"))
    assert np.ptp(raw, axis=1).min() > 1e-3, "the order of frames matters"
    assert not np.allclose(raw, adapted)
    again = ttmbench.simple_evaluate("hf", "shapes_order", dtype="bf16", use_cache=str(tmp_path), **options)
    assert again.scores["shapes_order"]["ttm"][0].groups.tolist() == adapted.tolist()


def test_other_numbers_of_frames_are_refused(folder, capsys):
    options = {**QUICK, "model_args": {"pretrained": str(folder)}, "task_args": {"video.frames": FRAMES - 1}}
    with pytest.raises(UsageError, match=f"--task_args video.frames={FRAMES}"):
        ttmbench.simple_evaluate("hf", "shapes_order", **options)
    for task in ("shapes_color", "shapes_order"):
        run = ttmbench.simple_evaluate("hf", task, **QUICK, model_args={"pretrained": str(folder)})
        shown = f"an image is shown as {FRAMES} equal" in str(run.document["notes"])
        assert shown == (task == "shapes_color") and "equal" not in capsys.readouterr().err
    if folder.name.startswith("xclip"):  # whose captions have no direction without a video
        with pytest.raises(UsageError, match="a class is a mean of prompts"):
            ttmbench.simple_evaluate("hf", "shapes_naming", **QUICK, model_args={"pretrained": str(folder)})
