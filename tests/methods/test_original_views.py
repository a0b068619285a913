"""Methods with views against the authors' repositories; each test is skipped without a clone that a variable names.

``ZERO_REPOSITORY``: FarinaMatteo/zero at c609f7c2. ``MTA_REPOSITORY``: MaxZanella/MTA at cafafdfa.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from support.view_tasks import BIAS, SCALE, view_task

from ttmbench.methods.mta import mta
from ttmbench.methods.zero import zero

IMPORTED_BY_ZERO = "data data.datautils data.imagenet_prompts data.cls_to_names clip clip.custom_clip utils utils.tools"


def clone(variable) -> Path:
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no clone")
    return Path(folder)


def zeros_module(monkeypatch):
    """``ttas/zero.py`` without the data sets and models that it imports."""
    folder = clone("ZERO_REPOSITORY") / "ttas"
    for name in IMPORTED_BY_ZERO.split():
        module = ModuleType(name)
        module.__getattr__ = lambda name: None
        monkeypatch.setitem(sys.modules, name, module)
    package = ModuleType("ttas")
    package.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, "ttas", package)
    for name in ("ttas.base", "ttas.zero"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module("ttas.zero")
    monkeypatch.setattr(found, "greedy_break", lambda ties, logits, device: pytest.fail("votes tie"))
    return found


@pytest.mark.parametrize("captions", [2, 4])
def test_zero(monkeypatch, captions):
    module, task = zeros_module(monkeypatch), view_task(20, 2, captions, spread=0.5)
    votes, views = zero(task, as_published=True), task.views(64, 0.5, False)
    compared = 0
    for group in range(20):
        model = SimpleNamespace(get_text_features=lambda group=group: task.captions[group], temp=1 / SCALE)
        model.get_image_features = lambda views: views
        for image, row in enumerate(task.image_rows[group].tolist()):
            best = votes[group, image].sort(descending=True).values
            if best[0] == best[1]:  # which the original breaks by position
                continue
            original = module.Zero.__new__(module.Zero)
            torch.nn.Module.__init__(original)
            original.set_hyperparams()
            original.model, compared = model, compared + 1
            assert torch.equal(original.zero(views[row])[0], votes[group, image])
    assert compared > 30


@pytest.mark.filterwarnings("ignore")  # of half precision without an accelerator
@pytest.mark.parametrize(("captions", "spread"), [(2, 0.3), (4, 0.1), (3, 0.8)])
def test_mta(monkeypatch, captions, spread):
    monkeypatch.syspath_prepend(str(clone("MTA_REPOSITORY")))
    monkeypatch.delitem(sys.modules, "mta", raising=False)
    solve = importlib.import_module("mta").solve_mta
    task = view_task(10, 2, captions, spread=spread)
    scores, views = mta(task), task.views(64, 0.5, False)
    for group in range(10):
        for image, row in enumerate(task.image_rows[group].tolist()):

            def model(inputs, features, group=group):
                return inputs, task.captions[group], torch.tensor(SCALE)

            found = solve(model, views[row], SimpleNamespace(lambda_y=0.2, lambda_q=4))[0] + BIAS
            np.testing.assert_allclose(scores[group, image], found, atol=SCALE * 2e-6)
