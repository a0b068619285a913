"""What the suite makes once a process (``conftest.py``) is to a test as if it were made for it."""

from __future__ import annotations

import torch
from PIL import Image, ImageChops

import ttmbench
from ttmbench.data.rendered import drawing, scenes
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.model_adapters import tiny_clip
from ttmbench.plugins.registry import build_registry

SETTINGS = {"device": "cpu", "dtype": "fp32"}


def test_copies_of_the_built_in_model_are_models_of_their_own():
    images, captions = [Image.new("RGB", (40, 40), color) for color in ("red", "blue")], ["a red circle", "a blue one"]

    def scores(model):
        rows = model.encode_images(model.prepare_images(images))
        return model.logits(rows, model.encode_captions(model.prepare_captions(captions)))

    one, other = (make_adapter(build_registry(), "tiny-clip", {}, SETTINGS) for _ in range(2))
    read = scores(tiny_clip.load(device="cpu"))
    assert torch.equal(scores(one), read) and one.fingerprint() == other.fingerprint()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.zero_()
    assert torch.equal(scores(other), read) and not torch.equal(scores(one), read)
    third = make_adapter(build_registry(), "tiny-clip", {}, SETTINGS)
    assert torch.equal(scores(third), read)
    seed1 = make_adapter(build_registry(), "tiny-clip-seed1", {}, SETTINGS)
    assert torch.equal(scores(seed1), scores(tiny_clip.load(training_seed=1, device="cpu")))


def test_a_run_of_a_copy_has_the_numbers_of_a_model_that_was_loaded():
    settings = {"limit": 12, "device": "cpu", "bootstrap_iters": 0, "ttm": {"iterations": 2, "epochs": 1, "lr": 1e-2}}
    loaded = ttmbench.simple_evaluate(tiny_clip.load(device="cpu"), "shapes_color", **settings)
    for _ in range(2):
        assert ttmbench.simple_evaluate("tiny-clip", "shapes_color", **settings).results == loaded.results


def test_a_scene_that_was_drawn_before_is_drawn_again():
    (group,) = scenes.make_groups("color", 1, 0)
    first, second = (scenes.render(group.scenes[0]) for _ in range(2))
    first.putpixel((0, 0), (1, 2, 3))
    fresh = drawing.render(group.scenes[0])
    assert ImageChops.difference(second, fresh).getbbox() is None
    assert ImageChops.difference(first, fresh).getbbox() is not None
