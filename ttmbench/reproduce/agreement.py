"""How far a number may lie from a published one and still be the same result.

A number that no seed moves has to be what was printed, up to one group. A number over seeds has to lie as near as two
means of the same procedure lie to each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

NOISY = 0.95
"""Our own spread counts up to this quantile of what the paper's would lead to: a noisy run does not agree by noise."""


@dataclass(frozen=True)
class Measured:
    """A number with its spread."""

    value: float  # fraction
    std: float | None  # sample standard deviation over runs or seeds, a fraction; None if unknown
    runs: int  # how many there are behind ``value``


class Rule(BaseModel):
    """What counts as agreeing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: float = Field(0.99, gt=0, lt=1)  # of two means of one procedure, this share lies within the tolerance
    groups: float = Field(1, ge=0)  # how many groups may differ in any case
    points: float = Field(0, ge=0, lt=100)  # how many percent points may differ in any case, if that is more


def tolerance(published: Measured, ours: Measured, group: float, digit: float, rule: Rule) -> float:
    """The largest difference that still agrees.

    At least ``rule.groups`` groups or ``rule.points`` points, plus half of the last printed digit. With a spread on a
    side, also the half-width of Welch's interval of the difference of two means, if that is more. A side that states no
    spread, or is a single run, gets that of the other side. Our own spread counts no further than the paper's could
    have led to by chance.

    Args:
        published: the paper's number.
        ours: the one to compare.
        group: what one group is worth, a fraction.
        digit: one unit of the last printed digit, a fraction.
        rule: level and groups.

    Returns:
        A fraction.

    >>> exact = tolerance(Measured(0.1025, None, 1), Measured(0.1025, None, 1), 1 / 400, 1e-4, Rule())
    >>> round(100 * exact, 3)
    0.255
    >>> four = tolerance(Measured(0.725, 0.0064, 4), Measured(0.72, 0.0064, 4), 1 / 400, 1e-4, Rule())
    >>> round(100 * four, 2)
    1.68
    """
    least = max(rule.groups * group, rule.points / 100) + digit / 2
    their_std, our_std = (side.std if side.runs > 1 else None for side in (published, ours))
    from scipy import stats  # half a second, which pages without a table do without

    if their_std is None:
        if our_std is None:
            return least
        squared, freedom = _with_a_single_run(our_std, ours.runs)
    elif our_std is None:
        squared, freedom = _with_a_single_run(their_std, published.runs)
    else:
        most = their_std * math.sqrt(stats.f.ppf(NOISY, ours.runs - 1, published.runs - 1))
        theirs, mine = their_std**2 / published.runs, min(our_std, most) ** 2 / ours.runs
        squared = theirs + mine
        freedom = squared**2 / (theirs**2 / (published.runs - 1) + mine**2 / (ours.runs - 1)) if squared else 1.0
    half = float(stats.t.ppf((1 + rule.level) / 2, freedom)) * math.sqrt(squared)
    return max(least, half + digit / 2)


def _with_a_single_run(std: float, runs: int) -> tuple[float, float]:
    """The variance of the difference between a mean of runs and another run, and its degrees of freedom."""
    return std**2 + std**2 / runs, float(runs - 1)


def agrees(published: Measured, ours: Measured, allowed: float, of: int | None = None) -> bool:
    """Whether two numbers differ by no more than is allowed, with room for binary rounding.

    With ``of``, both are compared as numbers of correct groups (or queries) of that many.

    >>> agrees(Measured(36 / 400, None, 1), Measured(0.08, None, 1), 0.01, of=400)
    True
    """
    if of is None:
        return abs(ours.value - published.value) <= allowed + 1e-9
    return abs(correct(ours.value, of) - correct(published.value, of)) <= allowed * of + 1e-6


def correct(value: float, of: int) -> int:
    """The number of correct groups behind a rate.

    >>> correct(0.09000000357627869, 400)  # a mean in float32
    36
    """
    return round(value * of)
