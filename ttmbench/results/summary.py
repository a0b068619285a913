"""Values of groups -> numbers, shared by runs and ``ttmbench score``: both give the same digits.

With the clusters of groups that share an image, by which standard errors, intervals and tests go; numbers by tag,
and means over values of tags and over tasks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ttmbench import stats
from ttmbench._annotations import Bool, Float, Int
from ttmbench._util.third_party import foreign_errors, place_of_function
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.results.numbers import RAW, Number, as_entries, column_of, from_entries, key_of
from ttmbench.types import Group, MetricSpec, Scores, Track

Resampling = tuple[int, int, stats.IntervalMethod]
"""Resamples of bootstrap intervals (0 for no interval of any kind), the seed, and how intervals are made."""
Cell = tuple[str, ...]
_BATCH = 64  # resamples at a time: so many rows of as many columns as there are clusters


@dataclass(frozen=True)
class MethodScores:
    """What one method gives on a task: the model without training, SimpleMatch, TTM, a control.

    ``iterations`` has for each seed the scores after every iteration but the last; for held-out groups, the scores of
    the adapted groups before and after every iteration.
    """

    name: str  # method of its numbers
    scores: list[Scores]  # one per seed
    record: dict[str, Any] = field(default_factory=dict)  # of the results document; empty without training
    iterations: list[list[Scores]] = field(default_factory=list)
    seconds: float = 0.0  # wall time
    track: Track | None = None  # of all its numbers; None: that of the method, of the raw model that of each metric
    chance: Mapping[str, float | None] | None = None  # metric -> its own level; None: it is the metric's
    # of each seed what was made of its model: name -> tensors and JSON values
    left: Sequence[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = ()


def metric_values(metric: MetricSpec, scores: Scores) -> np.ndarray | None:
    """The metric's value for every group (image if it is global, once for a task); None where it is undefined."""
    inputs = _inputs(metric, scores)
    if inputs is None:
        return None
    with foreign_errors(whose_metric(metric), function=metric.compute):
        values = np.atleast_1d(metric.compute(*inputs)).astype(np.float64)
    refuse_unless_fractions(metric, values, 1 if metric.scope == "task" else len(inputs[0]))
    return values


def refuse_unless_fractions(metric: MetricSpec, values: np.ndarray, count: int, part: str = "") -> None:
    """TtmbenchError unless a metric gave so many numbers from 0 to 1, one for each group, image or query."""
    if values.shape != (count,) or not ((values >= 0) & (values <= 1)).all():
        wrong = [f"{value:g} for {at}" for at, value in enumerate(values.ravel()) if not 0 <= value <= 1]
        found = ", ".join(wrong[:1]) or f"an array of shape {list(values.shape)}"
        where = place_of_function(metric.compute)
        raise TtmbenchError(
            f"{part}{whose_metric(metric)} gave {found}; {count} fractions from 0 to 1 are expected, one a group "
            f"(image, query){f' ({where})' if where else ''}"
        )


def refuse_unless_logits(metrics: Iterable[MetricSpec], why: str | None) -> None:
    """UsageError if a metric needs logits and scores are none, as ``why`` says with what to do."""
    if why is not None and (asked := next((metric.name for metric in metrics if metric.needs_logits), None)):
        raise UsageError(f"metric '{asked}' needs logits: {why}")


def whose_metric(metric: MetricSpec) -> str:
    """A metric in messages, with the plugin that it is of."""
    return f"metric '{metric.name}'" + (f" of plugin '{metric.plugin}'" if metric.plugin else "")


def seed_values(metric: MetricSpec, per_seed: Sequence[Scores]) -> np.ndarray | None:
    """The metric's values [seeds, groups]; None where one is undefined, or there are no seeds."""
    values = [row for scores in per_seed if (row := metric_values(metric, scores)) is not None]
    return np.array(values) if values and len(values) == len(per_seed) else None


def group_rows(
    scores: Mapping[str, Sequence[Scores]], metrics: Sequence[MetricSpec]
) -> dict[tuple[str, str], np.ndarray]:
    """(metric, method) -> values [seeds, groups]; only of metrics that have them."""
    rows = {}
    for metric in (metric for metric in metrics if metric.scope not in ("global", "task")):
        for name, per_seed in scores.items():
            values = seed_values(metric, per_seed)
            if values is not None:
                rows[metric.name, name] = values
    return rows


def metric_mean(metric: MetricSpec, scores: Scores) -> float | None:
    """The metric's mean, a fraction; None where it is undefined."""
    values = metric_values(metric, scores)
    return None if values is None else stats.mean(values)


def metric_chance(metric: MetricSpec, scores: Scores) -> float | None:
    """What the metric gives for random scores of this shape; None where that is unknown or the metric undefined."""
    inputs = _inputs(metric, scores)
    if metric.chance is None or inputs is None:
        return None
    shape = inputs[0].shape if metric.scope == "global" else scores.groups.shape[1:]
    with foreign_errors(f"chance of {whose_metric(metric)}"):
        level = metric.chance(*shape)
    if level is not None:
        refuse_unless_fractions(metric, np.array([level], np.float64), 1, "chance of ")
    return None if level is None else float(level)


def number_of(
    task: str,
    metric: str,
    method: str,
    values: np.ndarray | None,
    how: Resampling,
    clusters: np.ndarray | None,
    **known: Any,
) -> Number:
    """The mean of values (fraction [groups]), with standard error and interval by clusters; undefined for None.

    ``known`` are further attributes of the number; a ``value`` among them is that of the number.
    """
    if values is not None:
        (iterations, seed, way), known = how, {"value": stats.mean(values), **known}
        known["stderr"] = stats.standard_error(values, clusters)
        known["interval"] = stats.interval(values, way, iterations, seed, clusters=clusters)
    return Number(task, metric, method, **{"value": None, **known})


def summarise(
    columns: Sequence[MethodScores],
    metrics: Sequence[MetricSpec],
    resampling: Resampling,
    clusters: Clusters | None = None,
    task: str = "",
) -> list[Number]:
    """Every metric of every column.

    Args:
        columns: each with score arrays, one per seed; that of the method ``none``, with one, is the first.
        metrics: what to compute, in the order of the output.
        resampling: how intervals are made.
        clusters: of the groups, where it is known which share images.
        task: whose groups they are.
    """
    numbers = []
    for metric in metrics:
        level, among = metric_chance(metric, columns[0].scores[0]), metric_units(metric, clusters)
        for column in columns:
            known: dict[str, Any] = {"own_chance": column.chance is not None}
            known["chance"] = level if column.chance is None else column.chance.get(metric.name)
            known["track"] = column.track or (metric.track if column.name == RAW else column_of(column.name).track)
            values = seed_values(metric, column.scores)
            if values is not None:
                value, known["seed_std"] = over_seeds(np.array([stats.mean(one) for one in values]))
                known["value"] = stats.mean(values.reshape(-1)) if known["seed_std"] else value  # exact for counts
                values = mean_over_seeds(values)
                if metric.ties is not None:
                    with foreign_errors(f"ties of {whose_metric(metric)}", function=metric.ties):
                        ties = [int(np.sum(metric.ties(*(_inputs(metric, one) or ())))) for one in column.scores]
                    known["ties"] = float(np.mean(ties)) if len(ties) > 1 else ties[0]
            numbers.append(number_of(task, metric.name, column.name, values, resampling, among, **known))
    return numbers


def metric_units(metric: MetricSpec, clusters: Clusters | None) -> np.ndarray | None:
    """Clusters of the groups or, for a global metric, of the images; None for a metric of the whole task."""
    if clusters is None or metric.scope == "task":
        return None
    return clusters.images.reshape(-1) if metric.scope == "global" else clusters.groups


def _inputs(metric: MetricSpec, scores: Scores) -> tuple[Any, ...] | None:
    """What the metric is computed from; None if it is undefined for the shape, or the scores lack it."""
    with foreign_errors(f"defined of {whose_metric(metric)}"):
        if not metric.defined(*scores.groups.shape[1:]) or metric.needs_logits > scores.are_logits:
            return None
    if metric.scope == "global":
        return None if scores.all_pairs is None else (scores.all_pairs, scores.truth)
    values = scores.caption_pairs if metric.scope == "captions" else scores.groups
    return None if values is None else (values,)


def differences(
    metrics: Sequence[MetricSpec],
    raw: Scores,
    adapted: Sequence[Scores],
    clusters: Clusters | None,
    bootstrap_iters: int,
    seed: int,
) -> dict[str, dict[str, object]]:
    """Every metric after adaptation (one array a seed) minus before it, group by group.

    Metric -> ``value``, ``ci`` over groups, ``by_seed`` and ``seed_ci``; undefined metrics are omitted. The other
    arguments are as of `summarise`.
    """
    changes = {}
    for metric in metrics:
        before, after = metric_values(metric, raw), seed_values(metric, adapted)
        if before is None or after is None:
            continue
        units = metric_units(metric, clusters)
        _, ends = stats.paired_difference(before, mean_over_seeds(after), bootstrap_iters, seed, clusters=units)
        means = [stats.mean(values) for values in after]
        changes[metric.name] = difference_of(stats.mean(before), means, None if ends is None else list(ends))
    return {name: change for name, change in changes.items() if change is not None}


def difference_of(
    raw: float | None, by_seed: Sequence[float | None], ci: list[float] | None = None
) -> dict[str, object] | None:
    """The difference of one number, as documents have it; None where a number is undefined.

    >>> difference_of(0.5, [0.5, 0.75])["value"], difference_of(None, [0.5])
    (0.125, None)
    """
    if raw is None or any(value is None for value in by_seed):
        return None
    each = [float(value) - raw for value in by_seed if value is not None]
    return {"value": over_seeds(np.array(each))[0], "ci": ci, "by_seed": each, "seed_ci": seed_interval(each)}


def over_seeds(values: Float[np.ndarray, " seeds"]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds: of equal values exactly their value, and 0; None for one seed.

    >>> over_seeds(np.array([0.7, 0.7, 0.7])), over_seeds(np.array([0.7]))
    ((0.7, 0.0), (0.7, None))
    """
    if np.ptp(values) == 0:
        return float(values[0]), 0.0 if len(values) > 1 else None
    return stats.mean(values) or 0.0, stats.seed_std(values)


def mean_over_seeds(rows: Float[np.ndarray, "seeds groups"]) -> Float[np.ndarray, " groups"]:
    """The mean of each group over seeds: of equal values exactly their value.

    >>> mean_over_seeds(np.array([[0.7, 0.0], [0.7, 1.0], [0.7, 1.0]])).tolist()
    [0.7, 0.6666666666666666]
    """
    return np.where(np.ptp(rows, axis=0) == 0, rows[0], np.mean(rows, axis=0))


def seed_interval(values: Sequence[float]) -> list[float] | None:
    """Student's 95 % interval of a mean over seeds; None for one seed, which knows no spread.

    >>> [round(end, 4) for end in seed_interval([0.1, 0.3])], seed_interval([0.1])
    ([-1.0706, 1.4706], None)
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean, std = over_seeds(np.array(values))
    half = float(t.ppf(0.975, len(values) - 1)) * (std or 0.0) / math.sqrt(len(values))
    return [mean - half, mean + half]


@dataclass(frozen=True)
class Clusters:
    """Clusters of a task's groups: those that share an image, directly or through others."""

    groups: Int[np.ndarray, " groups"]  # a number for each group; equal within a cluster
    images: Int[np.ndarray, "groups images"]  # a number for each image; equal for the same one

    def of(self, positions: Sequence[int] | None) -> Clusters:
        """Those of the groups at some positions; None for all."""
        return self if positions is None else Clusters(self.groups[list(positions)], self.images[list(positions)])


def connected(keys: Iterable[Iterable[Hashable]]) -> list[int]:
    """A number for each item, equal for items that share a key directly or through others, in order of first items.

    >>> connected([["a", "b"], ["c"], ["b", "d"], ["d"], []])
    [0, 1, 0, 0, 2]
    """
    from scipy.cluster.hierarchy import DisjointSet

    listed = list(keys)
    joined, first, number = DisjointSet(range(len(listed))), dict[Hashable, int](), dict[int, int]()
    for item, of_item in enumerate(listed):
        for key in of_item:
            joined.merge(item, first.setdefault(key, item))
    return [number.setdefault(joined[item], len(number)) for item in range(len(listed))]


def held_out(clusters: Int[np.ndarray, " groups"], share: float, seed: int) -> Bool[np.ndarray, " groups"]:
    """Random whole clusters with about this fraction of all groups: bool [groups].

    UsageError if the fraction leaves one side without groups, or there is only one cluster.
    """
    total = len(clusters)
    count = round(share * total)
    if not 0 < count < total:
        raise UsageError(f"holdout={share} of {total} groups leaves {count} to score and {total - count} to use")
    _, of_group, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        raise UsageError(f"holdout: all {total} groups share images, so none can be held out; omit it")
    order = np.random.default_rng([seed, 3]).permutation(len(sizes))
    drawn = 1 + int(np.abs(np.cumsum(sizes[order])[:-1] - count).argmin())
    return np.asarray(np.isin(of_group, order[:drawn]))


def clusters_note(groups: int, clusters: int) -> str:
    """A note for a task of which groups share images."""
    few = "; with fewer than 40 clusters, standard errors and intervals by percentile or bca are too small"
    return (
        f"groups share images: {groups} groups in {clusters} clusters; standard errors, intervals and tests take a "
        f"cluster for one independent observation{few if clusters < 40 else ''}"
    )


def cluster_numbers(ids: Sequence[str], known: Sequence[Mapping[str, str] | None]) -> np.ndarray | None:
    """Clusters of groups by what either run knows of them (each may have other groups); None where neither does."""
    if all(names is None for names in known):
        return None
    keys = [
        [(run, names[group]) for run, names in enumerate(known) if names is not None and group in names]
        for group in ids
    ]
    return np.array(connected(keys))


# ---- numbers by tag, means over values of tags and over tasks

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
        mean = CellValues.of(mean_over_seeds(rows), members, clusters)
        known: dict[str, Any] = {"value": None}
        if mean is not None:
            each = [
                cells.mean for cells in (CellValues.of(row, members, clusters) for row in rows) if cells is not None
            ]
            ends = mean.interval(interval, iterations, seed)
            known = {"value": mean.mean, "stderr": mean.standard_error(), "interval": ends}
            one, known["seed_std"] = over_seeds(np.array(each))
            known["value"] = one if known["seed_std"] == 0 else mean.mean
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
    members: dict[str, dict[str, list[int]]] = {}  # tag -> value -> positions of its groups
    for position, group in enumerate(groups):
        for tag, text in group.tags.items():
            for value in str(text).split(SEPARATOR) if text else [NO_VALUE]:
                members.setdefault(tag, {}).setdefault(value, []).append(position)
    named = _values_of_means(groups, means) if means else {}
    shown = {tag: values if len(values) <= MOST_VALUES else named.get(tag, {}) for tag, values in members.items()}
    members = {tag: values for tag, values in shown.items() if len(values) > 1}
    numbers: dict[str, dict[str, dict[str, float | None]]] = {
        tag: {value: {"groups": len(values[value])} for value in sorted(values)} for tag, values in members.items()
    }
    for key, rows in group_rows(scores, metrics).items() if numbers else ():
        for tag, values in members.items():
            for value, positions in values.items():
                numbers[tag][value][key_of(*key)] = stats.mean(rows[:, positions].reshape(-1))
    return numbers


def _values_of_means(groups: Sequence[Group], means: Mapping[str, TagMean]) -> dict[str, dict[str, list[int]]]:
    """Tag -> value that a named mean goes by -> positions of its groups."""
    values: dict[str, dict[str, set[int]]] = {}
    for mean in means.values():
        for cell, positions in mean.members(groups).items():
            for tag, value in zip(mean.by, cell, strict=True):
                values.setdefault(tag, {}).setdefault(value or NO_VALUE, set()).update(positions)
    return {tag: {value: sorted(of) for value, of in of_tag.items()} for tag, of_tag in values.items()}


def mean_of_tasks(results: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The unweighted mean of tasks, for every number that all of them have, as results documents have it.

    Standard errors add up as those of independent tasks.

    >>> mean_of_tasks([{"m,none": 0.5, "m_stderr,none": 0.03}, {"m,none": 1.0, "m_stderr,none": 0.04}])
    {'m,none': 0.75, 'm_stderr,none': 0.025}
    """
    means: dict[str, float | None] = {}
    tasks = [{number.key: number for number in from_entries("", {"results": of_task})} for of_task in results]
    for key in (key for key in tasks[0] if all(key in numbers for numbers in tasks)):
        same = [numbers[key] for numbers in tasks]
        values = [number.value for number in same if number.value is not None]
        errors = [number.stderr for number in same if number.stderr is not None]
        if len(values) == len(same):
            means[key] = math.fsum(values) / len(same)
        if len(errors) == len(same):
            error = math.sqrt(sum(error**2 for error in errors)) / len(same)
            means[key_of(same[0].metric, same[0].method, "stderr")] = error
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


def aggregates(
    results: Mapping[str, Mapping[str, float | None]], members: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float | None]]:
    """The mean of each dataset (dataset -> its tasks) whose subsets were all run: dataset -> numbers."""
    return {
        name: mean_of_tasks([results[task] for task in tasks])
        for name, tasks in members.items()
        if tasks and all(task in results for task in tasks)
    }


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

    def flip_ends(self, iterations: int, seed: int) -> tuple[float, float]:
        """As `interval`, where values are differences: it inverts `sign_flip` (`stats.flip_ends`)."""
        sizes = self.weights * len(self.values)
        return stats.flip_ends(np.zeros_like(sizes), self.values * sizes, iterations, seed, self.cluster, sizes)

    def _cell_means(self) -> Float[np.ndarray, " cells"]:
        return np.asarray(np.bincount(self.cell, weights=self.values) / np.bincount(self.cell))

    def _score_interval(self, level: float) -> tuple[float, float]:
        """As `stats.score_interval`, with the number of independent groups that give the same variance."""
        alone = replace(self, cluster=np.arange(len(self.values)))
        variance, variance_alone, p = self.variance(), alone.variance(), min(1.0, max(0.0, self.mean))
        assert variance is not None and variance_alone is not None, "asked for before"
        n = 1 / float(np.sum(np.square(self.weights)))
        total = n + 2 * stats.PSEUDO_WEIGHT
        p_more = (p * n + stats.PSEUDO_WEIGHT) / total
        added = (n * p**2 + stats.PSEUDO_WEIGHT) / total - p_more**2
        worth = n * p_more * (1 - p_more) / (n / total * (n * variance_alone) + added)
        clusters = float(self.cluster.max() + 1)
        if clusters < len(self.values):
            clusters = stats.effective_number(np.bincount(self.cluster, weights=self.weights))
            worth /= stats.design_effect(variance, variance_alone, clusters, n, worth)
        return stats.score_ends(p, worth, stats.student(clusters, level, strata=len(self.cells)) ** 2)

    def _bootstrap(self, iterations: int, seed: int, level: float, corrected: bool) -> tuple[float, float]:
        from scipy.special import ndtr, ndtri

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
