"""The dual softmax against the authors' formula."""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from support.method_tasks import score_task

from ttmbench.errors import UsageError
from ttmbench.methods.dual_softmax import dual_softmax


def published(group, temperature):
    """``-dual_softmax_loss`` of starmemda/CAMoE's DSL.py for every pair, not the diagonal alone."""
    weighted = group * (group / temperature).softmax(0) * len(group)
    return weighted.log_softmax(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1000.0])
@pytest.mark.parametrize("shape", [(20, 2, 2), (10, 3, 3), (10, 2, 4), (10, 3, 2)])
def test_published_steps(shape, temperature):
    task = score_task(*shape)
    for direction in ("i2t", "t2i"):
        found = dual_softmax(task, direction=direction, temperature=temperature)
        assert found.dtype == torch.float32 and task.notes == []
        for group, scores in zip(task.scores.double(), found, strict=True):
            mine = (group, scores) if direction == "i2t" else (group.T, scores.T)
            torch.testing.assert_close(mine[1], published(mine[0], temperature).float(), atol=1e-5, rtol=1e-5)
    assert torch.equal(dual_softmax(task), dual_softmax(task, direction="i2t", temperature=1000.0))


def test_authors_code(monkeypatch):
    folder = os.environ.get("CAMOE_REPOSITORY")  # starmemda/CAMoE
    if not folder:
        pytest.skip("CAMOE_REPOSITORY names no clone")
    monkeypatch.syspath_prepend(folder)
    loss = importlib.import_module("DSL").dual_softmax_loss()
    task = score_task(10, 3, 3)
    for how in ({}, {"temperature": 2.0}):
        found = dual_softmax(task, **how)
        for group, scores in zip(task.scores, found, strict=True):
            expected = loss(group, *how.values())
            torch.testing.assert_close(-scores.diagonal(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("shape", "direction"), [((9, 1, 4), "t2i"), ((9, 4, 1), "i2t")])
def test_with_one_item_to_choose_from_the_other_direction_stays(shape, direction):
    task = score_task(*shape)
    axis = 2 if shape[1] == 1 else 1
    torch.testing.assert_close(dual_softmax(task, direction=direction), task.scores.log_softmax(axis))
    assert task.notes == [f"direction {direction} is dropped: there is one item to choose from"]


def test_one_image_with_one_caption_is_refused():
    with pytest.raises(UsageError, match="dual_softmax needs groups of at least two images or two captions, not 1x1"):
        dual_softmax(score_task(3, 1, 1))
