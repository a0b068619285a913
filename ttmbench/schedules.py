"""Threshold schedules of TTM: tau_1 .. tau_T, both ends included (section 3.2 of arXiv:2510.07632).

A schedule takes the threshold of the first and of the last iteration and the number of iterations (at least 1, else a
ValueError). Units are those of the thresholds: logits, or fractions for the global share rule.
"""

from __future__ import annotations

import math

import numpy as np

from ttmbench._annotations import Float
from ttmbench.types import ScheduleSpec


def linear(tau_start: float, tau_end: float, iterations: int) -> Float[np.ndarray, " iterations"]:
    """Equal steps from ``tau_start`` to ``tau_end``.

    >>> linear(2.0, 0.0, 5).tolist()
    [2.0, 1.5, 1.0, 0.5, 0.0]
    """
    _check(iterations)
    return np.linspace(tau_start, tau_end, iterations)


def cosine(tau_start: float, tau_end: float, iterations: int) -> Float[np.ndarray, " iterations"]:
    """Half a cosine from ``tau_start`` to ``tau_end``: flat at both ends.

    >>> cosine(2.0, 0.0, 3).round(6).tolist()
    [2.0, 1.0, 0.0]
    """
    _check(iterations)
    phase = np.linspace(0.0, 1.0, iterations)
    values = tau_end + (tau_start - tau_end) * (1 + np.cos(math.pi * phase)) / 2
    values[-1] = tau_end if iterations > 1 else tau_start
    return values


def constant(tau_start: float, tau_end: float, iterations: int) -> Float[np.ndarray, " iterations"]:
    """``tau_start`` throughout; the ablation of Fig. 2 right.

    >>> constant(2.0, 0.0, 3).tolist()
    [2.0, 2.0, 2.0]
    """
    _check(iterations)
    return np.full(iterations, float(tau_start))


def ascending(tau_start: float, tau_end: float, iterations: int) -> Float[np.ndarray, " iterations"]:
    """The linear schedule backwards, from ``tau_end`` up to ``tau_start``; the ablation of Fig. 2 right.

    >>> ascending(2.0, 0.0, 3).tolist()
    [0.0, 1.0, 2.0]
    """
    _check(iterations)
    return np.linspace(tau_end, tau_start, iterations)


def threshold_for_coverage(margins: Float[np.ndarray, " units"], coverage: float) -> float:
    """The largest threshold, one of the ``margins`` in logits, that selects at least a fraction ``coverage`` of units.

    Units with ``margin >= threshold`` are selected. The paper's rule of thumb for tau_1 is a coverage of 0.15 to 0.30
    (section 3.2). Raises a ValueError if there are no margins, or for a fraction outside (0, 1].

    >>> threshold_for_coverage(np.array([4., 1., 3., 2.]), 0.25)
    4.0
    >>> threshold_for_coverage(np.array([4., 1., 3., 2.]), 0.5)
    3.0
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must be in (0, 1], got {coverage}")
    if len(margins) == 0:
        raise ValueError("cannot choose a threshold: there are no margins")
    keep = math.ceil(coverage * len(margins) - 1e-9)
    return float(np.sort(margins)[::-1][keep - 1])


def _check(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"a schedule needs at least one iteration, got {iterations}")


SCHEDULES = (
    ScheduleSpec("linear", linear, "equal steps from tau_start down to tau_end"),
    ScheduleSpec("cosine", cosine, "half a cosine from tau_start down to tau_end"),
    ScheduleSpec("constant", constant, "tau_start throughout (ablation)"),
    ScheduleSpec("ascending", ascending, "linear, from tau_end up to tau_start (ablation)"),
)
"""What `ttmbench ls schedules` lists and the TTM setting `schedule` may name."""
