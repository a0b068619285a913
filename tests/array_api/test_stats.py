"""Statistics against numbers counted or written out here, against scipy, and by simulation."""

from __future__ import annotations

import itertools
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm, t

from ttmbench import stats


def test_mcnemar_against_scipy_on_a_grid():
    for won, lost in product(range(0, 60, 7), range(0, 60, 5)):
        before = np.repeat([False, True, True, False], [won, lost, 3, 4])
        after = np.repeat([True, False, True, False], [won, lost, 3, 4])
        expected = binomtest(won, won + lost, 0.5).pvalue if won + lost else 1.0
        assert stats.mcnemar(before, after) == pytest.approx(expected, abs=1e-12)


def test_holm_on_literal_examples():
    """As R's ``p.adjust(p, "holm")`` and statsmodels' ``multipletests(p, method="holm")`` give them."""
    assert stats.holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert stats.holm([0.04, 0.01, 0.5, 0.01]) == pytest.approx([0.08, 0.04, 0.5, 0.04])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0] and stats.holm([]) == []
    assert stats.holm([1 / 3]) == [0.333333333333] and stats.holm([0.5, 1e-3, 0.02]) == [0.5, 0.003, 0.04]


@pytest.mark.parametrize("n", [2, 10, 135, 400])
def test_for_yes_and_no_the_score_interval_is_wilsons(n):
    for successes in range(0, n + 1, max(1, n // 20)):
        expected = binomtest(successes, n).proportion_ci(0.95, method="wilson")
        found = stats.score_interval(np.repeat([1.0, 0.0], [successes, n - successes]))
        assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=60))
def test_the_score_interval_holds_the_mean_and_mirrors(values):
    low, high = stats.score_interval(np.array(values))
    assert 0 <= low <= np.mean(values) + 1e-12 and np.mean(values) - 1e-12 <= high <= 1 and low < high
    assert stats.score_interval(1 - np.array(values)) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_the_method_is_the_one_that_is_named():
    values = np.repeat([1.0, 0.0], [8, 392])
    assert stats.interval(values, "wilson", 1000, 0) == stats.score_interval(values)
    assert stats.interval(values, "percentile", 500, 0) == stats.bootstrap_interval(values, 500, 0)
    assert stats.interval(values, "bca", 500, 0) == stats.bootstrap_interval(values, 500, 0, method="BCa")
    outside = values * 3 - 1
    assert stats.interval(outside, "wilson", 500, 0) == stats.bootstrap_interval(outside, 500, 0, method="BCa")
    assert stats.interval(values, "wilson", 0, 0) is None


def test_sign_flip_agrees_with_every_exchange_counted():
    one, other = np.array([0.1, 0.4, 0.2, 0.9, 0.3]), np.array([0.5, 0.3, 0.6, 1.0, 0.8])
    difference = other - one
    sums = [abs(sum(s * d for s, d in zip(signs, difference, strict=True))) for signs in product((1, -1), repeat=5)]
    exact = np.mean([total >= abs(difference.sum()) - 1e-9 for total in sums])
    assert stats.sign_flip(one, other, 20_000, seed=0) == pytest.approx(exact, abs=0.015)
    assert stats.sign_flip(one, one, 100, seed=0) == 1.0


@pytest.mark.parametrize("n", [5, 6, 100, 400])
def test_the_smallest_difference_is_the_fewest_flips_that_count(n):
    found = stats.smallest_difference(n)
    significant = [k for k in range(1, n + 1) if stats.mcnemar(np.zeros(k, bool), np.ones(k, bool)) <= 0.05]
    assert found == (significant[0] / n if significant else None)


# --- by hand ------------------------------------------------------------------------------------------------------

# Three clusters of one, two and three groups: the two groups of cluster 4 lie apart.
VALUES = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.5])
CLUSTERS = np.array([4, 9, 4, 2, 9, 9])


def loops(values, clusters):
    """Clusters as lists, the sums of squared residuals between and within them: the definitions, one loop each."""
    groups = [[float(v) for v, c in zip(values, clusters, strict=True) if c == one] for one in sorted(set(clusters))]
    mean = sum(values) / len(values)
    between = sum(sum(v - mean for v in group) ** 2 for group in groups)
    return groups, mean, between, sum((v - mean) ** 2 for v in values)


def naive_effect(values, clusters, size):
    """Variance of the mean by clusters over that by groups, with one more cluster whose groups differ by a half."""
    groups, _, between, within = loops(values, clusters)
    n, count = len(values), len(groups)
    alike = sum(len(group) ** 2 for group in groups) / n
    more = n / size / 4
    both = between * count / (count - 1) + more * alike**2, within * n / (n - 1) + more * alike
    return max(1.0, both[0] / both[1])


def naive_score_interval(values, level=0.95, clusters=None):
    """Wilson's formula with the effective number of groups, without the care for 0 and 1 at the ends."""
    n, mean = len(values), sum(values) / len(values)
    p = (mean * n + 0.2) / (n + 0.4)
    variance = (sum(v * v for v in values) + 0.2) / (n + 0.4) - p * p
    size, quantile = n * p * (1 - p) / variance, norm.ppf((1 + level) / 2)
    if clusters is not None:
        number = n**2 / sum(sum(clusters == one) ** 2 for one in set(clusters))
        size, quantile = size / naive_effect(values, clusters, size), t.ppf((1 + level) / 2, max(1, number - 1))
    z2 = quantile**2
    middle, half = mean + z2 / (2 * size), math.sqrt(z2 * (mean * (1 - mean) / size + z2 / (4 * size**2)))
    return (middle - half) / (1 + z2 / size), (middle + half) / (1 + z2 / size)


def drawn(seed, clusters):
    rng = np.random.default_rng(seed)
    own = rng.random(clusters)
    codes = rng.permutation(np.concatenate([np.arange(clusters), rng.integers(0, clusters, 20)]))
    return np.round((rng.random(len(codes)) + own[codes]) / 2 * 4) / 4, codes * 7 - 3


def test_the_clustered_standard_error_of_six_groups():
    """Mean 3.5 / 6; residuals by cluster 4: 10/12 (two groups), 9: -15/12, 2: 5/12; 3 clusters."""
    expected = math.sqrt(3 / 2 * (100 + 225 + 25) / 144) / 6
    assert stats.standard_error(VALUES, CLUSTERS) == pytest.approx(expected, rel=1e-12)
    assert stats.standard_error(np.array([1.0, 0.0]), np.array([5, 5])) is None, "one cluster"
    assert stats.standard_error(np.array([1.0])) is None
    assert stats.standard_error(np.array([0.0, 1.0, 1.0]), np.array([5, 5, 6])) == pytest.approx(
        math.sqrt(2 * (1 / 3) ** 2 * 2) / 3, rel=1e-12
    )


@pytest.mark.parametrize(("seed", "clusters"), [(0, 2), (1, 3), (2, 8), (3, 15), (4, 20)])
def test_clustered_numbers_equal_their_definitions(seed, clusters):
    values, ids = drawn(seed, clusters)
    groups, _, between, _ = loops(values, ids)
    error = math.sqrt(between * len(groups) / (len(groups) - 1)) / len(values)
    assert stats.standard_error(values, ids) == pytest.approx(error, rel=1e-9)
    for level in (0.5, 0.95):
        expected = naive_score_interval(values, level, ids)
        assert stats.score_interval(values, level, ids) == pytest.approx(expected, rel=1e-9)
        assert stats.score_interval(values, level) == pytest.approx(naive_score_interval(values, level), rel=1e-9)


def test_intervals_of_clusters_equal_statsmodels():
    """statsmodels 0.14: ``OLS(...).fit(cov_type="cluster")``, ``proportion_confint(method="wilson")``; by hand: one
    more cluster (two for differences) of 58/16 groups half a point from the mean, 128/29 - 1 degrees of freedom."""
    values = np.array([1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1.0])
    change = np.array([0, 1, 0, -1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0.0])
    ids = np.repeat([3, 1, 7, 2, 5], [4, 2, 5, 3, 2])
    assert stats.standard_error(values, ids) == pytest.approx(0.12672756404303398, rel=1e-12)
    assert stats.score_interval(values, clusters=ids) == pytest.approx((0.3120152727001664, 0.9764175757384221))
    difference, ends = stats.paired_difference(values - change, values, 1, 0, clusters=ids)
    assert difference == 0.25 and ends == pytest.approx((-0.4034663523317962, 0.9034663523317962))


def test_the_ends_of_equal_values_are_exact():
    for n in range(2, 120):
        for clusters in (None, np.arange(n) // 2 if n > 3 else None):
            assert stats.score_interval(np.zeros(n), clusters=clusters)[0] == 0.0
            assert stats.score_interval(np.ones(n), clusters=clusters)[1] == 1.0
    for n in range(3, 60):  # one success: the lower end is above 0, but rounding may not take it below
        low, high = stats.score_interval(np.array([1.0] + [0.0] * (n - 1)))
        assert 0 < low < 1 / n < high < 1


def exact_bootstrap(values, clusters):
    """The mean of every resample of whole clusters, all equally likely, in rising order."""
    groups = loops(values, clusters)[0]
    means = []
    for chosen in itertools.product(groups, repeat=len(groups)):
        together = [v for group in chosen for v in group]
        means.append(sum(together) / len(together))
    return np.sort(means)


def near_quantile(found, means, share):
    """Whether a number is the quantile of all resamples, give or take 1.5 % of them."""
    ends = [means[int(np.clip(share + off, 0, 1) * (len(means) - 1))] for off in (-0.015, 0.015)]
    return ends[0] - 1e-12 <= found <= ends[1] + 1e-12


@pytest.mark.parametrize("level", [0.4, 0.8, 0.95])
@pytest.mark.parametrize("alone", [False, True])
def test_the_bootstrap_is_that_of_every_resample(level, alone):
    rng = np.random.default_rng(5)
    clusters = np.arange(5) if alone else np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4])
    values = rng.integers(0, 5, len(clusters)) / 4
    means = exact_bootstrap(values, clusters)
    ids = None if alone else clusters
    low, high = stats.bootstrap_interval(values, 20_000, 0, level, clusters=ids)
    assert near_quantile(low, means, (1 - level) / 2) and near_quantile(high, means, (1 + level) / 2)
    other = rng.integers(0, 5, len(clusters)) / 4
    if alone:
        difference, ends = stats.paired_difference(values - other, values * 2 - other, 20_000, 0, level, ids)
        assert difference == pytest.approx(values.mean(), rel=1e-12) and ends == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("alone", [False, True])
def test_bca_is_efrons_formula(alone):
    """Bias from all resamples, acceleration from the means without one cluster (Efron 1987)."""
    rng = np.random.default_rng(8)
    clusters = np.arange(6) if alone else np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 5])
    values = rng.integers(0, 5, len(clusters)) / 4 + 0.75
    means, mean = exact_bootstrap(values, clusters), values.mean()
    below = (np.mean(means < mean - 1e-12) + np.mean(means <= mean + 1e-12)) / 2
    left_out = np.array([values[clusters != one].mean() for one in np.unique(clusters)])
    skew = left_out.mean() - left_out
    acceleration = np.sum(skew**3) / (6 * np.sum(skew**2) ** 1.5)
    assert 0 <= values.min() and 1 < values.max() < 2
    found = stats.interval(values, "bca", 20_000, 0, 0.8, None if alone else clusters)
    for end, side in zip(found, (0.1, 0.9), strict=True):
        z = norm.ppf(below) + norm.ppf(side)
        assert near_quantile(end, means, norm.cdf(norm.ppf(below) + z / (1 - acceleration * z)))
    assert stats.interval(values, "wilson", 20_000, 0, 0.8, None if alone else clusters) == found, "outside 0 to 1"


def test_few_values_and_few_resamples():
    two = np.array([0.0, 1.0])
    with pytest.warns(RuntimeWarning):  # scipy also computes a standard error of the one resample
        assert stats.bootstrap_interval(two, 1, 0) == stats.interval(two, "percentile", 1, 0) is not None
    assert stats.interval(two, "wilson", 1, 0) == stats.score_interval(two) is not None
    assert stats.bootstrap_interval(two[:1], 9, 0) is None and stats.bootstrap_interval(two, 0, 0) is None
    assert stats.interval(two[:1], "wilson", 9, 0) is None and stats.interval(two, "wilson", 0, 0) is None
    assert stats.score_interval(two[:1]) is None and stats.seed_std(two[:1]) is None
    assert stats.seed_std(two) == pytest.approx(math.sqrt(0.5))
    assert stats.bootstrap_interval(np.full(2, 0.25), 9, 0) == (0.25, 0.25)
    for values in (np.array([0.0, 1, 1]), np.ones(3)):  # one cluster says nothing of others
        one = {"clusters": np.array([3, 3, 3])}
        assert stats.bootstrap_interval(values, 9, 0, **one) is stats.score_interval(values, **one) is None
        assert stats.interval(values, "bca", 9, 0, **one) is stats.interval(values, "wilson", 9, 0, **one) is None
    alike = np.array([0.0, 1.0, 1.0, 0.0])
    for method in ("percentile", "BCa"):
        found = stats.bootstrap_interval(alike, 50, 0, method=method, clusters=np.array([0, 0, 1, 1]))
        assert found == (0.5, 0.5), "every cluster has the same mean"


def test_without_values_or_flips_nothing_is_shown():
    nothing, ids = np.zeros(0, bool), np.zeros(0, int)
    assert stats.mcnemar(nothing, nothing) == 1.0 and stats.mcnemar(nothing, nothing, ids) == 1.0
    assert stats.sign_flip(nothing.astype(float), nothing.astype(float), 9, 0, ids) == 1.0
    same = np.array([True, False, True])
    assert stats.mcnemar(same, same) == 1.0 and stats.mcnemar(same, same, np.array([0, 0, 1])) == 1.0
    assert stats.mcnemar(np.array([True, False]), np.array([False, True]), np.array([0, 0])) == 1.0, "they cancel out"
    assert stats.relative_gain(0.0, 0.5) is None and stats.error_reduction(1.0, 1.0) is None
    assert stats.relative_gain(0.25, 0.2) == pytest.approx(-0.2) and stats.error_reduction(0.75, 0.5) == -1.0
    assert stats.mean(np.array([])) is None and stats.mean(np.array([0.25])) == 0.25


def test_p_values_of_many_clusters_are_at_most_one():
    for seed in range(40):
        sizes = np.random.default_rng(seed).integers(1, 9, 70)
        assert stats._exchanged(np.concatenate([sizes, -sizes])) <= 1.0


def test_every_exchange_is_drawn_once():
    """600 draws in parts of 256: where each of them is as extreme as what was found, all of them count."""
    for iterations in (1, 255, 256, 257, 600):
        assert stats.sign_flip(np.zeros(1), np.ones(1), iterations, 0) == 1.0
    found = stats.sign_flip(np.zeros(64), np.ones(64), 600, 0)
    assert found == 1 / 601, "none of 2^64 exchanges but two is as extreme"


@pytest.mark.parametrize(("gap", "expected"), [(0.6e-9, 1.0), (1.5e-9, 0.5)])
def test_sums_that_differ_by_rounding_are_equal(gap, expected):
    """Two values: half of the exchanges lose ``gap``, which counts as a tie up to 1e-9 and not beyond."""
    assert stats.sign_flip(np.zeros(2), np.array([1.0, gap / 2]), 4000, 0) == pytest.approx(expected, abs=0.05)
    assert stats.sign_flip(np.zeros(2), np.full(2, 0.5e-9), 99, 0) == 1.0, "1e-9 itself is rounding"


def test_the_smallest_difference_forgives_rounding_alone():
    """Sixteen equally likely outcomes of four flips: p = 2 / 16 at the least."""
    assert stats.smallest_difference(100, 0.875) == 0.04
    assert stats.smallest_difference(100, 1 - 2 / 2 ** (4 + 1.5e-9)) == 0.05
    assert stats.smallest_difference(400, clusters=6) == 6 / 400 and stats.smallest_difference(400, clusters=5) is None
