"""Sinkhorn normalisation against plain loops; at 2x2 its group score is the group match."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.method_tasks import score_task

from ttmbench.errors import UsageError
from ttmbench.methods.features import ScoreTask
from ttmbench.methods.sinkhorn import sinkhorn
from ttmbench.metrics import group_match, group_score


def published(group, eps, tolerance=1e-6):
    """Rows and columns of exp(s / eps) divided by their sums in turn; a row of ones takes what is left over."""
    m, n = group.shape
    plan = [[math.exp(float(one) / eps) for one in row] for row in group] + ([[1.0] * n] if n > m else [])
    targets = [1.0] * m + [n - m]
    for _ in range(10_000):
        plan = [[target * one / sum(row) for one in row] for row, target in zip(plan, targets, strict=False)]
        sums = [sum(row[j] for row in plan) for j in range(n)]
        plan = [[one / sums[j] for j, one in enumerate(row)] for row in plan]
        if all(abs(sum(row) - target) <= tolerance for row, target in zip(plan, targets, strict=False)):
            break
    return eps * np.log(plan[:m])


@pytest.mark.parametrize("eps", [1, 0.5])
@pytest.mark.parametrize("shape", [(8, 2, 2), (8, 3, 3), (8, 2, 4), (8, 1, 3)])
def test_published_steps(shape, eps):
    task = score_task(*shape)
    found = sinkhorn(task, eps=eps)
    assert found.dtype == torch.float32 and task.notes == []
    np.testing.assert_allclose(found, [published(group, eps) for group in task.scores.numpy()], atol=1e-5)


@pytest.mark.parametrize("shape", [(50, 3, 3), (50, 2, 4), (50, 1, 3)])
def test_rows_and_columns_of_the_plan(shape):
    plan = sinkhorn(score_task(*shape)).double().exp()
    np.testing.assert_allclose(plan.sum(dim=2), 1, atol=1e-5)
    columns = plan.sum(dim=1)
    assert (columns <= 1 + 1e-5).all()
    if shape[1] == shape[2]:
        np.testing.assert_allclose(columns, 1, atol=1e-5)


@pytest.mark.parametrize("eps", [1, 0.25])
def test_at_2x2_the_group_score_is_the_group_match(eps):
    task = score_task(2000, spread=1)
    assert (group_score(sinkhorn(task, eps=eps).numpy()) == group_match(task.scores.numpy())).all()


def test_at_2x2_chance_is_one_half():
    """Of a group and the same group with its captions exchanged, exactly one is correct."""
    task = score_task(2000, spread=1)
    exchanged = ScoreTask(task.scores.flip(2), 0)
    correct, other = (group_score(sinkhorn(one).numpy()) for one in (task, exchanged))
    assert (correct ^ other).all()


def test_groups_that_do_not_converge_are_noted():
    task = score_task(6)
    task.scores[2] = torch.tensor([[10.0, 0.0], [30.0, 5.0]])
    scores = sinkhorn(task, rounds=200)
    assert len(task.notes) == 1
    assert task.notes[0].startswith("sinkhorn did not converge in 1 of 6 groups: after 200 rounds rows sum to 1 within")
    assert group_score(scores.flip(2).numpy())[2], "the order of its scores is right all the same"


def test_more_images_than_captions_are_refused():
    with pytest.raises(UsageError, match="sinkhorn needs at least as many captions as images, not 3x2"):
        sinkhorn(score_task(4, 3, 2))
