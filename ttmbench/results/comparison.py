"""Runs compared group by group: differences with intervals, p-values and the groups that flipped.

A results document holds means; the values of single groups lie in the samples beside it (``--log_samples``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from pydantic import ValidationError

from ttmbench import stats
from ttmbench._util.text import read_json_lines
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, UsageError
from ttmbench.results.cell_means import CellValues
from ttmbench.results.clusters import cluster_numbers, clusters_unknown
from ttmbench.results.coverage import Extent, extent_of, is_stored, source_kind
from ttmbench.results.labels import AT, HOLDOUT, HOLDOUT_RAW, RAW, SLASH
from ttmbench.results.reader import read_document, task_of_artifact
from ttmbench.results.samples import sample_value
from ttmbench.results.tag_means import TagMean
from ttmbench.types import Group

NO_SAMPLES = "its run wrote no samples, so there are no groups to compare; use --log_samples"
Values = dict[str, dict[str, dict[str, float]]]
"""filter -> metric -> group id -> value, a mean over seeds."""


@dataclass(frozen=True)
class TaskGroups:
    """What is known of the single groups of a task.

    Attributes:
        values: filter -> metric -> group id -> value.
        clusters: group id -> cluster; None where nothing says which groups share images.
        tags: group id -> its tags.
        means: name -> a mean of means over values of these.
    """

    values: Values
    clusters: Mapping[str, str] | None = None
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    means: Mapping[str, TagMean] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredRun:
    """A finished run with the values of its groups.

    Attributes:
        path: its results document.
        document: that document.
        groups: task -> values and clusters of its groups.
    """

    path: Path
    document: Mapping[str, Any]
    groups: Mapping[str, TaskGroups]

    @property
    def values(self) -> dict[str, Values]:
        """Task -> filter -> metric -> group id -> value."""
        return {task: found.values for task, found in self.groups.items()}

    @property
    def name(self) -> str:
        """What tables call it."""
        return str(self.document.get("model_name", self.path.stem))


def read_run(path: Path, need_samples: bool = True) -> StoredRun:
    """Reads a results document and the samples beside it.

    Args:
        path: the results document.
        need_samples: whether a run without samples is an error; else it has no values.

    Returns:
        The run.

    Raises:
        DataError: a file is absent or damaged, or the run wrote no samples.
    """
    document = read_document(path).to_dict()
    groups = stored_groups(path.parent, document)
    if not groups and need_samples:
        if any(is_stored(document, task) for task in document["results"]):
            raise DataError(f"{path}: is of an older version's `ttmbench score`, which wrote no samples; run it again")
        raise DataError(f"{path}: {NO_SAMPLES}")
    return StoredRun(path, document, groups)


def stored_groups(folder: Path, document: Mapping[str, Any]) -> dict[str, TaskGroups]:
    """The values and clusters of groups in the samples that a document names.

    Args:
        folder: where the document lies.
        document: of results.

    Returns:
        task -> its groups; tasks without samples are left out. Another task that an adapted model was measured on is
        ``adapted to@measured on``.

    Raises:
        DataError: a file is absent or damaged.
    """
    found: dict[str, TaskGroups] = {}
    for name, about in document.get("artifacts", {}).items():
        if not isinstance(about, dict) or about.get("kind") not in ("samples", "also_samples"):
            continue
        if PurePosixPath(name).name != name or "\\" in name or "\0" in name:
            raise DataError(
                f"{folder}: the artifact {name!r:.80} of a results document lies in another folder; only files beside "
                "it are read"
            )
        task = task_of_artifact(name, about, document["results"])
        if task is not None and about["kind"] == "also_samples":
            task = f"{task}{AT}{about.get('measured_on')}"
        if task is not None:
            found[task] = replace(_groups(folder / name), means=stated_means(document, task))
    return found


def compare_runs(
    baseline: StoredRun,
    other: StoredRun,
    *,
    filters: tuple[str, str] | None = None,
    allow_different: bool = False,
    iterations: int = 1000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Every number that two runs share, or two filters of one run, group by group.

    Args:
        baseline: what is compared to.
        other: what is compared; may be the same run.
        filters: compare this filter of the baseline with that of the other; by default every filter with itself.
        allow_different: also compare tasks of another version or other data, by the group ids they share.
        iterations: resamples of intervals and permutation tests.
        seed: of these.

    Returns:
        One row for each task, filter and metric, and for each mean over values of tags that both runs have
        (``task/name``), or for another task that an adapted model was measured on (``adapted to@measured on``);
        ``p_holm`` is adjusted by `adjust_for_several`, over these rows alone.

    Raises:
        UsageError: the runs share no task or filter, or a task differs and that is not allowed.
    """
    shared = [task for task in baseline.values if task in other.values]
    if not shared:
        raise UsageError(f"{baseline.path} and {other.path} share no task with samples")
    rows: list[dict[str, Any]] = []
    for task in shared:
        if not allow_different:
            check_same(baseline, other, task, "; --allow_different compares those whose ids they share")
        known = [run.groups[task].clusters for run in (baseline, other)]
        # Metrics and filters of a task mostly have the same groups.
        clusters = cache(partial(cluster_numbers, known=known))
        for pair in _filter_pairs(baseline.values[task], other.values[task], filters):
            rows += list(_rows(baseline, other, task, pair, clusters, iterations, seed))
            rows += list(_mean_rows(baseline, other, task, *pair, iterations, seed))
    if not rows:
        raise UsageError(f"{baseline.path} and {other.path} share no filter; there is nothing to compare")
    adjust_for_several(rows)
    return rows


def adjust_for_several(rows: Sequence[dict[str, Any]]) -> None:
    """Sets Holm's adjusted p of rows that are shown together (``p_holm``), and for how many tests (``holm_tests``).

    One family of tests is every row of one metric and filter: all tasks, and all runs that are compared. Means over
    values of tags (``task/name``) and other tasks (``adapted to@measured on``) are families of their own.

    Args:
        rows: of `compare_runs`; changed.
    """
    families = [(row["metric"], row["filter"], SLASH in row["task"], AT in row["task"]) for row in rows]
    for key in dict.fromkeys(families):
        family = [row for row, of in zip(rows, families, strict=True) if of == key]
        for row, adjusted in zip(family, stats.holm([row["p"] for row in family]), strict=True):
            row.update(p_holm=adjusted, holm_tests=len(family))


def _rows(
    baseline: StoredRun,
    other: StoredRun,
    task: str,
    filters: tuple[str, str],
    clusters: Callable[[tuple[str, ...]], np.ndarray | None],
    iterations: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    one, two = filters
    left, right = baseline.values[task][one], other.values[task][two]
    extents = [_extent(run.document, task) for run in (baseline, other)]
    for metric in (metric for metric in left if metric in right):
        sizes = [of for of in (_size(run.document, task, metric) for run in (baseline, other)) if of is not None]
        ids = [group for group in left[metric] if group in right[metric]]
        if not ids:
            raise UsageError(f"task '{task}': the two runs share no group id")
        before = np.array([left[metric][group] for group in ids])
        after = np.array([right[metric][group] for group in ids])
        among = clusters(tuple(ids))
        difference, interval = stats.paired_difference(before, after, iterations, seed, clusters=among)
        yes_or_no = bool(np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all())
        if yes_or_no:
            p = stats.mcnemar(before == 1, after == 1, among)
        else:
            p = stats.sign_flip(before, after, iterations, seed, among)
        count = None if among is None else len(np.unique(among))
        yield {
            "task": task,
            "metric": metric,
            "filter": one if one == two else f"{one}>{two}",
            "baseline": stats.mean(before),
            "other": stats.mean(after),
            "difference": difference,
            "ci": None if interval is None else list(interval),
            "p": p,
            "test": "mcnemar" if yes_or_no else "sign_flip",
            "groups": len(ids),
            "clusters": count,
            "clusters_unknown": clusters_unknown([baseline.document, other.document], task) if count is None else None,
            "groups_of_task": max(sizes) if sizes else None,
            "limited": any(extent.limited for extent in extents),
            "won": [group for group, x, y in zip(ids, before, after, strict=True) if y > x],
            "lost": [group for group, x, y in zip(ids, before, after, strict=True) if y < x],
            "smallest_difference": stats.smallest_difference(len(ids), clusters=count),
        }


def _mean_rows(
    baseline: StoredRun, other: StoredRun, task: str, one: str, two: str, iterations: int, seed: int
) -> Iterator[dict[str, Any]]:
    """As `_rows`, of the means over values of tags that both runs state alike."""
    mine, others = baseline.groups[task], other.groups[task]
    tags = {**others.tags, **mine.tags}
    left, right = mine.values[one], others.values[two]
    ids, limited = list(tags), any(_extent(run.document, task).limited for run in (baseline, other))
    among = cluster_numbers(ids, [mine.clusters, others.clusters])
    groups = [Group(group, (), (), tags[group]) for group in ids]
    for name, how in mine.means.items():
        if others.means.get(name) != how or not how.applies_to(groups):
            continue
        members = how.members(groups)
        for metric in (metric for metric in left if metric in right):
            rows = np.array([[values[metric].get(group, np.nan) for group in ids] for values in (left, right)])
            rows[:, np.isnan(rows).any(axis=0)] = np.nan
            before, after, change = (CellValues.of(row, members, among) for row in (*rows, rows[1] - rows[0]))
            if before is None or after is None or change is None:
                continue
            interval = change.interval("percentile", iterations, seed)
            counted = sorted(place for places in members.values() for place in places)
            yield {
                "task": f"{task}{SLASH}{name}",
                "metric": metric,
                "filter": one if one == two else f"{one}>{two}",
                "baseline": before.mean,
                "other": after.mean,
                "difference": change.mean,
                "ci": None if interval is None else list(interval),
                "p": change.sign_flip(iterations, seed),
                "test": "sign_flip",
                "groups": len(change.values),
                "clusters": None if among is None else int(change.cluster.max()) + 1,
                "cells": len(change.cells),
                "groups_of_task": None if limited else len(counted),
                "limited": limited,
                "won": [ids[place] for place in counted if rows[1, place] > rows[0, place]],
                "lost": [ids[place] for place in counted if rows[1, place] < rows[0, place]],
                "smallest_difference": None,
            }


def stated_means(document: Mapping[str, Any], task: str) -> dict[str, TagMean]:
    """How the means over values of tags that a document has of a task are made; DataError where it does not say."""
    known = (document.get("tag_means") or {}).get(task) or {}
    try:
        stated = document["configs"][task].get("means", {}) if known else {}
        return {str(name): TagMean.model_validate(how) for name, how in stated.items() if name in known}
    except (ValidationError, AttributeError, LookupError) as error:
        raise DataError(f"'configs' of task '{task}' has 'means' that are none ({error_line(error)})") from None


def _size(document: Mapping[str, Any], task: str, metric: str) -> int | None:
    """How many answers a metric has on the whole task: groups, or the queries of a task that ranks."""
    group = ((document.get("configs") or {}).get(task) or {}).get("group") or {}
    if metric.startswith("t2i_") and isinstance(group.get("n_captions"), int):
        return int(group["n_captions"])
    return _extent(document, task).of


def _extent(document: Mapping[str, Any], task: str) -> Extent:
    """As `extent_of`, also of another task that an adapted model was measured on."""
    if AT not in task:
        return extent_of(document, task)
    counts = _elsewhere(document, task).get("n-samples") or {}
    scored, total = counts.get("effective"), counts.get("original")
    return Extent(scored, total, scored is not None and total is not None and scored < total)


def _elsewhere(document: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """What a document says of ``adapted to@measured on``; nothing if it says nothing."""
    adapted_to, _, measured_on = task.partition(AT)
    found: Mapping[str, Any] = ((document.get("ttm_also") or {}).get(adapted_to) or {}).get(measured_on) or {}
    return found


def _filter_pairs(left: Values, right: Values, filters: tuple[str, str] | None) -> Sequence[tuple[str, str]]:
    if filters is None:
        return [(name, name) for name in left if name in right]
    return [filters] if filters[0] in left and filters[1] in right else []


def pairs_within(values: Mapping[str, Values]) -> list[tuple[str, str]]:
    """The filters of one run that a reader compares: the raw model with everything adapted from it."""
    found = dict.fromkeys(name for one in values.values() for name in one)
    pairs = [(RAW, name) for name in found if name not in (RAW, HOLDOUT, HOLDOUT_RAW)]
    return pairs + ([(HOLDOUT_RAW, HOLDOUT)] if HOLDOUT in found else [])


_SAME = {"versions": "version", "task_hashes": "data fingerprint"}


def check_same(
    baseline: StoredRun, other: StoredRun, task: str, advice: str, keys: Sequence[str] = tuple(_SAME)
) -> None:
    """Refuses a task of which two runs have another version or other data; ``advice`` ends the message."""
    for key in keys:
        one, two = (_stated(run.document, key, task) for run in (baseline, other))
        if one != two:
            parts = [_extent(run.document, task) for run in (baseline, other)]
            about = " and ".join(part.words for part in parts)
            why = f" ({about} groups)" if any(part.limited for part in parts) else ""
            if key == "task_hashes" and is_stored(baseline.document, task) != is_stored(other.document, task):
                why += " (one of them was scored from a file, which does not say what its images and captions were)"
            raise UsageError(
                f"task '{task}' has {_SAME[key]} {one} in {baseline.path} and {two} in {other.path}: they are not the "
                f"same groups{why}{advice}"
            )


def _stated(document: Mapping[str, Any], key: str, task: str) -> Any:
    """Version or fingerprint of a task's data."""
    if AT in task:
        return _elsewhere(document, task).get({"versions": "version", "task_hashes": "fingerprint"}[key])
    if key == "task_hashes" and source_kind(document, task) == "stored_features":  # it is of the model's embeddings
        return f"none (precomputed embeddings of {_extent(document, task).words} groups)"
    return document.get(key, {}).get(task)


def _groups(path: Path) -> TaskGroups:
    lines, clusters, tags = [], dict[str, str](), dict[str, Mapping[str, str]]()
    seen: set[str] = set()
    for number, line in read_json_lines(path):
        group, name, metrics = line.get("group_id"), line.get("filter"), sample_value(line.get("metrics"))
        if not isinstance(group, str) or not isinstance(name, str) or metrics is None:
            raise DataError(f"{path}: line {number} is no samples line of ttmbench, or one of its metrics no fraction")
        again = (name, line.get("seed_index", 0), group)
        if str(again) in seen:
            raise DataError(f"{path}: line {number} has group {group} again, of the same filter and seed")
        seen.add(str(again))
        lines.append({"group_id": group, "filter": name, "metrics": metrics})
        cluster = line.get("cluster")
        if not isinstance(cluster, str | None):
            raise DataError(f"{path}: line {number} has a cluster that is no text")
        if cluster is not None:
            clusters[group] = cluster
        if isinstance(line.get("tags"), dict):
            tags[group] = {str(tag): str(value) for tag, value in line["tags"].items()}
    return TaskGroups(values_of_lines(lines), clusters or None, tags)


def values_of_lines(lines: Sequence[Mapping[str, Any]]) -> Values:
    """The values of groups, means over seeds, from samples lines."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for line in lines:
        for metric, value in line["metrics"].items():
            if value is not None:
                sums.setdefault((line["filter"], metric, line["group_id"]), []).append(float(value))
    values: Values = {}
    for (name, metric, group), found in sums.items():
        values.setdefault(name, {}).setdefault(metric, {})[group] = sum(found) / len(found)
    return values
