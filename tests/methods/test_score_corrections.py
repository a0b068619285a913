"""What holds of every correction of scores, and of those that add a term of the image and one of the caption."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import feature_task

from ttmbench.matching import match_groups
from ttmbench.methods.dis import dis
from ttmbench.methods.dn import dn
from ttmbench.methods.nnn import nnn
from ttmbench.methods.sinkhorn import sinkhorn
from ttmbench.metrics import group_match

SUMS = [dn, nnn, dis, sinkhorn]


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
