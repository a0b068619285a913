"""Stored runs, compared group by group: differences with intervals, p-values and the groups that flipped.

A results document holds means; the values of single groups are in the samples beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench.errors import DataError, UsageError
from ttmbench.results.document import AlsoRecord, ResultsDocument, mapping
from ttmbench.results.numbers import AT, RAW, SLASH, STORED_SCORES, Extent
from ttmbench.results.reader import ResultsFile, read_document
from ttmbench.results.summary import CellValues, cluster_numbers
from ttmbench.types import Group

LEVEL = 0.05  # p of a significant difference
NO_SAMPLES = "it has no per-group results (a samples file beside it); rerun it"
NO_IMAGES = "the samples do not say which groups share images (of stored scores and embeddings none do)"
Row = dict[str, Any]
"""One compared number, as JSON values by name."""


def read_run(path: Path, need_samples: bool = True) -> ResultsFile:
    """A results document with the samples beside it.

    DataError if a file is damaged, or with ``need_samples`` if there are no samples.
    """
    run = ResultsFile(path, read_document(path))
    if not run.groups and need_samples:
        raise DataError(f"{path}: {NO_SAMPLES}")
    return run


def compare_runs(
    baseline: ResultsFile,
    other: ResultsFile,
    *,
    methods: tuple[str, str] | None = None,
    metrics: Sequence[str] = (),
    allow_different: bool = False,
    iterations: int = 1000,
    seed: int = 0,
) -> list[Row]:
    """Every metric that two runs share, or two methods of one run, group by group.

    Args:
        baseline: what is compared to.
        other: what is compared; may be the same run.
        methods: one of the baseline and one of the other; by default every method with itself, and in a single run
            the raw model with everything that was adapted from it.
        metrics: to compare; empty for all.
        allow_different: also compare tasks of another version or other data, by the group ids they share.
        iterations: resamples of intervals and permutation tests.
        seed: of these.

    Returns:
        A row for each task, mean over values of tags (``task/name``) and other task that an adapted model was measured
        on (``adapted to@measured on``), and each method and metric.

    Raises:
        UsageError: the runs share no task, method or metric, or a task differs and that is not allowed.
    """
    shared = [task for task in baseline.groups if task in other.groups]
    if not shared:
        raise UsageError(f"{baseline.path} and {other.path} share no task with samples")
    within = _pairs_within(baseline) if methods is None and baseline is other else None
    rows: list[Row] = []
    for task in shared:
        if not allow_different and (why := why_not_same(baseline, other, task)) is not None:
            raise UsageError(f"{why}; --allow_different compares those whose ids they share")
        known = [run.groups[task].clusters for run in (baseline, other)]
        # Metrics and methods of a task mostly have the same groups.
        clusters = cache(partial(cluster_numbers, known=known))
        left, right = baseline.groups[task].values, other.groups[task].values
        pairs = [(name, name) for name in left] if methods is None else [methods]
        for pair in (pair for pair in within or pairs if pair[0] in left and pair[1] in right):
            rows += _rows(baseline, other, task, pair, clusters, iterations, seed)
            rows += _mean_rows(baseline, other, task, pair, clusters, iterations, seed)
    if not rows:
        raise UsageError(f"{baseline.path} and {other.path} share no method; there is nothing to compare")
    if within is not None:
        order = [_methods(*pair) for pair in within]
        rows.sort(key=lambda row: order.index(row["method"]))
    comparable = ", ".join(sorted({row["metric"] for row in rows}))
    rows = [row for row in rows if not metrics or row["metric"] in metrics]
    if not rows:
        raise UsageError(
            f"--metrics {','.join(metrics)}: compared are metrics with a value for each group: {comparable}"
        )
    return rows


def adjust_for_several(rows: Sequence[Row], whole_table: bool = False) -> Sequence[Row]:
    """The rows with Holm's adjusted p (``p_holm``) and the number of tests (``holm_tests``).

    A family of tests is all rows of one metric and method (with ``whole_table``, of all of them). Means over values of
    tags, and other tasks that an adapted model was measured on, are separate families.
    """
    alike = [("", "") if whole_table else (row["metric"], row["method"]) for row in rows]
    families = [(column, SLASH in row["task"], AT in row["task"]) for column, row in zip(alike, rows, strict=True)]
    for key in dict.fromkeys(families):
        family = [row for row, of in zip(rows, families, strict=True) if of == key]
        for row, adjusted in zip(family, stats.holm([row["p"] for row in family]), strict=True):
            row.update(p_holm=adjusted, holm_tests=len(family))
    return rows


def _rows(
    baseline: ResultsFile,
    other: ResultsFile,
    task: str,
    methods: tuple[str, str],
    clusters: Callable[[tuple[str, ...]], np.ndarray | None],
    iterations: int,
    seed: int,
) -> Iterator[Row]:
    left, right = baseline.groups[task].values[methods[0]], other.groups[task].values[methods[1]]
    extents = [_extent(run.document, task) for run in (baseline, other)]
    for metric in (metric for metric in left if metric in right):
        sizes = [_size(run.document, task, metric) for run in (baseline, other)]
        ids = [group for group in left[metric] if group in right[metric]]
        if not ids:
            raise UsageError(f"task '{task}': the two runs share no group id")
        before = np.array([left[metric][group] for group in ids])
        after = np.array([right[metric][group] for group in ids])
        cluster_of = clusters(tuple(ids))
        p, test = paired_test(before, after, cluster_of, iterations, seed)
        interval = None if iterations < 1 else _interval(before, after, p, test, iterations, seed, cluster_of)
        count = None if cluster_of is None else len(np.unique(cluster_of))
        yield {
            "task": task,
            "metric": metric,
            "method": _methods(*methods),
            "baseline": stats.mean(before),
            "other": stats.mean(after),
            "difference": float(np.mean(after - before)),
            "ci": None if interval is None else list(interval),
            "p": p,
            "test": test,
            "groups": len(ids),
            "clusters": count,
            "clusters_unknown": NO_IMAGES if count is None else None,
            "groups_of_task": max((size for size in sizes if size is not None), default=None),
            "limited": any(extent.limited for extent in extents),
            "won": [group for group, x, y in zip(ids, before, after, strict=True) if y > x],
            "lost": [group for group, x, y in zip(ids, before, after, strict=True) if y < x],
            "smallest_difference": stats.smallest_difference(len(ids), clusters=count),
        }


def paired_test(
    before: np.ndarray, after: np.ndarray, clusters: np.ndarray | None, iterations: int = 1000, seed: int = 0
) -> tuple[float, str]:
    """P of no difference, and the test: McNemar's where groups are right or wrong, else a permutation test."""
    if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
        return stats.mcnemar(before == 1, after == 1, clusters), "mcnemar"
    return stats.sign_flip(before, after, iterations, seed, clusters), "sign_flip"


def _interval(
    before: np.ndarray, after: np.ndarray, p: float, test: str, iterations: int, seed: int, clusters: np.ndarray | None
) -> tuple[float, float]:
    """Interval of the difference that inverts the test: it excludes 0 exactly where p is at most 0.05."""
    is_exact = test == "mcnemar"
    if is_exact and (clusters is None or len(np.unique(clusters)) == len(clusters)):
        return stats.mcnemar_ends(before == 1, after == 1)
    low, high = stats.flip_ends(before, after, iterations, seed, clusters)
    if is_exact and p > LEVEL:  # the ends are drawn, and p is not
        return min(low, 0.0), max(high, 0.0)
    if is_exact:  # and an end is a sum of flips divided by a number of groups
        least = 1 / len(before)
        return (max(low, least), high) if after.sum() > before.sum() else (low, min(high, -least))
    return low, high


def _methods(baseline: str, other: str) -> str:
    return baseline if baseline == other else f"{baseline}>{other}"


def _mean_rows(
    baseline: ResultsFile,
    other: ResultsFile,
    task: str,
    methods: tuple[str, str],
    clusters: Callable[[tuple[str, ...]], np.ndarray | None],
    iterations: int,
    seed: int,
) -> Iterator[Row]:
    """As `_rows`, of the means over values of tags that both runs define alike."""
    mine, others = baseline.groups[task], other.groups[task]
    tags = {**others.tags, **mine.tags}
    left, right = mine.values[methods[0]], others.values[methods[1]]
    ids, limited = list(tags), any(_extent(run.document, task).limited for run in (baseline, other))
    cluster_of = clusters(tuple(ids)) if mine.means else None
    groups = [Group(group, (), (), tags[group]) for group in ids]
    for name, how in mine.means.items():
        if others.means.get(name) != how or not how.applies_to(groups):
            continue
        members = how.members(groups)
        for metric in (metric for metric in left if metric in right):
            rows = np.array([[values[metric].get(group, np.nan) for group in ids] for values in (left, right)])
            rows[:, np.isnan(rows).any(axis=0)] = np.nan
            before, after, change = (CellValues.of(row, members, cluster_of) for row in (*rows, rows[1] - rows[0]))
            if before is None or after is None or change is None:
                continue
            interval = change.flip_ends(iterations, seed) if iterations > 0 else None
            counted = sorted(position for positions in members.values() for position in positions)
            yield {
                "task": f"{task}{SLASH}{name}",
                "metric": metric,
                "method": _methods(*methods),
                "baseline": before.mean,
                "other": after.mean,
                "difference": change.mean,
                "ci": None if interval is None else list(interval),
                "p": change.sign_flip(iterations, seed),
                "test": "sign_flip",
                "groups": len(change.values),
                "clusters": None if cluster_of is None else int(change.cluster.max()) + 1,
                "cells": len(change.cells),
                "groups_of_task": None if limited else len(counted),
                "limited": limited,
                "won": [ids[position] for position in counted if rows[1, position] > rows[0, position]],
                "lost": [ids[position] for position in counted if rows[1, position] < rows[0, position]],
                "smallest_difference": None,
            }


def _size(document: ResultsDocument, task: str, metric: str) -> int | None:
    captions = mapping(document.configs.get(task, {}).get("group")).get("n_captions")
    if metric.startswith("t2i_") and isinstance(captions, int):
        return captions
    return _extent(document, task).of


def _extent(document: ResultsDocument, task: str) -> Extent:
    """As `ResultsDocument.extent`, also of another task that an adapted model was measured on."""
    if AT not in task:
        return document.extent(task)
    record = _transfer_record(document, task)
    return Extent() if record is None else record.extent


def _transfer_record(document: ResultsDocument, task: str) -> AlsoRecord | None:
    adapted_to, _, measured_on = task.partition(AT)
    return document.also.get(adapted_to, {}).get(measured_on)


def _kind(document: ResultsDocument, task: str) -> str:
    """The kind of source of a task's data; empty for another task that an adapted model was measured on."""
    return str(document.datasets[task].source.get("kind")) if task in document.datasets else ""


def _pairs_within(run: ResultsFile) -> list[tuple[str, str]]:
    """The methods of one run that a reader compares: the raw model with everything adapted from it."""
    names = dict.fromkeys(name for groups in run.groups.values() for name in groups.values)
    pairs = [(RAW, name) for name in names if name != RAW]
    if not pairs:
        raise UsageError(f"{run.path} holds raw numbers only; give a second run to compare it with")
    return pairs


def why_not_same(baseline: ResultsFile, other: ResultsFile, task: str) -> str | None:
    """Why two runs of a task are not of the same groups; None if they are."""
    versions, data = zip(*(_version_and_data(run.document, task) for run in (baseline, other)), strict=True)
    for what, (earlier, later) in (("version", versions), ("data fingerprint", data)):
        if earlier != later:
            extents = [_extent(run.document, task) for run in (baseline, other)]
            about = " and ".join(extent.words for extent in extents)
            why = f" ({about} groups)" if any(extent.limited for extent in extents) else ""
            kinds = {_kind(run.document, task) for run in (baseline, other)}
            if what != "version" and len(kinds) > 1 and STORED_SCORES in kinds:
                why += " (one of them was scored from a file, which does not say what its images and captions were)"
            where = f"{what} {earlier} in {baseline.path} and {later} in {other.path}"
            return f"task '{task}' has {where}: they are not the same groups{why}"
    return None


def _version_and_data(document: ResultsDocument, task: str) -> tuple[int | None, str | None]:
    if AT in task:
        record = _transfer_record(document, task)
        return (None, None) if record is None else (record.version, record.fingerprint)
    version, data = document.versions.get(task), document.task_hashes.get(task)
    if _kind(document, task) == "stored_features":  # the fingerprint is of the model's embeddings
        data = f"none (precomputed embeddings of {_extent(document, task).words} groups)"
    return version, data


def pairs_of(runs: Sequence[ResultsFile], allow_different: bool) -> list[tuple[ResultsFile, ResultsFile]]:
    """Pairs of runs, each with the tasks to compare: each task of each run with the first run of the same data."""
    first: dict[str, list[ResultsFile]] = {}
    pairs = []
    for run in runs:
        tasks: dict[Path, tuple[ResultsFile, list[str]]] = {}
        for task in run.groups:
            earlier = first.setdefault(task, [])
            same = (candidate for candidate in earlier if allow_different or why_not_same(candidate, run, task) is None)
            baseline = next(same, None)
            if baseline is None:
                earlier.append(run)
            else:
                tasks.setdefault(baseline.path, (baseline, []))[1].append(task)
        for baseline, names in tasks.values():
            left, right = (
                replace(side, known_groups={name: side.groups[name] for name in names}) for side in (baseline, run)
            )
            pairs.append((left, right))
    return pairs
