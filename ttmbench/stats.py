"""Statistics over groups and over seeds, kept apart; and the three ways to state a gain. Pure functions."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.stats import bootstrap


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
    values: Float[np.ndarray, " n"], iterations: int, seed: int, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean over groups.

    Args:
        values: one value per group, fractions.
        iterations: resamples; 0 asks for none.
        seed: of the resampling.
        level: confidence level.

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
        method="percentile",
        batch=256,
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


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
