"""What holds of every correction of scores, and of those that add a term of the image and one of the caption."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import feature_task, orders

from ttmbench.matching import match_groups
from ttmbench.methods.dis import dis
from ttmbench.methods.dn import dn
from ttmbench.methods.dual_softmax import dual_softmax
from ttmbench.methods.nnn import nnn
from ttmbench.methods.sinkhorn import sinkhorn
from ttmbench.metrics import group_match, group_score

SUMS = [dn, nnn, dis, sinkhorn]
METHODS = [*SUMS, dual_softmax]


@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize("method", SUMS)
def test_best_matchings_and_margins_of_square_groups_stay(method, side):
    task = feature_task(200, side, side)
    scores = method(task)
    assert not torch.allclose(scores, task.scores), "text and image scores do move"
    before, after = match_groups(task.scores.numpy()), match_groups(scores.numpy())
    assert (before.captions == after.captions).all()
    np.testing.assert_allclose(after.margin, before.margin, atol=1e-4)
    assert (group_match(scores.numpy()) == group_match(task.scores.numpy())).all()


@pytest.mark.parametrize("shape", [(7, 2, 2), (7, 2, 4), (7, 1, 3)])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_captions_in_another_order_give_the_scores_in_that_order(method, seed, shape):
    groups, images, captions = shape
    order = orders(groups, captions, seed)
    found = method(feature_task(*shape, order=order))
    expected = method(feature_task(*shape)).gather(2, order[:, None].expand(-1, images, -1))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 2, 2), (5, 3, 3), (5, 2, 4), (5, 1, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_a_constant_scorer_is_never_correct(method, shape):
    scores = method(feature_task(*shape, same=True)).numpy()
    assert not group_score(scores).any() and not group_match(scores).any()
