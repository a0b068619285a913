"""From a file of stored scores to a results document: the numbers of a paper checked without its model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench.data.catalog import find_task
from ttmbench.data.checks import check_count
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.evaluator.record import RunRecord, TaskOutcome
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.results.labels import RAW
from ttmbench.results.scores_file import StoredScores, read_scores
from ttmbench.results.summary import summarise
from ttmbench.stats import IntervalMethod
from ttmbench.types import MetricSpec


def score_file(
    path: Path,
    task: str | TaskFile,
    *,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Computes every metric that is defined from stored scores.

    Args:
        path: the scores, in a format that `ttmbench.results.scores_file` knows.
        task: name or file of the task whose shape and size they have, or the task.
        include_path: folders of further task files.
        logit_scale: factor on products of embeddings.
        limit: the scores are of the task's first groups only.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of the resampling.
        command: the command line, for the record.

    Returns:
        A results document; the metrics of the task come first.

    Raises:
        UsageError: no such task.
        DataError: the file is not what the task says; the message names the group.
    """
    registry = build_registry(include_path)
    spec = (find_task(registry, task) if isinstance(task, str) else task).spec
    stored = read_scores(path, spec.shape, logit_scale)
    return score_stored(
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
    summary = summarise(stored.scores, metrics, config["bootstrap_iters"], config["seed"], config["interval"])
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
    )
    record = RunRecord(name, config, command, started)
    record.outcomes[spec.task] = outcome
    return record.document("done", clock, None)


def _metrics_for(spec: TaskSpec, registered: Sequence[MetricSpec]) -> list[MetricSpec]:
    by_name = {metric.name: metric for metric in registered}
    rest = [name for name in by_name if name not in spec.metrics]
    return [by_name[name] for name in (*spec.metrics, *rest)]


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
