"""Score arrays -> the numbers of a results file, shared by runs and ``ttmbench score``: both give the same digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util.third_party_errors import foreign_errors, place_of_function
from ttmbench.errors import TtmbenchError
from ttmbench.results.clusters import Clusters
from ttmbench.results.labels import HOLDOUT_RAW, RAW, key_of, seed_std_key, stderr_key, track_of
from ttmbench.types import MetricSpec, Scores, Track

Resampling = tuple[int, int, stats.IntervalMethod]
"""Resamples of bootstrap intervals (0 for no interval of any kind), the seed, and how intervals are made."""


@dataclass(frozen=True)
class Summary:
    """Numbers of one task. Keys are ``metric,filter``; chance is by metric, for methods by key. Undefined is None.

    ``results`` has means over groups (and seeds), ``metric_stderr,filter`` and ``metric_seed_std,filter``.
    """

    results: dict[str, float | None] = field(default_factory=dict)
    ci: dict[str, list[float] | None] = field(default_factory=dict)  # 95 % interval over groups
    chance: dict[str, float | None] = field(default_factory=dict)  # expected value of random scores
    ties: dict[str, float | None] = field(default_factory=dict)  # groups (or images) with a tie; mean over seeds
    tracks: dict[str, Track] = field(default_factory=dict)  # none for controls and held-out groups

    def add(
        self, metric: str, filter_: str, values: np.ndarray | None, resampling: Resampling, among: np.ndarray | None
    ) -> None:
        """Adds the mean of values, its standard error and interval by clusters; all None where there are none."""
        (iterations, seed, interval), key, stderr = resampling, key_of(metric, filter_), stderr_key(metric, filter_)
        self.results[key] = self.results[stderr] = self.ci[key] = self.ties[key] = None
        if values is not None:
            ends = stats.interval(values, interval, iterations, seed, clusters=among)
            self.results[key], self.results[stderr] = stats.mean(values), stats.standard_error(values, among)
            self.ci[key] = None if ends is None else list(ends)


@dataclass(frozen=True)
class MethodScores:
    """What one method gives on a task: the model without training, SimpleMatch, TTM, a control.

    ``iterations`` has for each seed the scores after every iteration but the last; for held-out groups, the scores of
    the adapted groups before and after every iteration.
    """

    name: str  # filter of its numbers
    scores: list[Scores]  # one per seed
    record: dict[str, Any] = field(default_factory=dict)  # of the results document; empty without training
    members: list[int] | None = None  # positions of the groups that the scores are of; None for all
    iterations: list[list[Scores]] = field(default_factory=list)
    seconds: float = 0.0  # wall time
    track: Track | None = None  # of all its numbers; None: as `ttmbench.results.labels.track_of` says
    chance: Mapping[str, float | None] | None = None  # metric -> its own level; None: it is the metric's


def metric_values(metric: MetricSpec, scores: Scores) -> np.ndarray | None:
    """The metric's value for every group (every image, for a global metric); None where it is undefined."""
    if not _is_defined(metric, scores):
        return None
    with foreign_errors(_whose(metric)):
        values = np.asarray(_call(metric.compute, metric, scores)).astype(np.float64)
    each = "image" if metric.scope == "global" else "group"
    count = len(scores.groups) if scores.all_pairs is None or each == "group" else len(scores.all_pairs)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise TtmbenchError(
            f"{_whose(metric)} gave an array of shape {list(values.shape)} for {count} {each}s; one finite "
            f"number each is expected{_where(metric)}"
        )
    outside = (values < 0) | (values > 1)
    if outside.any():
        index = int(np.argmax(outside))
        raise TtmbenchError(
            f"{_whose(metric)} gave {values[index]:g} for {each} {index}; a metric is a fraction from 0 to 1"
            f"{_where(metric)}"
        )
    return values


def _whose(metric: MetricSpec) -> str:
    return f"metric '{metric.name}'" + (f" of plugin '{metric.plugin}'" if metric.plugin else "")


def _where(metric: MetricSpec) -> str:
    location = place_of_function(metric.compute)
    return f" ({location})" if location else ""


def seed_values(metric: MetricSpec, per_seed: Sequence[Scores]) -> np.ndarray | None:
    """The metric's values [seeds, groups]; None where one is undefined, or there are no seeds."""
    values = [row for scores in per_seed if (row := metric_values(metric, scores)) is not None]
    return np.array(values) if values and len(values) == len(per_seed) else None


def group_rows(
    groups: int,
    scores: Mapping[str, Sequence[Scores]],
    metrics: Sequence[MetricSpec],
    subsets: Mapping[str, Sequence[int]],
) -> dict[tuple[str, str], np.ndarray]:
    """(metric, filter) -> values [seeds, groups], NaN where a filter does not have a group; no global metrics."""
    rows = {}
    for metric in (metric for metric in metrics if metric.scope != "global"):
        for name, per_seed in scores.items():
            values = seed_values(metric, per_seed)
            if values is not None:
                rows[metric.name, name] = np.full((len(values), groups), np.nan)
                rows[metric.name, name][:, list(subsets.get(name, range(groups)))] = values
    return rows


def metric_mean(metric: MetricSpec, scores: Scores) -> float | None:
    """The metric's mean, a fraction; None where it is undefined."""
    values = metric_values(metric, scores)
    return None if values is None else stats.mean(values)


def metric_chance(metric: MetricSpec, scores: Scores) -> float | None:
    """What the metric gives for random scores of this shape; None where that is unknown or the metric undefined."""
    if metric.chance is None or not _is_defined(metric, scores):
        return None
    shape = (scores.shape.images, scores.shape.captions)
    if metric.scope == "global":
        assert scores.all_pairs is not None, "a global metric with values has all pairs"
        shape = scores.all_pairs.shape
    with foreign_errors(f"chance of {_whose(metric)}"):
        level = metric.chance(*shape)
        chance = None if level is None else float(level)
    if chance is not None and not 0 <= chance <= 1:
        raise TtmbenchError(
            f"{_whose(metric)} says that its chance level is {chance:g}; it is a fraction from 0 to 1{_where(metric)}"
        )
    return chance


def summarise(
    columns: Sequence[MethodScores],
    metrics: Sequence[MetricSpec],
    bootstrap_iters: int,
    seed: int,
    interval: stats.IntervalMethod = "wilson",
    clusters: Clusters | None = None,
) -> Summary:
    """Every metric of every column.

    Args:
        columns: each with score arrays, one per seed; that of the filter ``none`` has one.
        metrics: what to compute, in the order of the output.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        seed: of the resampling.
        interval: how intervals are made.
        clusters: of the groups, where it is known which share images.
    """
    summary = Summary()
    for metric in metrics:
        for column in columns:
            name, per_seed = column.name, column.scores
            among = metric_units(metric, clusters, column.members)
            key = key_of(metric.name, name)
            values = seed_values(metric, per_seed)
            track = track_of(name, metric.track, column.track)
            if track is not None:
                summary.tracks[key] = track
            if column.chance is not None:
                summary.chance[key] = column.chance.get(metric.name)
            over_seeds = None if values is None else np.mean(values, axis=0)
            summary.add(metric.name, name, over_seeds, (bootstrap_iters, seed, interval), among)
            if values is None:
                summary.chance.setdefault(metric.name, None)
                continue
            means = np.array([stats.mean(value) for value in values])
            summary.results[key] = float(np.mean(means))
            if name not in (RAW, HOLDOUT_RAW):
                summary.results[seed_std_key(metric.name, name)] = stats.seed_std(means)
            summary.ties[key] = _ties(metric, per_seed)
            summary.chance.setdefault(metric.name, metric_chance(metric, per_seed[0]))
    return summary


def summarise_values(
    values: Mapping[str, np.ndarray],
    filter_: str,
    tracks: Mapping[str, Track],
    chance: Mapping[str, float | None],
    resampling: Resampling,
    clusters: Clusters | None,
) -> Summary:
    """Metrics of which only the values of groups are known (metric -> fraction [groups]), so that ties are None."""
    summary = Summary()
    for metric, each in values.items():
        among = None if clusters is None else clusters.groups
        summary.add(metric, filter_, np.asarray(each, np.float64), resampling, among)
        summary.tracks[key_of(metric, filter_)], summary.chance[metric] = tracks[metric], chance[metric]
    return summary


def metric_units(metric: MetricSpec, clusters: Clusters | None, subset: Sequence[int] | None) -> np.ndarray | None:
    """Clusters of the groups or, for a global metric, of the images."""
    if clusters is None:
        return None
    mine = clusters.of(subset)
    return mine.images.reshape(-1) if metric.scope == "global" else mine.groups


def _is_defined(metric: MetricSpec, scores: Scores) -> bool:
    """Whether the metric is defined for the shape, and the scores have what it is computed from."""
    with foreign_errors(f"defined of {_whose(metric)}"):
        defined = bool(metric.defined(scores.shape.images, scores.shape.captions))
    missing = {"global": scores.all_pairs is None, "captions": scores.caption_pairs is None}
    return defined and not missing.get(metric.scope, False)


def _call(function: Callable[..., Any], metric: MetricSpec, scores: Scores) -> Any:
    if metric.scope == "global":
        return function(scores.all_pairs, scores.truth)
    return function(scores.groups if metric.scope == "group" else scores.caption_pairs)


def _ties(metric: MetricSpec, per_seed: Sequence[Scores]) -> float | None:
    if metric.ties is None:
        return None
    counts = []
    for scores in per_seed:
        with foreign_errors(f"ties of {_whose(metric)}"):
            counts.append(int(np.sum(_call(metric.ties, metric, scores))))
    return float(np.mean(counts)) if len(counts) > 1 else counts[0]


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
        units = metric_units(metric, clusters, None)
        _, ends = stats.paired_difference(before, after.mean(axis=0), bootstrap_iters, seed, clusters=units)
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
    return {"value": float(np.mean(each)), "ci": ci, "by_seed": each, "seed_ci": seed_interval(each)}


def seed_interval(values: Sequence[float]) -> list[float] | None:
    """Student's 95 % interval of a mean over seeds; None for one seed, which knows no spread.

    >>> [round(end, 4) for end in seed_interval([0.1, 0.3])], seed_interval([0.1])
    ([-1.0706, 1.4706], None)
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean = float(np.mean(values))
    half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return [mean - half, mean + half]
