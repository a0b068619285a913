"""Where decisions turn: near ties, the largest numbers, the smallest groups, and what is kept between calls."""

from __future__ import annotations

import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

from ttmbench import chance, matching, metrics, schedules
from ttmbench._arrays import as_floats, check_scores
from ttmbench.metrics import METRICS

EPS = np.finfo(np.float64).eps


def swap(lost: float, low: float = 0.0) -> np.ndarray:
    """Two images whose captions can be exchanged for ``lost`` in total; the scores' spread is 1."""
    return low + np.array([[1.0, 0.5], [0.5 - lost, 0.0]])


@pytest.mark.parametrize("low", [-0.5, 0.0, 1.0])
def test_totals_of_the_global_assignment_tie_within_1e_12_of_the_spread_times_the_captions(low):
    """Two captions: up to 2e-12."""
    for lost, tie in ((0.0, True), (1.5e-12, True), (1.95e-12, True), (2.05e-12, False), (3e-12, False)):
        assert matching.match_global(swap(lost, low)).tie.tolist() == [tie, tie], lost
        scaled = 1024 * swap(lost, low)
        assert matching.match_global(scaled).tie.tolist() == [tie, tie], lost
    wide = np.hstack([swap(3e-12, low), np.full((2, 2), low)])
    assert matching.match_global(wide).tie.tolist() == [True, True], "four captions: up to 4e-12"


@pytest.mark.parametrize("low", [2.0**20, -(2.0**20)])
def test_rounding_of_large_scores_makes_no_winner(low):
    """Totals are equal within 4 eps of the largest score times the captions; an exchange loses ``steps`` of 2^-32."""
    unit = 2.0**-32  # of float64 at 2^20; 4 eps 2^20 are four of these, for two captions eight
    top = abs(low) + (1.0 if low > 0 else 0.0)
    bound = 4 * EPS * top * 2
    for steps in (0, 7, 8, 9, 10):
        assert matching.match_global(swap(steps * unit, low)).tie.tolist() == [steps * unit <= bound] * 2, steps


def test_eight_terms_that_rounding_loses_make_no_winner():
    """Both matchings give 1 + 7 x 2^-53: one adds the small terms to 1, which loses them, the other adds 1 at last."""
    small = 2.0**-53
    scores = np.zeros((1, 8, 8))
    scores[0, 0, 0] = scores[0, 7, 0] = 1.0
    for row in range(7):
        scores[0, row, row + 1] = small
        scores[0, row + 1, row + 1] = small
    found = matching.match_groups(scores)
    assert found.tie.tolist() == [True] and found.margin.tolist() == [0.0]
    assert metrics.group_match(scores).tolist() == [False]
    scores[0, 0, 0] += EPS
    found = matching.match_groups(scores)
    assert found.captions.tolist() == [list(range(8))] and found.margin.tolist() == [small]


def test_exact_totals_are_those_of_fractions():
    rng = np.random.default_rng(0)
    for trial in range(150):
        images, captions = [(1, 3), (2, 2), (2, 3), (3, 3), (4, 4)][trial % 5]
        exponents = rng.integers(-320, 90, (images, captions)) if trial % 2 else rng.integers(-3, 3, (images, captions))
        scores = rng.integers(-3, 4, (images, captions)) * rng.choice([1.0, 0.1, 1 / 3], (images, captions))
        scores = scores * 2.0**exponents
        if trial % 7 == 0:
            scores[:] = scores[0, 0]
        table = matching.injections(images, captions)
        totals = [sum(Fraction(scores[i, c]) for i, c in enumerate(row)) for row in table.tolist()]
        first, more = matching._exact_best_and_margin(scores, table)
        best = max(totals)
        assert first == totals.index(best)
        assert more == best - max(totals[:first] + totals[first + 1 :])


def test_margins_are_never_rounded_to_a_tie():
    assert matching._positive_float(Fraction(1, 10**400)) == math.ulp(0.0)
    assert matching._positive_float(Fraction(0)) == 0.0 and matching._positive_float(Fraction(3, 8)) == 0.375
    found = matching.match_groups(np.array([[[5e-324, 0.0], [0.0, 0.0]]]))
    assert found.margin.tolist() == [5e-324] and not found.tie[0]


def test_so_many_matchings_are_enumerated_and_no_more(monkeypatch):
    with pytest.raises(ValueError, match="1000001 matchings; at most 1000000"):
        matching.injections(1, 1_000_001)
    monkeypatch.setattr(matching, "MAX_INJECTIONS", 24)
    assert len(matching.injections.__wrapped__(4, 4)) == 24 and len(matching.injections.__wrapped__(4, 4, 1)) == 24
    with pytest.raises(ValueError, match="1x25 group has 25 matchings; at most 24"):
        matching.injections.__wrapped__(1, 25)
    with pytest.raises(ValueError, match="read-only"):
        matching.injections(2, 2)[0, 0] = 1


def test_one_assignment_is_remembered_and_nobody_can_change_it():
    for seed in range(3):
        found = matching.match_global(np.random.default_rng(seed).normal(size=(4, 5)))
    assert list(matching._LATEST.values()) == [found], "the last one alone, however many there were"
    scores = np.random.default_rng(2).normal(size=(4, 5))
    assert matching.match_global(scores.copy()) is found, "by content"
    scores[:, [0, 1]] = scores[:, [1, 0]]
    assert not np.array_equal(matching.match_global(scores).captions, found.captions)
    for values in (found.captions, found.scores, found.tie):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    square = np.array([[3.0, 2.0], [3.0, 0.0]])
    assert matching.match_global(square).captions.tolist() == [1, 0]
    other = matching.match_global(square.reshape(1, 4), 2)
    assert other.captions.tolist() == [[0, 2]], "the same bytes in another shape are another problem"
    assert matching.match_global(square).captions.tolist() == [1, 0]
    assert matching.match_global(np.hstack([square, square]), 2).captions.tolist() == [[1, 3], [0, 2]]


def test_a_long_chain_of_exchanges_is_followed_to_its_end():
    """Every image could take the next one's caption and the last one the first's, at no cost in total."""
    for size in range(2, 9):
        for order in (np.arange(size), np.arange(size)[::-1]):
            scores, gains = np.full((size, size), -100.0), [*range(1, size), -sum(range(1, size))]
            for image, following, gain in zip(order, np.roll(order, -1), gains, strict=True):
                scores[image, image], scores[image, following] = 1.0, 1.0 + gain
            assert matching.match_global(scores).tie.all()
            scores[order[0], order[1 % size]] -= 0.5
            found = matching.match_global(scores)
            assert not found.tie.any() and found.captions.tolist() == list(range(size))


def test_scores_are_checked_where_they_come_in():
    for shape in ((2, 2), (1, 2, 2, 2)):
        with pytest.raises(ValueError, match="3 axes"):
            check_scores(np.zeros(shape))
    for shape in ((1, 1, 1), (1, 0, 2), (1, 2, 0)):
        with pytest.raises(ValueError, match="at least 2"):
            check_scores(np.zeros(shape))
    for shape in ((1, 1, 2), (1, 2, 1), (0, 2, 2)):
        assert check_scores(np.zeros(shape)).shape == shape
        assert check_scores(np.zeros(shape, dtype=np.int64)).dtype == np.float64
    with pytest.raises(ValueError, match="images <= captions"):
        matching.match_global(np.zeros((0, 2)))
    assert matching.match_global(np.ones((1, 1))).captions.tolist() == [0]


def test_the_largest_numbers_that_are_scores():
    def asked(value, dtype, message=""):
        scores = np.array([[[value, 0], [0, 0]]], dtype)
        for function in (matching.match_groups, lambda one: matching.match_global(one[0])):
            with pytest.raises(ValueError, match=message) if message else nullcontext():
                function(scores)

    for sign in (1, -1):
        asked(sign * 1e30, np.float64), asked(sign * 2**53, np.int64)
        for dtype in (np.float32, np.float64):
            asked(sign * 1.5e30, dtype, "larger than any logit")
        asked(sign * (2**53 + 1), np.int64, r"whole numbers beyond 2\*\*53 \(int64\) are not exact in float64")
    asked(2**53 + 1, np.uint64, r"whole numbers beyond 2\*\*53 \(uint64\)")
    assert as_floats(np.array([True, False])).tolist() == [1.0, 0.0]
    for words in (np.array(["1"]), np.array([1j])):
        with pytest.raises(ValueError, match="scores must be numbers"):
            as_floats(words)


def test_truth_may_name_captions_in_any_order():
    scores = np.array([[0.0, 5.0, 0.0, 4.0], [3.0, 0.0, 6.0, 0.0]])
    assert metrics.global_assignment_accuracy(scores, np.array([[3, 1], [0, 2]]), 2).tolist() == [True, True]
    assert metrics.global_assignment_accuracy(scores, np.array([[3, 0], [1, 2]]), 2).tolist() == [False, False]
    assert metrics.global_assignment_accuracy(scores[:, :2], np.array([1, 0])).tolist() == [True, True]


ON_2X2 = ("text_score", "image_score", "group_score", "group_match", "individual_match")


def test_what_metrics_state_of_themselves():
    spec = {one.name: one for one in METRICS}
    assert [name for name, one in spec.items() if not one.higher_is_better] == ["text_ece", "image_ece", "brittleness"]
    for images, captions, true, defined in (
        (1, 2, 1, {"text_score", "group_score", "group_match", "individual_match", "text_accuracy"}),
        (2, 2, 1, {*ON_2X2, "text_accuracy", "image_accuracy"}),
        (2, 1, 1, {"image_score", "group_score", "group_match", "image_accuracy"}),
    ):
        asked = [name for name, one in spec.items() if one.scope == "group" and one.several_true != "only"]
        asked.remove("text_score_ties_right")
        assert {name for name in asked if spec[name].defined(images, captions, true)} == defined
    assert spec["text_only_score"].defined(1, 3, 2) and not spec["text_only_score"].defined(2, 6, 2)


def test_a_true_caption_that_ties_with_a_wrong_one_is_found_on_either_side():
    scores = np.array([[[3.0, 1.0, 3.0]], [[3.0, 1.0, 1.0]], [[3.0, 1.0, 2.0]], [[1.0, 3.0, 1.0]]])
    assert metrics.brittleness_ties(scores, 2).tolist() == [True, True, False, True]
    assert metrics.original_accuracy_ties(scores, 2).tolist() == [True, False, False, True]
    two = np.array([[[3.0, 1.0, 0.0, 0.0, 2.0], [0.0, 0.0, 3.0, 3.0, 1.0]]])
    assert metrics.brittleness(two, 2).tolist() == [0.5] and not metrics.brittleness_ties(two, 2).any()


@pytest.mark.parametrize(
    "name",
    [
        *("text_score", "image_score", "group_score", "group_match", "individual_match", "original_accuracy"),
        *("brittleness", "text_only_score", "global_assignment_accuracy"),
    ],
)
def test_chance_of_shapes_that_no_group_has_is_refused(name):
    level = getattr(chance, name)
    with pytest.raises(ValueError, match="got 0x2"):
        level(0, 2)
    for shape in ((2, 3, 2), (1, 2, 3), (3, 2, 2)):
        several = f"got {shape[0]}x{shape[1]} with {shape[2]} true captions" if name != "group_match" else "got"
        with pytest.raises(ValueError, match=several):
            level(*shape)
    with pytest.raises(ValueError, match="0 true captions"):
        level(1, 2, 0)
    if name not in ("image_score", "group_score", "group_match"):
        with pytest.raises(ValueError, match=r"1 <= images <= captions, got 2x1$"):
            level(2, 1)
    level(1, 1), level(2, 2), level(2, 4, 2)


def test_a_coverage_forgives_rounding_alone():
    margins = np.arange(10.0)
    assert schedules.threshold_for_coverage(margins, 0.3) == 7.0
    assert schedules.threshold_for_coverage(margins, 0.3 + 0.5e-10) == 7.0
    assert schedules.threshold_for_coverage(margins, 0.3 + 1.5e-10) == 6.0
    assert schedules.threshold_for_coverage(margins, 1.0) == 0.0
    with pytest.raises(ValueError, match="no margins"):
        schedules.threshold_for_coverage(np.zeros(0), 0.5)
