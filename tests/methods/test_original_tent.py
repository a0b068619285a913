"""Tent and its filters against the authors' repositories; each test is skipped without a clone that a variable names.

``TENT_REPOSITORY``: DequanWang/tent at e9e926a6. ``EATA_REPOSITORY``: mr-eggplant/EATA at f739b366.
``SAR_REPOSITORY``: mr-eggplant/SAR at 20f6e24b.
"""

from __future__ import annotations

import importlib
import math
import os
import sys

import pytest
import torch
from support.norm_towers import NormTowers, batches_of, copied, norms_of, plain_logits, vector_task

from ttmbench.methods import tent as file
from ttmbench.methods.tent import tent

LR, SHAPE = 0.5, (24, 2, 2)


def original(monkeypatch, variable, module):
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no clone")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(torch.jit, "script", lambda function: function)  # deprecated, and only for speed
    return importlib.import_module(module)


class Images(torch.nn.Module):
    """Positions of images -> scores with the captions of each one's group: a classifier, as the originals take it."""

    def __init__(self, model, task):
        super().__init__()
        self.model, self.task = model, task
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in norms_of(model):
            parameter.requires_grad_(True)

    def forward(self, positions):
        return torch.stack([plain_logits(self.model, self.task, int(one) // 2)[int(one) % 2] for one in positions])


def both(scale, seed=0, **settings):
    """Steps of ours, its task, the same weights as a classifier, and the positions of the images of each batch."""
    model = NormTowers(scale=scale, seed=seed)
    classifier = Images(copied(model), vector_task(model, SHAPE))
    task = vector_task(model, SHAPE)
    batches = [[2 * group + i for group in groups for i in range(2)] for groups in batches_of(task, 6)]
    turns = tent(task, direction="i2t", images=6, **settings)
    return turns, task, classifier, map(torch.tensor, batches)


def same(step, outputs, task, classifier):
    assert torch.allclose(step.scores.flatten(0, 1), outputs, rtol=0, atol=1e-9)
    ours = task.adapter.state_dict()
    for name, value in classifier.model.state_dict().items():
        assert torch.allclose(ours[name], value, rtol=0, atol=1e-8), name


def test_tent(monkeypatch):
    library = original(monkeypatch, "TENT_REPOSITORY", "tent")
    turns, task, classifier, batches = both(10, lr=LR)
    optimizer = torch.optim.Adam(norms_of(classifier.model), lr=LR, betas=(0.9, 0.999), weight_decay=0)
    for step, batch in zip(turns, batches, strict=True):
        same(step, library.forward_and_adapt(batch, classifier, optimizer), task, classifier)


def test_eta(monkeypatch):
    """Without the test of redundancy, which needs the answers of earlier batches."""
    library = original(monkeypatch, "EATA_REPOSITORY", "eata")
    turns, task, classifier, batches = both(14, seed=1, filter="eta", lr=LR)
    optimizer = torch.optim.Adam(norms_of(classifier.model), lr=LR)
    for step, batch in zip(turns, batches, strict=True):
        margin = 0.4 * math.log(2)
        outputs, kept, _, _ = library.forward_and_adapt_eata(batch, classifier, optimizer, None, margin, None)
        same(step, outputs, task, classifier)
        assert kept == int(torch.cat(file.reliable(file.entropies(step.scores, "i2t"), 0.4)).sum())


@pytest.mark.parametrize(("recovery", "resets"), [(0.0, 0), (0.2 / math.log(2), 24 * 2 // 6)])
def test_sar(monkeypatch, recovery, resets):
    """At a threshold of 0.2, which is written in its code, it resets after each batch; its average begins anew."""
    library, sam = (original(monkeypatch, "SAR_REPOSITORY", name) for name in ("sar", "sam"))
    monkeypatch.setattr(file, "RECOVERY", recovery)
    turns, task, classifier, batches = both(25, seed=2, filter="sar", lr=LR * 64 / 6)
    make = lambda: sam.SAM(norms_of(classifier.model), torch.optim.SGD, lr=LR, momentum=0.9)  # noqa: E731
    first, optimizer, average, found = copied(classifier.model).state_dict(), make(), None, 0
    for step, batch in zip(turns, batches, strict=True):
        outputs, average, reset = library.forward_and_adapt_sar(
            batch, classifier, optimizer, 0.4 * math.log(2), 0.2, average
        )
        if reset and recovery:
            found, average, optimizer = found + 1, None, make()
            classifier.model.load_state_dict(first)
        same(step, outputs, task, classifier)
        assert average is None or float(task.state["average"]) == pytest.approx(average, abs=1e-9)
    assert found == resets == int(task.state.get("resets", 0))
