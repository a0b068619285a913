"""Matching against brute force and against scipy, ties to the last bit, and the global assignment."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from ttmbench import _arrays
from ttmbench.matching import injections, match_global, match_groups
from ttmbench.metrics import global_assignment_accuracy

SHAPES = [(1, 2), (1, 5), (2, 2), (2, 4), (3, 3), (3, 5), (4, 4)]


def score_arrays(elements):
    return st.sampled_from(SHAPES).flatmap(lambda shape: arrays(np.float64, (3, *shape), elements=elements))


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 4), st.integers(0, 2)).flatmap(
        lambda shape: arrays(np.float64, (shape[0], shape[0] + shape[1]), elements=st.integers(-2, 2).map(float))
    )
)
def test_global_ties_equal_brute_force(scores):
    """An image is tied exactly where the optimal assignments disagree about its caption."""
    n, k = scores.shape
    totals = {p: sum(scores[i, c] for i, c in enumerate(p)) for p in permutations(range(k), n)}
    best = max(totals.values())
    optimal = [p for p, total in totals.items() if total == best]
    found = match_global(scores)
    assert tuple(found.captions.tolist()) in optimal
    assert found.tie.tolist() == [len({p[i] for p in optimal}) > 1 for i in range(n)]
    assert global_assignment_accuracy(scores).tolist() == [all(p[i] == i for p in optimal) for i in range(n)]


def test_global_matching_refuses_more_images_than_captions():
    with pytest.raises(ValueError, match="images <= captions"):
        match_global(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="image 1"):
        match_global(np.array([[0.0, 1.0], [np.nan, 1.0]]))


@pytest.mark.parametrize("scale", [1e-300, 1e-11, 1.0, 1e15])
def test_global_ties_do_not_depend_on_the_scores_scale(scale):
    scores = np.random.RandomState(0).randint(0, 4, (12, 12)).astype(float)
    assert match_global(scores * scale).tie.tolist() == match_global(scores).tie.tolist()
    untied = np.random.RandomState(0).rand(12, 12)
    assert not match_global(untied * scale).tie.any() and match_global(np.full((3, 4), scale)).tie.all()


@given(
    score_arrays(st.integers(-4, 4).map(float))
    | score_arrays(st.floats(-1e30, 1e30) | st.sampled_from([0.1, 0.2, 0.3, 1e-310, -0.1, 1e16, 1.0]))
)
def test_matchings_and_margins_equal_sums_of_fractions(scores):
    """One matching after the other, the first of which is the truth; totals however close are compared exactly."""
    found = match_groups(scores)
    ways = injections(*scores.shape[1:]).tolist()
    for g, s in enumerate(scores):
        exact = [[Fraction(float(one)) for one in row] for row in s]
        totals = [sum(exact[i][c] for i, c in enumerate(p)) for p in ways]
        best, second = sorted(totals, reverse=True)[:2]
        assert totals[ways.index(found.captions[g].tolist())] == best
        assert found.tie[g] == (best == second)
        if (s == s.round()).all() and np.abs(s).max() < 2**50:  # sums of which are exact
            assert found.margin[g] == float(best - second)


def test_groups_of_no_and_of_the_largest_number():
    """Every matching of 40,320 is as good as the best: more than sums of fractions, one by one, get through."""
    assert match_groups(np.full((20, 8, 8), 0.1)).tie.all()
    assert match_groups(np.zeros((0, 2, 2))).captions.shape == (0, 2)


def test_rows_in_parts_are_matched_as_all_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    for trial in range(40):
        images = int(rng.integers(1, 20))
        scores = rng.integers(0, 3 if trial % 2 else 900, (images, images + trial % 4)) * 0.1
        whole = match_global(scores)
        rows, columns = linear_sum_assignment(scores, maximize=True)
        assert np.array_equal(whole.captions, columns) and np.array_equal(whole.scores, scores[rows, columns])
        with monkeypatch.context() as patch:
            patch.setattr(_arrays, "_PART", 50)
            found = _arrays.assign(scores)
        assert np.array_equal(found.captions, whole.captions) and np.array_equal(found.tie, whole.tie)
