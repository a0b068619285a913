"""The dual softmax against plain loops, and its chance level between those of its neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.method_tasks import score_task

from ttmbench.errors import UsageError
from ttmbench.methods.dual_softmax import dual_softmax
from ttmbench.metrics import group_match, group_score


def published(group):
    up = [[math.exp(one) for one in row] for row in group]
    rows, columns = [sum(row) for row in up], [sum(row[j] for row in up) for j in range(len(up[0]))]
    return [
        [(math.log(one / rows[i]) + math.log(one / columns[j])) / 2 for j, one in enumerate(row)]
        for i, row in enumerate(up)
    ]


@pytest.mark.parametrize("shape", [(20, 2, 2), (10, 3, 3), (10, 2, 4), (10, 3, 2)])
def test_published_steps(shape):
    task = score_task(*shape)
    found = dual_softmax(task)
    assert found.dtype == torch.float32 and task.notes == []
    np.testing.assert_allclose(found, [published(group) for group in task.scores.tolist()], atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((9, 1, 4), 2), ((9, 4, 1), 1)])
def test_with_one_item_to_choose_from_the_other_softmax_stays(shape, axis):
    task = score_task(*shape)
    torch.testing.assert_close(dual_softmax(task), task.scores.log_softmax(axis), atol=1e-6, rtol=0)
    dropped = "t2i" if axis == 2 else "i2t"
    assert task.notes == [f"direction {dropped} is dropped: there is one item to choose from"]


def test_one_image_with_one_caption_is_refused():
    with pytest.raises(UsageError, match="dual_softmax needs groups of at least two images or two captions, not 1x1"):
        dual_softmax(score_task(3, 1, 1))


def test_at_2x2_chance_lies_between_the_raw_group_score_and_the_group_match():
    """The raw group score (chance 1/6) implies that of the dual softmax, and this the group match (chance 1/2)."""
    task = score_task(2000, spread=1)
    raw, match = group_score(task.scores.numpy()), group_match(task.scores.numpy())
    dual = group_score(dual_softmax(task).numpy())
    assert not (raw & ~dual).any() and not (dual & ~match).any()
    assert raw.sum() < dual.sum() < match.sum()
