"""Test-time prompt tuning against the authors' code; skipped without a clone that a variable names.

``TPT_REPOSITORY``: azshue/TPT at 63ecbace.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support.training_tasks import load, training_task

from ttmbench.methods.tpt import tpt
from ttmbench.methods.views import view_logits

IMPORTED = "clip clip.custom_clip clip.cocoop data data.imagnet_prompts data.datautils data.cls_to_names"
IMPORTED += " data.fewshot_datasets data.imagenet_variants utils utils.tools"
AdamW = torch.optim.AdamW


@pytest.fixture
def original(monkeypatch):
    """``tpt_classification.py`` without the data sets and models that it imports."""
    folder = os.environ.get("TPT_REPOSITORY")
    if not folder:
        pytest.skip("TPT_REPOSITORY names no clone")
    for name in IMPORTED.split():
        module = ModuleType(name)
        module.__getattr__ = lambda name: [] if name == "__all__" else None
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "tpt_classification", raising=False)
    return importlib.import_module("tpt_classification")


@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning", "ignore:.*CUDA is not available:UserWarning")
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", ["tiny_hf_clip", "tiny_siglip"])
def test_tuned_shifts_and_scores(original, monkeypatch, request, name, steps):
    """One image, whose context is tuned, as published."""
    task = training_task(load(request.getfixturevalue(name)), groups=3, m=1, n=3)
    views, made = task.views(64, 0.5, False), []
    monkeypatch.setattr(torch.optim, "AdamW", lambda shifts, **how: made.append(shifts[0]) or AdamW(shifts, **how))
    for step in tpt(task, direction="i2t", steps=steps):
        shift = torch.zeros(4, task.caption_width, requires_grad=True)
        rows, features = task.caption_rows[step.groups], views[task.image_rows[step.groups]]

        def model(features, shift=shift, rows=rows):
            return view_logits(task, features, task.encode_captions(rows, shift))[0, 0]

        scaler = SimpleNamespace(scale=lambda loss: loss, step=lambda optimizer: optimizer.step(), update=lambda: None)
        args = SimpleNamespace(cocoop=False, tta_steps=steps, selection_p=0.1)
        original.test_time_tuning(model, features, AdamW([shift], 5e-3), scaler, args)
        torch.testing.assert_close(made[-1], shift, atol=1e-6, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(model(features)[:1], step.scores[0], atol=1e-5, rtol=0)
