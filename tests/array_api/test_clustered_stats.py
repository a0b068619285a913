"""Statistics where groups share images: against formulas written out, by counting, and by simulation."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

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


def outcomes(rng, draws, clusters, size, chances, alike, copied):
    """How many groups of each cluster have each outcome: int [draws, clusters, outcomes], correlated by ``alike``.

    A cluster has chances of its own (Dirichlet), or its groups copy one outcome with the chance sqrt(alike).
    """
    shape, chances = (draws, clusters), np.array(chances)
    if copied:
        copies = rng.binomial(size, np.sqrt(alike), shape)
        own = rng.multinomial(1, chances, shape)
        return own * copies[..., None] + rng.multinomial(size - copies, chances)
    return rng.multinomial(size, rng.dirichlet(chances * (1 - alike) / alike, shape) if alike else chances, shape)


def coverage(net, size, truth, interval):
    """How often the interval of values of 0 and 1 (or -1) with these sums [draws, clusters] holds the truth, in %."""
    rows, times = np.unique(np.sort(net, axis=1), axis=0, return_counts=True)
    ids = np.repeat(np.arange(net.shape[1]), size)
    held = []
    for row in rows[:, :, None]:
        values = (np.sign(row) * (np.arange(size) < np.abs(row))).ravel().astype(float)
        low, high = interval(values, clusters=ids)
        held.append(low - 1e-12 <= truth <= high + 1e-12)
    return 100 * np.average(held, weights=times)


def of_change(values, clusters):
    return stats.paired_difference(np.zeros_like(values), values, 1, 0, clusters=clusters)[1]


RATES = [((rate, 1 - rate), rate) for rate in (0.5, 0.8, 0.95)]
CHANGES = [((won, lost, 1 - won - lost), won - lost) for won, lost in ((0.1, 0.1), (0.2, 0.05), (0.05, 0.01))]


def coverages(cases, clusters, sizes, draws):
    """Coverage for each case, size of clusters, correlation and kind of correlation; and of resampled clusters."""
    rng, found, resampled = np.random.default_rng(clusters), [], []
    drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), 999).T / clusters
    for (chances, truth), size, (alike, copied) in itertools.product(
        cases, sizes, ((0.0, False), (0.2, False), (0.5, False), (0.2, True), (0.5, True))
    ):
        counts = outcomes(rng, draws, clusters, size, chances, alike, copied)
        net = counts[..., 0] - (counts[..., 1] if cases[0] in CHANGES else 0)
        found.append(coverage(net, size, truth, of_change if cases[0] in CHANGES else stats.score_interval))
        low, high = np.quantile(net / size @ drawn, [0.025, 0.975], axis=1)
        resampled.append(100 * np.mean((low - 1e-12 <= truth) & (truth <= high + 1e-12)))
    return [*np.quantile(found, [0, 0.5]), *np.quantile(resampled, [0, 0.5])]


@pytest.mark.parametrize("clusters", [3, 5, 10, pytest.param(20, marks=pytest.mark.slow)])
def test_intervals_of_few_clusters_cover(clusters):
    """Rates near 1 and few flips, where intervals from the clusters' spread alone cover least."""
    for cases in (RATES[2:], CHANGES[2:]):
        assert coverages(cases, clusters, [10], 400)[0] >= 93


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [5, 10, 20, 40, 100])
def test_the_published_coverage_is_found_again(clusters):
    found = [number for cases in (RATES, CHANGES) for number in coverages(cases, clusters, [2, 5, 10], 2000)]
    print(clusters, np.round(found, 1).tolist())
    page = Path(__file__).parents[2].joinpath("docs", "statistics.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {clusters} \| (.+, .+) \|$", page, re.M)
    assert [float(number) for number in re.findall(r"[\d.]+", row)] == pytest.approx(found, abs=1)


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
