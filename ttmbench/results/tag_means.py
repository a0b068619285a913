"""Numbers by tag, named means over values of tags (macro averages), and means over the tasks of a dataset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ttmbench import stats
from ttmbench.results.numbers import Number, as_entries, key_of
from ttmbench.results.summary import Cell, CellValues, Clusters, Resampling, group_rows
from ttmbench.types import Group, MetricSpec, Scores

MOST_VALUES = 24  # a tag with more is a name, not a kind
NO_VALUE = "(none)"
SEPARATOR = ", "  # a group may have several values of a tag


class TagMean(BaseModel):
    """How a named mean is computed: over the groups of each cell, then over cells, the innermost tag first.

    Attributes:
        by: tags, from the outermost to the innermost. Groups with the same values form a cell; the mean is taken within
            each cell, then over the cells of the innermost tag, and so on outwards.
        only: tag -> values; groups with another value are excluded.
        at_least: number of groups that a cell needs to count.
        cells: number of cells of the whole data; another number is an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: list[str] = Field(min_length=1)
    only: dict[str, list[str]] = {}
    at_least: int = Field(1, ge=1)
    cells: int | None = Field(None, ge=1)

    def members(self, groups: Sequence[Group]) -> dict[Cell, list[int]]:
        """The cells that count: values of the tags -> positions of the groups that have them, in order."""
        cells: dict[Cell, list[int]] = {}
        for position, group in enumerate(groups):
            if all(str(group.tags.get(tag, "")) in values for tag, values in self.only.items()):
                cells.setdefault(tuple(str(group.tags.get(tag, "")) for tag in self.by), []).append(position)
        return {cell: positions for cell, positions in cells.items() if len(positions) >= self.at_least}

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
    rows: Mapping[tuple[str, str], np.ndarray],
    means: Mapping[str, TagMean],
    clusters: Clusters | None = None,
    resampling: Resampling = (0, 0, "wilson"),
) -> dict[str, dict[str, object]]:
    """The named means of a task, except those by tags that no group has.

    ``rows`` are (metric, method) -> values [seeds, groups], NaN where a group was not scored (`group_rows`).

    Returns:
        name -> ``by``, ``cells``, ``groups`` (how many count); ``numbers`` (by ``metric,method``: mean over seeds,
        standard error, spread over seeds) and ``ci`` over groups. None where no cell has a scored group.
    """
    return {
        name: _record(mean, groups, rows, None if clusters is None else clusters.groups, resampling)
        for name, mean in means.items()
        if mean.applies_to(groups)
    }


def _record(
    how: TagMean,
    groups: Sequence[Group],
    values: Mapping[tuple[str, str], np.ndarray],
    clusters: np.ndarray | None,
    resampling: Resampling,
) -> dict[str, object]:
    (iterations, seed, interval), members, numbers = resampling, how.members(groups), list[Number]()
    for (metric, method), rows in values.items():
        mean = CellValues.of(np.mean(rows, axis=0), members, clusters)
        known: dict[str, Any] = {"value": None}
        if mean is not None:
            each = [
                cells.mean for cells in (CellValues.of(row, members, clusters) for row in rows) if cells is not None
            ]
            ends = mean.interval(interval, iterations, seed)
            known = {"value": mean.mean, "stderr": mean.standard_error(), "interval": ends}
            known["seed_std"] = stats.seed_std(np.array(each))
        numbers.append(Number("", metric, method, **known))
    entries, counted = as_entries(numbers), sum(map(len, members.values()))
    about = {"by": list(how.by), "cells": len(members), "groups": counted}
    return {**about, "numbers": entries["results"], "ci": entries["ci"]}


def breakdowns(
    groups: Sequence[Group],
    scores: Mapping[str, Sequence[Scores]],
    metrics: Sequence[MetricSpec],
    means: Mapping[str, TagMean] = MappingProxyType({}),
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Every metric inside groups, for the groups of each value of each tag.

    ``scores`` are method -> score arrays, one per seed. Metrics without a value for every group are skipped.

    Returns:
        tag -> value -> ``groups`` (how many) and ``metric,method`` -> mean over groups and seeds; None where no group
        of this value was scored. Tags with one value, or with more than 24, are omitted, but for values that a named
        mean goes by.
    """
    members = {**_members(groups), **_members_of_means(groups, means)}
    numbers: dict[str, dict[str, dict[str, float | None]]] = {
        tag: {value: {"groups": len(places)} for value, places in values.items()} for tag, values in members.items()
    }
    for key, rows in group_rows(scores, metrics).items() if numbers else ():
        row = np.mean(rows, axis=0)
        for tag, places_of in members.items():
            for value, places in places_of.items():
                numbers[tag][value][key_of(*key)] = float(row[places].mean())
    return numbers


def mean_of_tasks(results: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The unweighted mean of tasks, for every number (``metric,method``) that all of them have.

    Standard errors add up as those of independent tasks.

    >>> mean_of_tasks([{"m,none": 0.5, "m_stderr,none": 0.03}, {"m,none": 1.0, "m_stderr,none": 0.04}])
    {'m,none': 0.75, 'm_stderr,none': 0.025}
    """
    means: dict[str, float | None] = {}
    for key in results[0]:
        values = [result.get(key) for result in results]
        known = [value for value in values if value is not None]
        metric = key.partition(",")[0]
        if len(known) < len(values) or metric.endswith("_seed_std"):
            continue
        if metric.endswith("_stderr"):
            means[key] = math.sqrt(sum(value**2 for value in known)) / len(known)
        else:
            means[key] = math.fsum(known) / len(known)
    return means


def shared_images_note(configs: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """A note for a mean over tasks of which some share an image collection or path, by their resolved task files."""
    seen: dict[str, str] = {}
    alike: dict[str, None] = {}
    for task in tasks:
        config = configs.get(task) or {}
        source = config.get("source") or {}
        places = source.get("images") or source.get("path")
        at = [f"at {path}" for path in (places if isinstance(places, list) else [places]) if path]
        for shared in dict.fromkeys([*(config.get("images_from") or ()), *at]):
            if shared in seen:
                alike |= {seen[shared]: None, task: None}
            seen.setdefault(shared, task)
    if not alike:
        return []
    return [
        f"the standard error of the mean assumes independent tasks, and {len(alike)} of {len(tasks)} may share "
        "images (one image collection or place), so it may be too small"
    ]


def _members(groups: Sequence[Group]) -> dict[str, dict[str, np.ndarray]]:
    """Tag -> value -> positions of its groups."""
    places: dict[str, dict[str, list[int]]] = {}
    for position, group in enumerate(groups):
        for tag, text in group.tags.items():
            for value in str(text).split(SEPARATOR) if text else [NO_VALUE]:
                places.setdefault(tag, {}).setdefault(value, []).append(position)
    return {
        tag: {value: np.array(positions) for value, positions in sorted(values.items())}
        for tag, values in places.items()
        if 1 < len(values) <= MOST_VALUES
    }


def _members_of_means(groups: Sequence[Group], means: Mapping[str, TagMean]) -> dict[str, dict[str, np.ndarray]]:
    """As `_members`, for tags with many values that a named mean goes by."""
    members: dict[str, dict[str, list[int]]] = {}
    for mean in means.values():
        for cell, places in mean.members(groups).items():
            for tag, value in zip(mean.by, cell, strict=True):
                members.setdefault(tag, {}).setdefault(value or NO_VALUE, []).extend(places)
    return {
        tag: {value: np.array(sorted({*places})) for value, places in sorted(values.items())}
        for tag, values in members.items()
        if len(values) > 1 and len({group.tags.get(tag) for group in groups}) > MOST_VALUES
    }


def aggregates(
    results: Mapping[str, Mapping[str, float | None]], members: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float | None]]:
    """The mean of each dataset (dataset -> its tasks) whose subsets were all run: dataset -> numbers."""
    return {
        name: mean_of_tasks([results[task] for task in tasks])
        for name, tasks in members.items()
        if tasks and all(task in results for task in tasks)
    }
