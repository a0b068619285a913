"""Statistics where groups share images: against formulas written out, and by counting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmbench import stats

ALONE = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=40)


@settings(max_examples=40)
@given(ALONE)
def test_clusters_of_one_group_change_no_bit(values):
    values = np.array(values)
    other, alone = values[::-1].copy(), np.arange(len(values))[::-1] * 3
    assert stats.standard_error(values, alone) == stats.standard_error(values)
    assert stats.score_interval(values, clusters=alone) == stats.score_interval(values)
    for method in ("wilson", "percentile"):
        assert stats.interval(values, method, 40, 1, clusters=alone) == stats.interval(values, method, 40, 1)
    right, wrong = values == 1, other == 1
    assert stats.mcnemar(right, wrong, alone) == stats.mcnemar(right, wrong)
    assert stats.sign_flip(values, other, 99, 0, alone) == stats.sign_flip(values, other, 99, 0)
    assert stats.paired_difference(values, other, 40, 0, clusters=alone) == stats.paired_difference(
        values, other, 40, 0
    )


def test_nothing_is_certain_of_clusters_that_are_all_right():
    low, high = stats.score_interval(np.ones(100), clusters=np.repeat(np.arange(20), 5))
    alone, _ = stats.score_interval(np.ones(20))
    assert high == 1 and low == pytest.approx(alone, abs=0.02), "as much as 20 groups know"
    zero, ends = stats.paired_difference(np.ones(100), np.ones(100), 9, 0, clusters=np.repeat(np.arange(20), 5))
    assert zero == 0 and ends == pytest.approx((-0.0740, 0.0740), abs=1e-4), "Student's 2.093 / 20 / sqrt(2)"


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_test_counts_every_exchange(seed):
    rng = np.random.default_rng(seed)
    clusters = np.sort(rng.integers(0, 7, 18))
    before, after = rng.random(18) < 0.4, rng.random(18) < 0.7
    net = [int(after[clusters == one].sum()) - int(before[clusters == one].sum()) for one in np.unique(clusters)]
    sums = np.array(list(itertools.product((1, -1), repeat=len(net)))) @ net
    expected = np.mean(abs(sums) >= abs(sum(net)))
    assert stats.mcnemar(before, after, clusters) == pytest.approx(expected, abs=1e-12)
    drawn = stats.sign_flip(before.astype(float), after.astype(float), 4000, 0, clusters)
    assert drawn == pytest.approx(expected, abs=0.03)
