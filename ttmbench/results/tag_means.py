"""Named means of means over the values of tags (macro averages), beside the mean over all groups (micro)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ttmbench.results.labels import CHOICE, HOLDOUT_RAW, RAW, key_of, seed_std_key, stderr_key
from ttmbench.types import Group, MetricSpec, Scores

if TYPE_CHECKING:
    from ttmbench.results.cell_means import Cell
    from ttmbench.results.clusters import Clusters
    from ttmbench.stats import IntervalMethod

UNTRAINED = (RAW, HOLDOUT_RAW, CHOICE)  # filters without seeds


class TagMean(BaseModel):
    """How a named mean is computed: over the groups of each cell, then over cells, the innermost tag first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: list[str] = Field(min_length=1)  # tags whose values make the cells, from the outermost to the innermost
    only: dict[str, list[str]] = {}  # tag -> values; groups with another value are excluded
    at_least: int = Field(1, ge=1)  # groups that a cell needs to count
    cells: int | None = Field(None, ge=1)  # number of cells of the whole data

    def members(self, groups: Sequence[Group]) -> dict[Cell, list[int]]:
        """The cells that count: values of the tags -> positions of the groups that have them, in order."""
        found: dict[Cell, list[int]] = {}
        for position, group in enumerate(groups):
            if all(str(group.tags.get(tag, "")) in values for tag, values in self.only.items()):
                found.setdefault(tuple(str(group.tags.get(tag, "")) for tag in self.by), []).append(position)
        return {cell: places for cell, places in found.items() if len(places) >= self.at_least}

    def applies_to(self, groups: Sequence[Group]) -> bool:
        """Whether the groups have its tags; groups of precomputed embeddings have none."""
        return all(any(tag in group.tags for group in groups) for tag in self.by)

    def problem(self, groups: Sequence[Group]) -> str | None:
        """What is wrong with the whole data of a task for this mean, if anything."""
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


def tag_means(
    groups: Sequence[Group],
    scores: Mapping[str, Sequence[Scores]],
    metrics: Sequence[MetricSpec],
    subsets: Mapping[str, Sequence[int]],
    means: Mapping[str, TagMean],
    clusters: Clusters | None = None,
    resampling: tuple[int, int, IntervalMethod] = (0, 0, "wilson"),
) -> dict[str, dict[str, object]]:
    """The named means of a task.

    ``resampling`` is how many resamples bootstrap intervals have (0 for no interval of any kind), their seed, and the
    kind of interval; the other arguments are those of `ttmbench.results.breakdown.breakdowns`.

    Returns:
        name -> ``by``, ``cells``, ``groups`` (how many count), ``numbers``: ``metric,filter`` -> mean over seeds, with
        its standard error and its spread over seeds; and ``ci``: ``metric,filter`` -> its interval over groups. None
        where no cell has a scored group. A mean by tags that no group has is left out.
    """
    from ttmbench.results.summary import group_rows  # with scipy.stats, which no listing of tasks should wait for

    if not means:
        return {}
    return means_of_rows(groups, group_rows(len(groups), scores, metrics, subsets), means, clusters, resampling)


def means_of_rows(
    groups: Sequence[Group],
    rows: Mapping[tuple[str, str], np.ndarray],
    means: Mapping[str, TagMean],
    clusters: Clusters | None,
    resampling: tuple[int, int, IntervalMethod],
) -> dict[str, dict[str, object]]:
    """As `tag_means`, of (metric, filter) -> values [seeds, groups], NaN where a group was not scored."""
    usable = {name: how for name, how in means.items() if how.applies_to(groups)}
    return {name: _record(how, groups, rows, clusters, resampling) for name, how in usable.items()}


def _record(
    how: TagMean,
    groups: Sequence[Group],
    values: Mapping[tuple[str, str], np.ndarray],
    clusters: Clusters | None,
    resampling: tuple[int, int, IntervalMethod],
) -> dict[str, object]:
    """A mean as the document has it."""
    from ttmbench import stats
    from ttmbench.results.cell_means import CellValues

    (iterations, seed, interval), members = resampling, how.members(groups)
    numbers: dict[str, float | None] = {}
    ci: dict[str, list[float] | None] = {}
    among = None if clusters is None else clusters.groups
    for (metric, filter_), rows in values.items():
        found = CellValues.of(np.mean(rows, axis=0), members, among)
        key = key_of(metric, filter_)
        numbers[key] = None if found is None else found.mean
        numbers[stderr_key(metric, filter_)] = None if found is None else found.standard_error()
        if found is not None and filter_ not in UNTRAINED:
            each = [one.mean for one in (CellValues.of(row, members, among) for row in rows) if one is not None]
            numbers[seed_std_key(metric, filter_)] = stats.seed_std(np.array(each))
        ends = None if found is None else found.interval(interval, iterations, seed)
        ci[key] = None if ends is None else list(ends)
    counted = sum(map(len, members.values()))
    return {"by": list(how.by), "cells": len(members), "groups": counted, "numbers": numbers, "ci": ci}
