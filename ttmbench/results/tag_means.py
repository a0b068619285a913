"""Means of means over the values of tags, by name, beside the mean over all groups (macro beside micro).

Benchmarks state their number in one of both ways and the two can be far apart: say which.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field

from ttmbench.results.labels import key_of, stderr_key
from ttmbench.types import Group, MetricSpec, Scores

if TYPE_CHECKING:
    from ttmbench.results.clusters import Clusters

Cell = tuple[str, ...]


class TagMean(BaseModel):
    """How a named mean is made: inside each cell over its groups, then over cells, the innermost tag first.

    Attributes:
        by: tags whose values make the cells, from the outermost to the innermost.
        only: tag -> values; groups with another value are left out.
        at_least: groups that a cell needs to count.
        cells: how many cells the whole data have to make.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: list[str] = Field(min_length=1)
    only: dict[str, list[str]] = {}
    at_least: int = Field(1, ge=1)
    cells: int | None = Field(None, ge=1)

    def members(self, groups: Sequence[Group]) -> dict[Cell, list[int]]:
        """The cells that count: values of the tags -> positions of the groups that have them, in order."""
        found: dict[Cell, list[int]] = {}
        for position, group in enumerate(groups):
            if all(str(group.tags.get(tag, "")) in values for tag, values in self.only.items()):
                found.setdefault(tuple(str(group.tags.get(tag, "")) for tag in self.by), []).append(position)
        return {cell: places for cell, places in found.items() if len(places) >= self.at_least}

    def problem(self, groups: Sequence[Group]) -> str | None:
        """What is wrong with the whole data of a task for this mean; None for nothing."""
        known = {tag: {str(group.tags.get(tag, "")) for group in groups} for tag in {*self.by, *self.only}}
        for tag in known:
            if not any(tag in group.tags for group in groups):
                return f"goes by tag '{tag}', which no group has"
        for tag, values in self.only.items():
            absent = [value for value in values if value not in known[tag]]
            if absent:
                return f"names {absent[0]!r:.80} of tag '{tag}', which no group has"
        cells = len(self.members(groups))
        if cells == 0 or self.cells not in (None, cells):
            expected = "at least 1" if self.cells is None else str(self.cells)
            return f"has {cells} cells by {', '.join(self.by)}, expected {expected}"
        return None


def weights_of(members: Mapping[Cell, Sequence[int]], groups: int) -> Float[np.ndarray, " groups"]:
    """How much each group counts in a mean of means.

    Args:
        members: cell -> positions of its groups.
        groups: how many there are.

    Returns:
        Weights that add up to 1; 0 for groups of no cell.

    >>> weights_of({("a", "x"): [0, 1], ("a", "y"): [2], ("b", "z"): [3]}, 5).tolist()
    [0.125, 0.125, 0.25, 0.5, 0.0]
    """
    children = Counter(prefix[:-1] for prefix in {cell[: depth + 1] for cell in members for depth in range(len(cell))})
    weights = np.zeros(groups)
    for cell, places in members.items():
        weights[list(places)] = 1 / (math.prod(children[cell[:depth]] for depth in range(len(cell))) * len(places))
    return weights


def tag_means(
    groups: Sequence[Group],
    scores: Mapping[str, Sequence[Scores]],
    metrics: Sequence[MetricSpec],
    subsets: Mapping[str, Sequence[int]],
    means: Mapping[str, TagMean],
    clusters: Clusters | None = None,
) -> dict[str, dict[str, Any]]:
    """The named means of a task.

    Args:
        groups: with their tags, in the order of the scores.
        scores: filter -> score arrays, one per seed.
        metrics: those that have a value for every group are used.
        subsets: filter -> positions of its groups, where these are not all.
        means: name -> how it is made.
        clusters: of the groups, where it is known which share images.

    Returns:
        name -> ``by``, ``cells``, ``groups`` (how many count) and ``numbers``: ``metric,filter`` -> mean over seeds,
        with its standard error; None where no cell has a scored group.
    """
    from ttmbench.results.summary import metric_values  # with scipy.stats, which no listing of tasks should wait for

    found: dict[str, dict[str, Any]] = {}
    for name, how in means.items():
        members = how.members(groups)
        numbers: dict[str, float | None] = {}
        for metric in (metric for metric in metrics if metric.scope != "global"):
            for filter_, per_seed in scores.items():
                values = [metric_values(metric, one) for one in per_seed]
                if any(value is None for value in values):
                    continue
                scored = subsets.get(filter_, range(len(groups)))
                row = np.full(len(groups), np.nan)
                row[list(scored)] = np.mean([value for value in values if value is not None], axis=0)
                mean, error = _mean(row, members, clusters)
                numbers[key_of(metric.name, filter_)] = mean
                numbers[stderr_key(metric.name, filter_)] = error
        counted = sum(map(len, members.values()))
        found[name] = {"by": list(how.by), "cells": len(members), "groups": counted, "numbers": numbers}
    return found


def _mean(
    row: np.ndarray, members: Mapping[Cell, Sequence[int]], clusters: Clusters | None
) -> tuple[float | None, float | None]:
    """The mean of means of values, of which those that are NaN are unknown; and its standard error.

    Cells are strata (Cochran 1977, section 5.4); groups that share images vary together, across cells too. A cell of
    one group tells nothing of how it varies, so there is no error then.
    """
    scored = {cell: [place for place in places if not np.isnan(row[place])] for cell, places in members.items()}
    scored = {cell: places for cell, places in scored.items() if places}
    if not scored:
        return None, None
    weights = weights_of(scored, len(row))
    mean = math.fsum(weights[place] * row[place] for places in scored.values() for place in places)
    if min(map(len, scored.values())) < 2:
        return mean, None
    residuals: np.ndarray = np.zeros(len(row))
    for places in scored.values():
        inside = row[places] - np.mean(row[places])
        residuals[places] = weights[places] * inside * math.sqrt(len(places) / (len(places) - 1))
    if clusters is not None:
        _, codes = np.unique(clusters.groups, return_inverse=True)
        residuals = np.bincount(codes, weights=residuals)
    return mean, math.sqrt(math.fsum(np.square(residuals).tolist()))
