"""Statistics over groups and over seeds, kept apart; and the three ways to state a gain. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import binomtest, bootstrap, norm

IntervalMethod = Literal["wilson", "percentile", "bca"]
# How much of a 0 and of a 1 is added to the variance of a score interval: chosen by coverage, docs/adr/0017.
PSEUDO_WEIGHT = 0.2


def mean(values: Float[np.ndarray, " n"]) -> float | None:
    """Mean, None of nothing; exact for fractions of a whole count.

    >>> mean(np.array([1., 0., 1., 1.])), mean(np.array([]))
    (0.75, None)
    """
    return math.fsum(values.tolist()) / len(values) if len(values) else None


def standard_error(values: Float[np.ndarray, " n"]) -> float | None:
    """Standard error of the mean, from the sample standard deviation; None for fewer than two values.

    >>> standard_error(np.array([0., 1.]))
    0.5
    """
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def seed_std(values: Float[np.ndarray, " seeds"]) -> float | None:
    """Sample standard deviation over seeds; None for one seed.

    >>> round(seed_std(np.array([1., 2., 3.])), 6)
    1.0
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def bootstrap_interval(
    values: Float[np.ndarray, " n"],
    iterations: int,
    seed: int,
    level: float = 0.95,
    method: Literal["percentile", "BCa"] = "percentile",
) -> tuple[float, float] | None:
    """Bootstrap interval of the mean over groups.

    Args:
        values: one value per group, fractions.
        iterations: resamples; 0 asks for none.
        seed: of the resampling.
        level: confidence level.
        method: ``percentile``, or ``BCa``: corrected for bias and for skewness (Efron 1987).

    Returns:
        Lower and upper end as fractions; None for fewer than two values or no iterations.

    >>> bootstrap_interval(np.ones(10), 100, seed=0)
    (1.0, 1.0)
    """
    if len(values) < 2 or iterations < 1:
        return None
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    result = bootstrap(
        (values,),
        np.mean,
        n_resamples=iterations,
        confidence_level=level,
        method=method,
        batch=256,
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def score_interval(values: Float[np.ndarray, " n"], level: float = 0.95) -> tuple[float, float] | None:
    """Score interval of a mean of values between 0 and 1: never a point, also where all values are the same.

    For values of 0 and 1 it is that of a proportion (Wilson 1927). For shares of images and means over seeds, whose
    variance is smaller, n becomes the number of such values that would know the mean as well, p (1 - p) / variance; a
    little of a 0 and of a 1 is added to that variance, so that a few equal values are not taken for certainty.

    Args:
        values: one value per group, fractions.
        level: confidence level.

    Returns:
        Lower and upper end as fractions; None for fewer than two values.

    >>> [round(end, 4) for end in score_interval(np.zeros(100))]
    [0.0, 0.037]
    """
    n = len(values)
    if n < 2:
        return None
    p = float(np.mean(values))
    total = n + 2 * PSEUDO_WEIGHT
    p_more = (p * n + PSEUDO_WEIGHT) / total
    variance = (float(np.sum(np.square(values))) + PSEUDO_WEIGHT) / total - p_more**2
    worth = n * p_more * (1 - p_more) / variance
    z2 = float(norm.ppf((1 + level) / 2)) ** 2
    center = (p + z2 / (2 * worth)) / (1 + z2 / worth)
    half = math.sqrt(z2 * (p * (1 - p) / worth + z2 / (4 * worth**2))) / (1 + z2 / worth)
    # Not the rounding of the formula, but the ends themselves where no or every value is 1.
    return 0.0 if p <= 0 else max(0.0, center - half), 1.0 if p >= 1 else min(1.0, center + half)


def interval(
    values: Float[np.ndarray, " n"], method: IntervalMethod, iterations: int, seed: int, level: float = 0.95
) -> tuple[float, float] | None:
    """Interval of the mean over groups, by the method that a run names.

    Args:
        values: one value per group.
        method: ``wilson``, ``percentile`` or ``bca``. Values outside [0, 1] have no score interval and get ``bca``.
        iterations: resamples of the bootstrap; 0 asks for no interval, whatever the method is.
        seed: of the resampling.
        level: confidence level.

    Returns:
        Lower and upper end; None for fewer than two values or no iterations.

    >>> [round(end, 3) for end in interval(np.array([0., 1., 1., 1.]), "wilson", 1000, seed=0)]
    [0.301, 0.954]
    """
    if len(values) < 2 or iterations < 1:
        return None
    if method == "wilson" and values.min() >= 0 and values.max() <= 1:
        return score_interval(values, level)
    return bootstrap_interval(values, iterations, seed, level, method="percentile" if method == "percentile" else "BCa")


def mcnemar(before: Bool[np.ndarray, " n"], after: Bool[np.ndarray, " n"]) -> float:
    """Exact two-sided McNemar test: could as many flips one way and the other come from coin tosses?

    Args:
        before: whether each group was right.
        after: the same groups, in the same order.

    Returns:
        The p-value; 1 if no group flipped.

    >>> mcnemar(np.array([False] * 6), np.array([True] * 6))
    0.03125
    """
    won, lost = int((~before & after).sum()), int((before & ~after).sum())
    return float(binomtest(won, won + lost).pvalue) if won + lost else 1.0


def paired_difference(
    one: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"], iterations: int, seed: int, level: float = 0.95
) -> tuple[float, tuple[float, float] | None]:
    """Difference of two means over the same groups, and its bootstrap interval: groups are resampled as pairs.

    Args:
        one: values of the baseline, fractions.
        other: values of what is compared to it, for the same groups.
        iterations: resamples; 0 asks for no interval.
        seed: of the resampling.
        level: confidence level.

    Returns:
        ``mean(other) - mean(one)`` and the percentile interval.

    >>> paired_difference(np.array([0., 0.]), np.array([1., 1.]), 10, seed=0)
    (1.0, (1.0, 1.0))
    """
    difference = other - one
    return float(np.mean(difference)), bootstrap_interval(difference, iterations, seed, level)


def sign_flip(one: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"], iterations: int, seed: int) -> float:
    """Two-sided paired permutation test: exchanges the two values of a group at random.

    For values that are no yes or no (means over seeds, shares of images), where McNemar's test does not apply.

    Args:
        one: values of the baseline.
        other: values for the same groups.
        iterations: random exchanges.
        seed: of these.

    Returns:
        The p-value, at least ``1 / (iterations + 1)``; 1 if the two are the same.

    >>> sign_flip(np.zeros(20), np.ones(20), 999, seed=0)
    0.001
    """
    difference = other - one
    difference = difference[difference != 0]
    if len(difference) == 0:
        return 1.0
    rng = np.random.default_rng(seed)
    observed = abs(difference.sum())
    extreme = 0
    for start in range(0, iterations, 256):
        signs = rng.integers(0, 2, (min(256, iterations - start), len(difference))) * 2 - 1
        extreme += int((np.abs(signs @ difference) >= observed - 1e-9).sum())
    return (extreme + 1) / (iterations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values for several tests (Holm 1979): the chance of even one false finding stays at the level.

    Args:
        p_values: one for each test.

    Returns:
        Adjusted ones in the same order.

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


def smallest_difference(groups: int, level: float = 0.95) -> float | None:
    """The smallest difference that McNemar's test can call significant on so many groups, were every flip a gain.

    Differences that small are seldom found: with flips both ways the test needs more.

    Args:
        groups: number of groups.
        level: 1 minus the level of the test.

    Returns:
        A fraction; None if the task is too small for any.

    >>> smallest_difference(400), smallest_difference(5)
    (0.015, None)
    """
    flips = math.ceil(math.log2(2 / (1 - level)) - 1e-9)
    return flips / groups if flips <= groups else None


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
