"""What a model without information gives after training: exactly the metric's chance where a matching is asked for."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from ttmbench.matching import match_groups
from ttmbench.metrics import METRICS

METRIC = {metric.name: metric for metric in METRICS}
SHAPES = [(1, 4), (2, 2), (2, 3), (3, 3)]


def over_all_truths(name: str, scores: np.ndarray) -> np.ndarray:
    """The metric of each group, a mean over all orders of its captions: each is as likely to be that of the truth."""
    orders = permutations(range(scores.shape[2]))
    return np.mean([METRIC[name].compute(scores[:, :, list(order)]) for order in orders], axis=0)


def trained(scores: np.ndarray, strength: float) -> np.ndarray:
    """Scores of a model that learned the best matching of every group of noise, and depend on one another by that."""
    matching = match_groups(scores).captions[:, :, None] == np.arange(scores.shape[2])
    return scores + strength * matching + 0.3 * scores.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("strength", [0.0, 0.2, 10.0])
def test_matchings_of_trained_noise_are_right_as_often_as_chance_says(shape, strength):
    scores = trained(np.random.default_rng(5).random((50, *shape)), strength)
    for name in ("group_match", "individual_match"):
        np.testing.assert_allclose(over_all_truths(name, scores), METRIC[name].chance(*shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_scores_of_trained_noise_rise_to_the_chance_of_group_match_at_most(shape):
    noise = np.random.default_rng(6).random((50, *shape))
    of_match = METRIC["group_match"].chance(*shape)
    levels = [over_all_truths("group_score", trained(noise, strength)) for strength in (0.0, 0.2, 10.0)]
    assert all((level <= of_match + 1e-9).all() for level in levels)
    np.testing.assert_allclose(levels[-1], of_match)
    assert shape[0] == 1 or levels[0].mean() < levels[1].mean() < levels[2].mean()
