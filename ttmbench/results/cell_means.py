"""Statistics of a mean of means: its standard error, its interval, and the difference of two.

Cells (combinations of values of tags) are strata. A resample draws clusters of groups that share images with
replacement, across cells; its mean is over the cells that occur in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from ttmbench import stats
from ttmbench._annotations import Float, Int

Cell = tuple[str, ...]
_BATCH = 64  # resamples at a time: so many rows of as many columns as there are clusters


@dataclass(frozen=True)
class CellValues:
    """Values of groups, by the cells that they are in."""

    values: Float[np.ndarray, " n"]  # one for each group that counts and was scored
    weights: Float[np.ndarray, " n"]  # of each in the mean of means
    cell: Int[np.ndarray, " n"]  # the number of each group's cell
    cells: tuple[Cell, ...]  # the cells, each with at least one value
    cluster: Int[np.ndarray, " n"]  # the number of each group's cluster, from 0

    @classmethod
    def of(
        cls, row: Float[np.ndarray, " groups"], members: Mapping[Cell, Sequence[int]], clusters: np.ndarray | None
    ) -> CellValues | None:
        """Values by cells; None if no group of a cell has a value.

        ``row`` has NaN for groups without a value, ``members`` the positions of each cell's groups, ``clusters`` a
        number for each group, equal for those that share images (None where that is unknown).
        """
        known = (~np.isnan(row)).tolist()  # a list, for indexing an array item by item is ten times as slow
        scored = {cell: [position for position in positions if known[position]] for cell, positions in members.items()}
        scored = {cell: positions for cell, positions in scored.items() if positions}
        positions = np.array([position for mine in scored.values() for position in mine], np.int64)
        if not len(positions):
            return None
        cell = np.repeat(np.arange(len(scored)), [len(mine) for mine in scored.values()])
        units = positions if clusters is None else np.asarray(clusters)[positions]
        _, cluster = np.unique(units, return_inverse=True)
        weights = weights_of(scored, len(row))[positions]
        return cls(np.asarray(row, np.float64)[positions], weights, cell, tuple(scored), cluster)

    @property
    def mean(self) -> float:
        """The mean of means."""
        return math.fsum((self.weights * self.values).tolist())

    def variance(self) -> float | None:
        """Variance of the mean of means (Cochran 1977, section 5.4); None if a cell has a single cluster."""
        clusters = int(self.cluster.max()) + 1
        pairs = np.unique(self.cell.astype(np.int64) * clusters + self.cluster)
        counts = np.bincount(pairs // clusters, minlength=len(self.cells))
        if counts.min() < 2:
            return None
        residuals = self.weights * (self.values - self._cell_means()[self.cell])
        residuals *= np.sqrt(counts / (counts - 1))[self.cell]
        return math.fsum(np.square(np.bincount(self.cluster, weights=residuals)).tolist())

    def standard_error(self) -> float | None:
        """Standard error of the mean of means; None as for `variance`."""
        variance = self.variance()
        return None if variance is None else math.sqrt(variance)

    def interval(
        self, method: stats.IntervalMethod, iterations: int, seed: int, level: float = 0.95
    ) -> tuple[float, float] | None:
        """Interval of the mean of means (lower, upper); None where there is no standard error, or for no iterations.

        For values outside [0, 1], which have no score interval, ``wilson`` means ``bca``.
        """
        if iterations < 1 or self.variance() is None:
            return None
        if method == "wilson" and self.values.min() >= 0 and self.values.max() <= 1:
            return self._score_interval(level)
        return self._bootstrap(iterations, seed, level, corrected=method != "percentile")

    def sign_flip(self, iterations: int, seed: int) -> float:
        """P of no difference (`stats.sign_flip` by clusters), where values are differences."""
        weighted = self.values * self.weights * len(self.values)
        return stats.sign_flip(np.zeros_like(weighted), weighted, iterations, seed, self.cluster)

    def _cell_means(self) -> Float[np.ndarray, " cells"]:
        return np.asarray(np.bincount(self.cell, weights=self.values) / np.bincount(self.cell))

    def _score_interval(self, level: float) -> tuple[float, float]:
        """As `stats.score_interval`, with the number of independent groups that give the same variance."""
        variance, p = self.variance(), min(1.0, max(0.0, self.mean))
        assert variance is not None, "asked for before"
        n = 1 / float(np.sum(np.square(self.weights)))
        total = n + 2 * stats.PSEUDO_WEIGHT
        p_more = (p * n + stats.PSEUDO_WEIGHT) / total
        added = (n * p**2 + stats.PSEUDO_WEIGHT) / total - p_more**2
        worth = n * p_more * (1 - p_more) / (n / total * (n * variance) + added)
        freedom = max(1, int(self.cluster.max()) + 1 - len(self.cells))
        z2 = float(stdtrit(freedom, (1 + level) / 2)) ** 2
        center = (p + z2 / (2 * worth)) / (1 + z2 / worth)
        half = math.sqrt(z2 * (p * (1 - p) / worth + z2 / (4 * worth**2))) / (1 + z2 / worth)
        return 0.0 if p <= 0 else max(0.0, center - half), 1.0 if p >= 1 else min(1.0, center + half)

    def _bootstrap(self, iterations: int, seed: int, level: float, corrected: bool) -> tuple[float, float]:
        if np.ptp(self.values) == 0:
            return self.mean, self.mean
        drawn = np.concatenate(list(self._resampled(iterations, np.random.default_rng(seed))))
        tails = np.array([(1 - level) / 2, (1 + level) / 2])
        residuals = self.weights * (self.values - self._cell_means()[self.cell])
        influence = np.bincount(self.cluster, weights=residuals)
        spread = float(np.sum(np.square(influence)))
        if corrected and spread > 0:  # BCa (Efron 1987), the acceleration by each cluster's influence
            below = (np.sum(drawn < self.mean) + np.sum(drawn == self.mean) / 2 + 0.5) / (len(drawn) + 1)
            bias, acceleration = ndtri(below), float(np.sum(influence**3)) / (6 * spread**1.5)
            quantiles = ndtri(tails)
            tails = ndtr(bias + (bias + quantiles) / (1 - acceleration * (bias + quantiles)))
        low, high = np.quantile(drawn, tails)
        return float(low), float(high)

    def _resampled(self, iterations: int, rng: np.random.Generator) -> Iterator[Float[np.ndarray, " resamples"]]:
        from scipy.sparse import csr_matrix

        count, places = int(self.cluster.max()) + 1, (self.cluster, self.cell)
        sums = csr_matrix((self.values, places), shape=(count, len(self.cells)))
        sizes = csr_matrix((np.ones(len(self.values)), places), shape=(count, len(self.cells)))
        for start in range(0, iterations, _BATCH):
            some = min(_BATCH, iterations - start)
            drawn = rng.integers(0, count, (some, count)) + count * np.arange(some)[:, None]
            times = np.bincount(drawn.ravel(), minlength=some * count).reshape(some, count).astype(np.float64)
            with np.errstate(invalid="ignore"):
                means = np.asarray((sums.T @ times.T).T / (sizes.T @ times.T).T)
            yield _over_cells(means, self.cells)


def weights_of(members: Mapping[Cell, Sequence[int]], groups: int) -> Float[np.ndarray, " groups"]:
    """Weight of each of so many groups in a mean of means over cells; 0 for groups of no cell.

    >>> weights_of({("a", "x"): [0, 1], ("a", "y"): [2], ("b", "z"): [3]}, 5).tolist()
    [0.125, 0.125, 0.25, 0.5, 0.0]
    """
    children = Counter(prefix[:-1] for prefix in {cell[: depth + 1] for cell in members for depth in range(len(cell))})
    weights = np.zeros(groups)
    for cell, places in members.items():
        weights[list(places)] = 1 / (math.prod(children[cell[:depth]] for depth in range(len(cell))) * len(places))
    return weights


def _over_cells(means: Float[np.ndarray, "resamples cells"], cells: Sequence[Cell]) -> Float[np.ndarray, " resamples"]:
    """Means of means, the innermost tag first, from means of cells (NaN for cells that a resample lacks).

    >>> _over_cells(np.array([[1.0, 0.0, 0.5], [np.nan, 0.0, 1.0]]), [("a", "x"), ("a", "y"), ("b", "z")]).tolist()
    [0.5, 0.5]
    """
    while cells[0]:
        outer = list(dict.fromkeys(cell[:-1] for cell in cells))
        at = np.array([outer.index(cell[:-1]) for cell in cells])
        known = ~np.isnan(means)
        above = np.zeros((len(outer), len(cells)))
        above[at, np.arange(len(cells))] = 1
        with np.errstate(invalid="ignore"):
            means = (np.where(known, means, 0.0) @ above.T) / (known @ above.T)
        cells = outer
    return np.asarray(means[:, 0])
