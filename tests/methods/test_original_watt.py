"""WATT against the authors' code; skipped without a clone that a variable names.

``WATT_REPOSITORY``: Mehrdad-Noori/WATT at 40e3faeb.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.adapter_inputs import pooled_of
from support.training_tasks import WORDS, load, training_task
from torch.nn.functional import normalize

from ttmbench.methods.watt import watt
from ttmbench.model_adapters import tiny_clip
from ttmbench.ttm.parameters import select

KNOWN = ("{}", "the {}", "the {} at the top")  # words of the small models' tokenizers


@pytest.fixture
def original(monkeypatch):
    """``adapt/watt.py`` without the models that it imports."""
    folder = os.environ.get("WATT_REPOSITORY")
    if not folder:
        pytest.skip("WATT_REPOSITORY names no clone")
    for name in ("clip", "utils", "utils.misc"):
        module = ModuleType(name)
        module.__getattr__ = lambda name: None
        monkeypatch.setitem(sys.modules, name, module)
    package = ModuleType("adapt")
    package.__path__ = [str(Path(folder) / "adapt")]
    monkeypatch.setitem(sys.modules, "adapt", package)
    monkeypatch.delitem(sys.modules, "adapt.watt", raising=False)
    return importlib.import_module("adapt.watt").WATT


class Clip(torch.nn.Module):
    """The adapter's towers with the names that the original calls."""

    def __init__(self, adapter) -> None:
        super().__init__()
        self.towers = copy.deepcopy(adapter.model).eval().requires_grad_(False)
        self.scale = float(adapter._temperature())

    def encode_image(self, pixels):
        return pooled_of(self.towers.get_image_features(pixel_values=pixels))

    def forward(self, pixels, captions, text_ensemble):
        images = normalize(self.encode_image(pixels), dim=1)
        return self.scale * captions @ images.T, images, captions


@pytest.mark.parametrize("variant", ["sequential", "parallel"])
@pytest.mark.parametrize(("kind", "size"), [("clip", 3), ("siglip", 8)])
def test_weights_after_all_rounds(original, tiny_siglip, kind, size, variant):
    """One group is a batch whose classes are its captions."""
    adapter = tiny_clip.load(device="cpu") if kind == "clip" else load(tiny_siglip)
    task, model = training_task(adapter, groups=1, m=size, n=size), Clip(adapter)
    # With one pseudo-caption for all, the original steps along rounding noise, and ttmbench makes no step.
    assert len(set(task.scores[0].argmax(dim=1).tolist())) > 1
    texts = torch.stack(
        [adapter.encode_captions(adapter.prepare_captions([one.format(x) for x in WORDS[:size]])) for one in KNOWN]
    ).detach()
    parameters = dict(model.named_parameters())
    names = list(select(adapter, "norm_images"))
    trained = [parameters[f"towers.{name}"].requires_grad_() for name in names]
    theirs = original.__new__(original)
    theirs.model, theirs.type, theirs.l, theirs.m, theirs.device = model, variant, 2, 5, "cpu"
    theirs.all_templates, theirs.extract_text_embeddings = KNOWN, lambda *given, **how: texts
    theirs.optimizer = torch.optim.Adam(trained, lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0)
    theirs.model_state, theirs.optimizer_state = theirs.copy_model_and_optimizer(model, theirs.optimizer)
    pixels = adapter._scale.apply(task._prepared.images["pixel_values"])
    theirs.perform_adaptation(pixels, WORDS[:size])
    (step,) = watt(task, wrappers=KNOWN, variant=variant)
    for name, value in zip(names, trained, strict=True):
        assert (value != task._original[name]).any()
        torch.testing.assert_close(task.trained[name].detach(), value.detach(), atol=2e-5, rtol=0)
    with torch.no_grad():
        images = normalize(model.encode_image(pixels), dim=1)
        expected = task.logits(images, normalize(texts.mean(dim=0), dim=1))
    torch.testing.assert_close(step.scores[0], expected, atol=1e-4, rtol=1e-5)
