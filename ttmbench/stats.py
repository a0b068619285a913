"""Statistics over groups and over seeds: means, standard errors, intervals, tests, and measures of a gain.

Pure functions. ``values`` has one number per group, usually a fraction. Groups that share an image are not independent:
``clusters`` has one number per group, equal for groups that belong together, and a cluster is resampled, exchanged and
counted as a whole. If every group is a cluster by itself, the result equals the one without clusters, to the last bit.
Intervals need two values (or clusters) and at least one of ``iterations`` resamples, drawn with ``seed``; otherwise
they are None. ``level`` is the confidence level. Interval ends and differences have the unit of the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from ttmbench._annotations import Bool, Float, Int

IntervalMethod = Literal["wilson", "percentile", "bca"]
ClusterIds = Int[np.ndarray, " n"]
Values = Float[np.ndarray, " n"]
# Weight of the 0 and of the 1 added to the variance of a score interval; chosen by its coverage (docs/adr/0010).
PSEUDO_WEIGHT = 0.2
_ROUNDING = 1e-9  # sums of differences that are closer are equal


def mean(values: Values) -> float | None:
    """Mean, or None for no values; exact for fractions of a whole count.

    >>> mean(np.array([1., 0., 1., 1.])), mean(np.array([]))
    (0.75, None)
    """
    return math.fsum(values.tolist()) / len(values) if len(values) else None


def standard_error(values: Values, clusters: ClusterIds | None = None) -> float | None:
    """Standard error of the mean, from the sample standard deviation; None for fewer than two values (clusters).

    >>> standard_error(np.array([0., 1.])), standard_error(np.array([0., 0., 1., 1.]), np.array([0, 0, 1, 1]))
    (0.5, 0.5)
    """
    if len(values) < 2:
        return None
    codes = _codes(clusters)
    if codes is None:
        return float(np.std(values, ddof=1) / math.sqrt(len(values)))
    if (count := int(codes.max()) + 1) < 2:
        return None
    # Of a mean of clusters: linearised (Cochran 1977, section 9A.2), without a finite population.
    residuals = np.bincount(codes, weights=values - np.mean(values))
    return math.sqrt(count / (count - 1) * float(np.sum(np.square(residuals)))) / len(values)


def _codes(clusters: ClusterIds | None) -> ClusterIds | None:
    """Clusters numbered from 0; None if each value is a cluster by itself."""
    if clusters is None or len(clusters) == 0:
        return None
    _, codes = np.unique(clusters, return_inverse=True)
    return None if codes.max() + 1 == len(codes) else codes


def seed_std(values: Float[np.ndarray, " seeds"]) -> float | None:
    """Sample standard deviation over seeds; None for one seed.

    >>> round(seed_std(np.array([1., 2., 3.])), 6)
    1.0
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def bootstrap_interval(
    values: Values,
    iterations: int,
    seed: int,
    level: float = 0.95,
    method: Literal["percentile", "BCa"] = "percentile",
    clusters: ClusterIds | None = None,
) -> tuple[float, float] | None:
    """Bootstrap interval of the mean over groups: percentile, or BCa, corrected for bias and skewness (Efron 1987).

    >>> bootstrap_interval(np.ones(10), 100, seed=0)
    (1.0, 1.0)
    """
    if len(values) < 2 or iterations < 1:
        return None
    codes = _codes(clusters)
    if codes is not None and codes.max() == 0:
        return None
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    if codes is not None:
        sums, sizes = np.bincount(codes, weights=values), np.bincount(codes)
        if np.ptp(sums / sizes) == 0:  # BCa is undefined for constant values
            method = "percentile"
    from scipy.stats import bootstrap  # loads all of scipy.stats, and intervals are seldom bootstrapped

    result = bootstrap(
        (values,) if codes is None else (sums, sizes),
        np.mean if codes is None else lambda sums, sizes, axis=-1: np.sum(sums, axis=axis) / np.sum(sizes, axis=axis),
        paired=codes is not None,
        n_resamples=iterations,
        confidence_level=level,
        method=method,
        batch=256,
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def score_interval(
    values: Values, level: float = 0.95, clusters: ClusterIds | None = None
) -> tuple[float, float] | None:
    """Score interval of a mean of values between 0 and 1; never a single point, even if all values are equal.

    For values of 0 and 1 it is Wilson's interval of a proportion (1927). For fractions of images and means over seeds,
    whose variance is smaller, n becomes the effective number of such values, p (1 - p) / variance; a small weight of a
    0 and of a 1 is added to that variance, so that a few equal values do not count as certainty.

    With clusters n is divided by the design effect, and the quantile is Student's (Korn and Graubard 1998, n*; Dean and
    Pagano 2015), with one degree of freedom less than the effective number of clusters (Kish 1965),
    (sum of sizes)^2 / (sum of squared sizes). Few clusters cannot show that their groups are unlike each other, so one
    more is counted in the design effect, whose groups all differ from the mean by a half.

    >>> [round(end, 4) for end in score_interval(np.zeros(100))]
    [0.0, 0.037]
    """
    from scipy.special import ndtri  # imported where it is used: `show` needs other functions of this module

    n = len(values)
    codes = _codes(clusters)
    if n < 2 or (codes is not None and codes.max() == 0):
        return None
    p = float(np.mean(values))
    total = n + 2 * PSEUDO_WEIGHT
    p_more = (p * n + PSEUDO_WEIGHT) / total
    variance = (float(np.sum(np.square(values))) + PSEUDO_WEIGHT) / total - p_more**2
    worth = n * p_more * (1 - p_more) / variance
    z2 = float(ndtri((1 + level) / 2)) ** 2
    if codes is not None:
        effective = effective_number(np.bincount(codes))
        errors = standard_error(values, clusters) or 0.0, standard_error(values) or 0.0
        worth /= design_effect(errors[0] ** 2, errors[1] ** 2, effective, float(n), worth)
        z2 = student(effective, level) ** 2
    return score_ends(p, worth, z2)


def proportion_interval(p: float | int, n: float | int, level: float = 0.95) -> tuple[float, float]:
    """Score interval (Wilson 1927) of a proportion, from its value and the number of groups alone.

    >>> [round(end, 4) for end in proportion_interval(0.0, 100)]
    [0.0, 0.037]
    """
    from scipy.special import ndtri

    return score_ends(float(p), float(n), float(ndtri((1 + level) / 2)) ** 2)


def score_ends(p: float, worth: float, z2: float) -> tuple[float, float]:
    """Ends of a score interval (Wilson 1927) from the effective number of groups and a squared quantile."""
    center = (p + z2 / (2 * worth)) / (1 + z2 / worth)
    half = math.sqrt(z2 * (p * (1 - p) / worth + z2 / (4 * worth**2))) / (1 + z2 / worth)
    # Exactly 0 or 1 where no value or every value is 1, in place of the rounded formula.
    return 0.0 if p <= 0 else max(0.0, center - half), 1.0 if p >= 1 else min(1.0, center + half)


def effective_number(weights: Values | Int[np.ndarray, " n"]) -> float:
    """Number of equal weights with the same sum and sum of squares (Kish 1965)."""
    return float(np.sum(weights) ** 2 / np.sum(np.square(weights)))


def design_effect(variance: float, alone: float, clusters: float, n: float, worth: float) -> float:
    """Variance of a mean by clusters over that by single groups (``alone``), at least 1, as in `score_interval`.

    ``clusters`` and ``n`` are effective numbers of clusters and groups, ``worth`` that of values of 0 and 1.
    """
    added = 1 / (4 * worth * clusters)  # to the variance by groups: of one more cluster
    return max(1.0, (variance + n / clusters * added) / (alone + added))


def student(clusters: float, level: float, strata: int = 1) -> float:
    """Student's quantile with the effective number of clusters less the number of strata, at least 1."""
    from scipy.special import stdtrit

    return float(stdtrit(max(1.0, clusters - strata), (1 + level) / 2))


def interval(
    values: Values,
    method: IntervalMethod,
    iterations: int,
    seed: int,
    level: float = 0.95,
    clusters: ClusterIds | None = None,
) -> tuple[float, float] | None:
    """Interval of the mean over groups by ``wilson``, ``percentile`` or ``bca``.

    Values outside [0, 1] have no score interval and get ``bca``.

    >>> [round(end, 3) for end in interval(np.array([0., 1., 1., 1.]), "wilson", 1000, seed=0)]
    [0.301, 0.954]
    """
    if len(values) < 2 or iterations < 1:
        return None
    if method == "wilson" and values.min() >= 0 and values.max() <= 1:
        return score_interval(values, level, clusters)
    way: Literal["percentile", "BCa"] = "percentile" if method == "percentile" else "BCa"
    return bootstrap_interval(values, iterations, seed, level, way, clusters)


def mcnemar(before: Bool[np.ndarray, " n"], after: Bool[np.ndarray, " n"], clusters: ClusterIds | None = None) -> float:
    """P-value of the exact two-sided McNemar test; 1 if no group flipped.

    ``before`` and ``after`` are bool [groups]: whether each group was correct. Clusters are exchanged as a whole, and
    the distribution over all exchanges is computed exactly.

    >>> mcnemar(np.array([False] * 6), np.array([True] * 6))
    0.03125
    >>> mcnemar(np.array([False] * 6), np.array([True] * 6), np.array([0, 0, 0, 1, 1, 1]))
    0.5
    """
    codes = _codes(clusters)
    if codes is not None:
        return _exchanged(np.bincount(codes, weights=after.astype(float) - before.astype(float)).astype(int))
    won, lost = int((~before & after).sum()), int((before & ~after).sum())
    if won + lost == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(won, won + lost).pvalue)


def _exchanged(net: Int[np.ndarray, " clusters"]) -> float:
    """Exact probability, with random signs of the clusters, of a sum at least as far from 0 as the observed one."""
    steps = np.abs(net[net != 0])
    total = int(steps.sum())
    chance = np.zeros(2 * total + 1)  # of each sum, from -total to total
    chance[total] = 1.0
    for step in steps.tolist():
        moved = np.zeros_like(chance)
        moved[step:] += chance[:-step] / 2
        moved[:-step] += chance[step:] / 2
        chance = moved
    far = abs(int(net.sum()))
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(chance[sums >= far].sum()))


def paired_difference(
    one: Values, other: Values, iterations: int, seed: int, level: float = 0.95, clusters: ClusterIds | None = None
) -> tuple[float, tuple[float, float] | None]:
    """``mean(other) - mean(one)`` over the same groups, and its percentile interval: groups are resampled as pairs.

    With clusters, of which resamples are too narrow, it is Student's interval of the clustered standard error, with
    degrees of freedom as in `score_interval`. Two more clusters are counted (after Agresti and Min 2005), whose groups
    are all half above and half below the mean, or less where values are not 0 and 1 alone.

    >>> paired_difference(np.array([0., 0.]), np.array([1., 1.]), 10, seed=0)
    (1.0, (1.0, 1.0))
    """
    difference, codes = other - one, _codes(clusters)
    mean = float(np.mean(difference))
    if codes is None or codes.max() == 0 or iterations < 1:
        return mean, bootstrap_interval(difference, iterations, seed, level, clusters=clusters)
    variance, number = (standard_error(difference, clusters) or 0.0) ** 2, effective_number(np.bincount(codes))
    size = np.abs(difference)
    added = (float(size @ size / size.sum()) if size.any() else 1.0) / (2 * number**2)
    half = student(number, level) * math.sqrt(variance + added)
    return mean, (max(-1.0, mean - half), min(1.0, mean + half))


def sign_flip(one: Values, other: Values, iterations: int, seed: int, clusters: ClusterIds | None = None) -> float:
    """P-value of the two-sided paired permutation test, at least ``1 / (iterations + 1)``; 1 if no value differs.

    The two values of each group are exchanged at random, ``iterations`` times. For values other than 0 and 1 (means
    over seeds, fractions of images), for which McNemar's test does not apply.

    >>> sign_flip(np.zeros(20), np.ones(20), 999, seed=0)
    0.001
    """
    difference = other - one
    codes = _codes(clusters)
    if codes is not None:
        difference = np.bincount(codes, weights=difference)
    difference = difference[difference != 0]
    observed = abs(difference.sum())
    extreme = 0
    for signs in _signs(len(difference), iterations, seed):
        extreme += int((np.abs(signs @ difference) >= observed - _ROUNDING).sum())
    return (extreme + 1) / (iterations + 1)


def _signs(count: int, iterations: int, seed: int) -> Iterator[Int[np.ndarray, "some count"]]:
    rng = np.random.default_rng(seed)
    for start in range(0, iterations, 256):
        yield rng.integers(0, 2, (min(256, iterations - start), count)) * 2 - 1


def mcnemar_ends(
    before: Bool[np.ndarray, " n"], after: Bool[np.ndarray, " n"], level: float = 0.95
) -> tuple[float, float]:
    """Ends of the interval of a difference that inverts `mcnemar` without clusters.

    It is Clopper and Pearson's (1934) of the fraction of the flipped groups that were won, and excludes 0 exactly where
    p is at most 1 - ``level``.

    >>> [round(end, 3) for end in mcnemar_ends(np.array([False] * 6 + [True] * 6), np.array([True] * 12))]
    [0.041, 0.5]
    """
    from scipy.special import betaincinv

    won, lost, tail = int((~before & after).sum()), int((before & ~after).sum()), (1 - level) / 2
    low = betaincinv(won, lost + 1, tail) if won else 0.0
    high = betaincinv(won + 1, lost, 1 - tail) if lost else 1.0
    return float(2 * low - 1) * (won + lost) / len(before), float(2 * high - 1) * (won + lost) / len(before)


def flip_ends(
    one: Values,
    other: Values,
    iterations: int,
    seed: int,
    clusters: ClusterIds | None = None,
    weights: Values | None = None,
    level: float = 0.95,
) -> tuple[float, float]:
    """Ends of the interval of a mean difference that inverts `sign_flip`, within -1 and 1.

    It has the differences that the test does not reject once they are subtracted from every group, by the same
    exchanges: quantiles of the mean over random halves of the clusters (typical values, Hartigan 1969). So it excludes
    0 exactly where p is at most 1 - ``level``. ``weights`` are factors of differences that include them already.

    >>> flip_ends(np.zeros(5), np.ones(5), 999, seed=0)  # five exchanges show nothing
    (-1.0, 1.0)
    """
    codes, values, sizes = _codes(clusters), other - one, np.ones(len(one)) if weights is None else weights
    if codes is not None:
        values, sizes = np.bincount(codes, weights=values), np.bincount(codes, weights=sizes)
    moves = values != 0
    moving = np.array([values[moves], sizes[moves]]).T
    parts = np.concatenate([(signs < 0) @ moving for signs in _signs(len(moving), iterations, seed)])
    rng, total = np.random.default_rng([seed, 1]), np.array([values.sum(), sizes.sum()])
    for size, count in zip(*np.unique(sizes[~moves], return_counts=True), strict=True):
        parts[:, 1] += size * rng.binomial(count, 0.5, iterations)
    both = np.array([parts, total - parts])  # [2 halves, iterations, sum and size]
    both[np.abs(both) <= _ROUNDING / 2] = 0
    is_whole = (both[..., 1] == 0).any(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.sort(both[..., 0] / both[..., 1], axis=0)
    means[0, is_whole], means[1, is_whole] = -1.0, 1.0
    rejected = math.floor((1 - level) * (iterations + 1) + 1e-9)
    if rejected < 1:
        return -1.0, 1.0
    low, high = np.sort(means[0])[rejected - 1], np.sort(means[1])[-rejected]
    return max(-1.0, float(low)), min(1.0, float(high))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for several tests (Holm 1979), in the given order; controls the family-wise error rate.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return [float(round(value, 12)) for value in adjusted]


def smallest_difference(groups: int, level: float = 0.95, clusters: int | None = None) -> float | None:
    """Smallest difference, a fraction, that McNemar's test can find significant if every flip is a gain.

    With flips in both directions the test needs more. None if no difference can be significant with so few ``groups``
    or ``clusters``.

    >>> smallest_difference(400), smallest_difference(5)
    (0.015, None)
    """
    flips = math.ceil(math.log2(2 / (1 - level)) - 1e-9)
    return flips / groups if flips <= (groups if clusters is None else clusters) else None


def relative_gain(baseline: float, value: float) -> float | None:
    """(value - baseline) / baseline; None for a baseline of 0.

    >>> relative_gain(0.5, 0.75)
    0.5
    """
    return (value - baseline) / baseline if baseline else None


def error_reduction(baseline: float, value: float) -> float | None:
    """Relative error reduction, (value - baseline) / (1 - baseline); None for a baseline without error.

    >>> error_reduction(0.5, 0.75)
    0.5
    """
    return (value - baseline) / (1 - baseline) if baseline < 1 else None
