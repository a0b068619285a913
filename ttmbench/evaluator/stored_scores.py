"""From a file of stored scores to a results document: the numbers of a paper checked without its model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench.data.catalog import find_task
from ttmbench.data.checks import check_count
from ttmbench.data.kinds import SCOPES
from ttmbench.data.task_file import GroupSpec, TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.record import RunRecord, TaskOutcome
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.results.labels import RAW
from ttmbench.results.scores_file import StoredScores, read_scores
from ttmbench.results.summary import summarise
from ttmbench.stats import IntervalMethod
from ttmbench.types import GroupShape, MetricSpec


def score_file(path: Path, task: str | TaskFile | None, **settings: Any) -> dict[str, Any]:
    """The results document of `scored_file`, with its arguments and errors."""
    return scored_file(path, task, **settings)[0]


def scored_file(
    path: Path,
    task: str | TaskFile | None,
    *,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
) -> tuple[dict[str, Any], StoredScores]:
    """Computes every metric that is defined from stored scores.

    Args:
        path: the scores, in a format that `ttmbench.results.scores_file` knows.
        task: name or file of the task whose shape and size they have, or the task; None takes those of the file, and
            results call the task ``scores``.
        include_path: folders of further task files.
        logit_scale: factor on products of embeddings.
        limit: the scores are of the task's first groups only.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of the resampling.
        command: the command line, for the record.

    Returns:
        A results document, in which the metrics of the task come first; and the scores.

    Raises:
        UsageError: no such task, or a limit without one.
        DataError: the file is not what the task says; the message names the group.
    """
    registry = build_registry(include_path)
    if task is None:
        if limit is not None:
            raise UsageError("limit says that scores are of a task's first groups; name the task, or leave it out")
        stored = read_scores(path, None, logit_scale)
        spec = spec_of_scores(stored.scores[RAW][0].groups, metric_names(registry))
    else:
        spec = (find_task(registry, task) if isinstance(task, str) else task).spec
        stored = read_scores(path, spec.shape, logit_scale)
    document = score_stored(
        registry,
        stored,
        spec,
        name=path.stem,
        where=str(path),
        source={"kind": "stored_scores", "file": path.name, "format": stored.format},
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest(),
        config={
            "scores": path.name,
            "task": task if isinstance(task, str) else spec.task,
            "logit_scale": logit_scale,
            "limit": limit,
            "seed": seed,
            "bootstrap_iters": bootstrap_iters,
            "interval": interval,
        },
        command=command,
    )
    return document, stored


def metric_names(registry: Registry) -> list[str]:
    """Names of the metrics of score arrays."""
    return [name for name, (metric, _) in registry.metrics.items() if metric.scope in SCOPES["groups"]]


def spec_of_scores(array: np.ndarray, metrics: list[str]) -> TaskSpec:
    """The task of scores that are of none; DataError for a shape that no group has."""
    try:
        shape = GroupShape(*array.shape[1:])
    except ValueError as error:
        raise DataError(f"the scores have shape {list(array.shape)}: {error}") from None
    return TaskSpec(
        task="scores",
        version=0,
        source={"kind": "stored_scores"},
        group=GroupSpec(shape=(shape.images, shape.captions), n_groups=len(array)),
        metrics=metrics,
    )


def score_stored(
    registry: Registry,
    stored: StoredScores,
    spec: TaskSpec,
    *,
    name: str,
    where: str,
    source: dict[str, Any],
    fingerprint: str,
    config: dict[str, Any],
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Computes every metric of scores that are read.

    Args:
        registry: the metrics.
        stored: the scores.
        spec: the task that they are of.
        name: what results call the model.
        where: the scores, in messages.
        source: where they come from, for the record.
        fingerprint: digest of them.
        config: ``limit``, ``seed``, ``bootstrap_iters``, ``interval``, and what else the record should hold.
        command: the command line, for the record.

    Returns:
        A results document; the metrics of the task come first.

    Raises:
        DataError: the number of groups is not the task's.
    """
    started, clock = datetime.now().astimezone(), time.perf_counter()
    config = {**config, "limit": _real_limit(spec, config["limit"])}
    expected = spec if config["limit"] is None else _first_groups(spec, config["limit"])
    check_count(expected, len(stored.group_ids), where)
    metrics = _metrics_for(spec, [item for item, _ in registry.metrics.values()])
    summary = summarise(
        stored.scores, metrics, config["bootstrap_iters"], config["seed"], config["interval"], stored.clusters
    )
    outcome = TaskOutcome(
        spec=spec,
        metrics=metrics,
        groups=[],
        source=source,
        fingerprint=fingerprint,
        scores=stored.scores,
        summary=summary,
        records={},
        notes=_notes(spec, stored.scores[RAW][0].all_pairs is None, stored.format),
        seconds={"score": time.perf_counter() - clock},
        clusters=stored.clusters,
    )
    record = RunRecord(name, config, command, started)
    record.outcomes[spec.task] = outcome
    return record.document("done", clock, None)


def _metrics_for(spec: TaskSpec, registered: Sequence[MetricSpec]) -> list[MetricSpec]:
    by_name = {metric.name: metric for metric in registered}
    rest = [name for name in by_name if name not in spec.metrics]
    return [by_name[name] for name in (*spec.metrics, *rest) if by_name[name].scope in SCOPES[spec.kind]]


def _real_limit(spec: TaskSpec, limit: int | None) -> int | None:
    """The limit; None if it takes the whole task, so that a document with a limit is one of a part."""
    total = spec.group.n_groups
    return None if limit is None or (total is not None and limit >= total) else limit


def _first_groups(spec: TaskSpec, limit: int) -> TaskSpec:
    return spec.model_copy(update={"group": spec.group.model_copy(update={"n_groups": limit})})


def _notes(spec: TaskSpec, no_pairs: bool, file_format: str) -> list[str]:
    if no_pairs and (spec.is_global or file_format == "embeddings"):
        return ["global assignment: not computed, the file has no scores across groups (or too many images)"]
    return []
