"""Which differences between two models the test of ``compare`` detects, and how many groups or seeds it needs.

The discordance is the fraction of groups on which the models disagree; the difference is that of their rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import binom, norm

MOST_GROUPS = 10_000_000
_EXACT = 20_000  # above, the normal approximation has the same digits


def exact_power(groups: int, discordance: float, difference: float, alpha: float = 0.05) -> float:
    """How often the exact two-sided McNemar test of a level ``alpha`` finds a difference, a fraction.

    Given k groups on which the models disagree, the better one wins each with the chance (1 + difference / discordance)
    / 2, and the test rejects by tails of fair coin tosses; k itself is binomial, by the discordance (the fraction of
    the groups on which one model is correct and the other is not). The power is the mean over k (Duffy, Biometrics
    1984; Lachin, Statistics in Medicine 1992).

    >>> round(exact_power(400, 0.2, 0.07), 3)
    0.866
    """
    low, high = (int(end) for end in binom.ppf([1e-12, 1 - 1e-12], groups, discordance))
    flips = np.arange(max(low, 1), max(high, 1) + 1)
    wins = (1 + abs(difference) / discordance) / 2
    # Most losses with which k flips are still significant; -1 where not even none is enough.
    most = binom.ppf(alpha / 2, flips, 0.5).astype(int)
    most -= binom.cdf(most, flips, 0.5) > alpha / 2
    power = binom.cdf(most, flips, 1 - wins) + binom.cdf(most, flips, wins)
    return float(np.sum(binom.pmf(flips, groups, discordance) * np.where(most < 0, 0.0, power)))


def approximate_power(
    groups: float, discordance: float, difference: float, alpha: float = 0.05, seed_variance: float = 0.0
) -> float:
    """The same by the normal approximation (Connor, Biometrics 1987), also for values other than 0 and 1, and seeds.

    Groups need not be whole, for those that share images are worth fewer. For other values the discordance is the mean
    of the squared differences. ``seed_variance`` is that of the difference by seeds alone: of one seed through their
    number.
    """
    none = math.sqrt(discordance / groups + seed_variance)
    some = math.sqrt(max(discordance - difference**2, 0.0) / groups + seed_variance)
    reach = abs(difference) - float(norm.ppf(1 - alpha / 2)) * none
    return float(norm.cdf(reach / some)) if some else float(reach >= 0)


def power_of(
    groups: float, discordance: float, difference: float, alpha: float = 0.05, seed_variance: float = 0.0
) -> float:
    """The exact power for whole groups and without a spread over seeds; else the approximate one."""
    if seed_variance or groups > _EXACT:
        return approximate_power(groups, discordance, difference, alpha, seed_variance)
    return exact_power(int(groups), discordance, difference, alpha)


def detectable_difference(
    groups: float, discordance: float, power: float = 0.8, alpha: float = 0.05, seed_variance: float = 0.0
) -> float | None:
    """The smallest difference that is found with a given power; arguments as for `power_of`.

    None if not even models of which one wins every disagreement are distinguished.
    """
    if groups < 1 or power_of(groups, discordance, discordance, alpha, seed_variance) < power:
        return None
    low, high = 0.0, discordance
    while high - low > 1e-6:
        middle = (low + high) / 2
        enough = power_of(groups, discordance, middle, alpha, seed_variance) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def groups_needed(
    difference: float, discordance: float, power: float = 0.8, alpha: float = 0.05, seed_variance: float = 0.0
) -> int | None:
    """Number of groups that find a difference with a given power; arguments as for `power_of`.

    By bisection, though the exact power is not quite monotone. None if no number is enough (none reduces the spread
    over seeds), or the models cannot differ by so much.
    """
    if not 0 < abs(difference) <= discordance:
        return None
    return _smallest(lambda n: power_of(n, discordance, difference, alpha, seed_variance) >= power, 2)


def seeds_needed(
    groups: float, difference: float, discordance: float, seed_std: float, power: float = 0.8, alpha: float = 0.05
) -> int | None:
    """Number of seeds of each model that find a difference on these groups; arguments as for `power_of`.

    ``seed_std`` is the standard deviation of the difference over seeds. None if the groups are too few.
    """
    if abs(difference) > discordance or approximate_power(groups, discordance, difference, alpha) < power:
        return None
    return _smallest(lambda n: approximate_power(groups, discordance, difference, alpha, seed_std**2 / n) >= power, 1)


def _smallest(enough: Callable[[int], bool], high: int) -> int | None:
    """The smallest number from ``high`` that is enough, by doubling and bisection; None beyond `MOST_GROUPS`."""
    low = high - 1
    while not enough(high):
        low, high = high, high * 2
        if high > MOST_GROUPS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
