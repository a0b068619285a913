"""Metrics and chance levels: literal matrices, properties, and a naive loop over permutations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ttmbench import metrics
from ttmbench.results.ranks import RANK_METRICS
from ttmbench.results.stored_files import read_scores
from ttmbench.types import GroupShape

GROUP_METRICS = [spec for spec in (*metrics.METRICS, *RANK_METRICS) if spec.scope == "group"]
FEW = settings(max_examples=40)  # of up to six groups each
SHAPES = [(1, 2), (1, 4), (2, 2), (2, 3), (3, 3), (2, 4), (4, 4)]


def any_scores(wide: bool = False):
    """Score arrays of a few groups of any shape; whole numbers, so that sums are exact and ties happen."""
    values = st.integers(-3, 3).map(float) if not wide else st.floats(-100, 100, width=32)
    return st.sampled_from(SHAPES).flatmap(
        lambda shape: arrays(
            np.float64, st.tuples(st.integers(1, 6), st.just(shape[0]), st.just(shape[1])), elements=values
        )
    )


def naive(scores: np.ndarray) -> dict[str, list[float]]:
    """The definitions, written out with loops for one group after the other."""
    out: dict[str, list[float]] = {name: [] for name in ("text", "image", "group", "match", "individual", "single")}
    for s in scores:
        m, k = s.shape
        rows = [all(s[i, i] > s[i, j] for j in range(k) if j != i) for i in range(m)]
        columns = [all(s[i, i] > s[j, i] for j in range(m) if j != i) for i in range(m)]
        total = sum(s[i, i] for i in range(m))
        match = all(
            total > sum(s[i, p[i]] for i in range(m)) for p in permutations(range(k), m) if p != tuple(range(m))
        )
        out["text"].append(all(rows))
        out["image"].append(all(columns))
        out["group"].append(all(rows) and (all(columns) if m == k else True))
        out["match"].append(match)
        out["individual"].append(sum(rows) / m)
        out["single"].append(sum(columns) / m)
    return out


@FEW
@given(any_scores())
def test_metrics_equal_their_definitions(scores):
    expected = naive(scores)
    assert metrics.text_score(scores).tolist() == expected["text"]
    assert metrics.group_score(scores).tolist() == expected["group"]
    assert metrics.group_match(scores).tolist() == expected["match"]
    assert metrics.individual_match(scores).tolist() == expected["individual"]
    if scores.shape[1] > 1:
        assert metrics.image_score(scores).tolist() == expected["image"]
        assert metrics.image_accuracy(scores).tolist() == expected["single"]


@FEW
@given(any_scores(), st.integers(0, 2**32 - 1))
def test_joint_relabelling_changes_nothing(scores, seed):
    rng = np.random.default_rng(seed)
    _, m, k = scores.shape
    images = rng.permutation(m)
    # The true caption moves with its image; captions without an image keep their places.
    moved = scores[:, images][:, :, np.concatenate([images, np.arange(m, k)])]
    for spec in GROUP_METRICS:
        if spec.defined(m, k):
            assert np.array_equal(spec.compute(scores), spec.compute(moved)), spec.name
            assert np.array_equal(spec.ties(scores), spec.ties(moved)), spec.name


@FEW
@given(st.sampled_from(SHAPES), st.floats(-1e6, 1e6, width=32))
def test_a_constant_scorer_scores_zero_and_ties_everywhere(shape, value):
    scores = np.full((3, *shape), value)
    for spec in GROUP_METRICS:
        if spec.defined(*shape):
            right = spec.compute(scores)
            assert right.all() if spec.name == "text_score_ties_right" else not right.any(), spec.name
            assert spec.ties(scores).all(), spec.name
    matrix = np.full((5, 7), value)
    assert not metrics.global_assignment_accuracy(matrix).any()
    assert metrics.global_assignment_ties(matrix).all()


def test_ties_are_found_where_they_are():
    scores = np.array(
        [[[2.0, 2.0], [0.0, 1.0]], [[2.0, 1.0], [2.0, 3.0]], [[3.0, 1.0], [2.0, 4.0]], [[1.0, 3.0], [0.0, 2.0]]]
    )
    assert metrics.text_score_ties(scores).tolist() == [True, False, False, False]
    assert metrics.image_score_ties(scores).tolist() == [False, True, False, False]
    assert metrics.group_score_ties(scores).tolist() == [True, True, False, False]
    assert metrics.group_match_ties(scores).tolist() == [False, False, False, True]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused_by_group(bad):
    scores = np.zeros((4, 2, 2))
    scores[2, 1, 0] = bad
    for spec in GROUP_METRICS:
        with pytest.raises(ValueError, match="group 2"):
            spec.compute(scores)


def test_real_scores_give_the_published_numbers(real_scores):
    expected = {"clip": (30.75, 10.50, 8.00, 63.75, 0), "vinvl": (37.75, 17.75, 14.50, 68.75, 0)}
    expected["human"] = (89.50, 88.50, 85.50, 97.50, 4)
    asked = (metrics.text_score, metrics.image_score, metrics.group_score, metrics.group_match)
    for name, (text, image, group, match, ties) in expected.items():
        scores = read_scores(real_scores / f"{name}.jsonl", GroupShape(2, 2)).scores["none"][0].groups
        assert [100 * one(scores).mean() for one in asked] == pytest.approx([text, image, group, match]), name
        assert metrics.group_match_ties(scores).sum() == ties, name
