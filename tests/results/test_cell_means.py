"""Intervals of a mean of means: what they cover, what they are undefined for, and what a resample is."""

from __future__ import annotations

import numpy as np
import pytest

from ttmbench import stats
from ttmbench.results.summary import CellValues

SIZES = (12, 25, 40, 60)
MEMBERS = {
    (f"kind {number}",): list(range(sum(SIZES[:number]), sum(SIZES[: number + 1]))) for number in range(len(SIZES))
}


def laid_out(values, members=MEMBERS, clusters=None):
    return CellValues.of(np.asarray(values, np.float64), members, clusters)


def test_one_kind_is_a_mean_over_groups():
    values = (np.arange(50) % 3 == 0).astype(float)
    clusters = np.arange(50) // 2
    one = laid_out(values, {("all",): range(50)})
    assert one.mean == stats.mean(values)
    assert one.standard_error() == pytest.approx(stats.standard_error(values))
    assert one.interval("wilson", 1, 0) == pytest.approx(stats.score_interval(values), abs=0.006)
    together = laid_out(values, {("all",): range(50)}, clusters)
    assert together.standard_error() == pytest.approx(stats.standard_error(values, clusters))
    assert together.interval("wilson", 1, 0) == pytest.approx(
        stats.score_interval(values, clusters=clusters), abs=0.006
    )
    change = laid_out(values - 0.5, {("all",): range(50)}, clusters).flip_ends(200, 0)
    assert change == pytest.approx(stats.flip_ends(np.full(50, 0.5), values, 200, 0, clusters))
    found = together.interval("percentile", 2000, 0)
    assert found == pytest.approx(stats.bootstrap_interval(values, 2000, 0, clusters=clusters), abs=0.02)
    skewed = np.linspace(0, 1, 50) ** 9
    percentile, bca = (stats.bootstrap_interval(skewed, 9999, 0, method=method) for method in ("percentile", "BCa"))
    assert laid_out(skewed, {("all",): range(50)}).interval("bca", 9999, 0) == pytest.approx(bca, abs=0.003)
    assert bca[1] - percentile[1] > 0.01


def test_an_interval_is_no_point_and_stays_inside():
    for value in (0.0, 1.0):
        low, high = laid_out(np.full(137, value)).interval("wilson", 1, 0)
        assert 0 <= low < high <= 1 and high - low > 0.01 and value in (low, high)
        assert laid_out(np.full(137, value)).interval("percentile", 10, 0) == (value, value)


def test_nothing_is_said_of_a_kind_that_shows_no_spread():
    values = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    one = laid_out(values, {("a",): [0, 1, 2], ("b",): [3]})
    assert one.mean == pytest.approx(5 / 6) and one.standard_error() is None and one.interval("wilson", 9, 0) is None
    two = laid_out(values, {("a",): [0, 1, 2], ("b",): [3, 4]}, np.array([0, 1, 2, 3, 3]))
    assert two.standard_error() is None, "two groups with one image are one observation"
    assert laid_out(np.full(5, np.nan), {("a",): [0]}) is None
    assert laid_out(values, {("a",): range(5)}).interval("wilson", 0, 0) is None


def test_a_resample_takes_clusters_out_of_all_and_averages_over_the_cells_that_it_has():
    """Two clusters, of which one alone has kind b: a resample without it is of kind a only."""
    one = laid_out([1.0, 0.0, 1.0, 1.0], {("a",): [0, 1], ("b",): [2, 3]}, np.array([0, 1, 1, 1]))
    found = np.concatenate(list(one._resampled(400, np.random.default_rng(0))))
    # twice the first cluster: a alone, 1; twice the second: (0 + 1) / 2; both: (1/2 + 1) / 2
    assert set(found.tolist()) == {1.0, 0.5, 0.75}
    assert np.mean(found == 0.75) == pytest.approx(0.5, abs=0.08)


def test_differences_are_tested_by_exchanging_clusters():
    better = laid_out((np.random.default_rng(1).random(137) < 0.3).astype(float))
    assert better.sign_flip(999, 0) == 0.001
    assert better.flip_ends(999, 0)[0] > 0
    assert laid_out(np.where(np.arange(137) % 2, 1.0, -1.0)).sign_flip(999, 0) > 0.2
    assert laid_out(np.ones(137), clusters=np.arange(137) // 46).sign_flip(999, 0) > 0.1, "three tosses show little"
