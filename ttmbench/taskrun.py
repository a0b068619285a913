"""One task of a run: load, score, and on request SimpleMatch's overfitting step and TTM."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ttmbench.errors import DataError
from ttmbench.finetune import restore, snapshot
from ttmbench.models import can_adapt
from ttmbench.protocols import DualEncoder
from ttmbench.record import TaskOutcome
from ttmbench.registry import Registry
from ttmbench.runconfig import RunConfig
from ttmbench.scoring import check_finite, prepare, score_with_pairs
from ttmbench.summary import RAW, SIMPLE_MATCH, TTM, metric_mean, summarise
from ttmbench.taskfile import TaskFile, TaskSpec
from ttmbench.ttm import Stage, Step, adapt, overfit
from ttmbench.ttmconfig import DEFAULT_LEARNING_RATE, TTMConfig
from ttmbench.types import Group, IterationRecord, MetricSpec, Scores


def run_task(
    registry: Registry,
    config: RunConfig,
    adapter: Any,
    task: TaskFile,
    settings: TTMConfig,
    samples: set[str] | None,
) -> TaskOutcome:
    """Scores a task, and adapts the model to it if the run asks for that; the adapter leaves as it came.

    Args:
        registry: metrics, sources and hooks.
        config: the run.
        adapter: the model.
        task: the task.
        settings: of the test-time stage, resolved for this model and task.
        samples: ids of the groups to use; None for all.

    Returns:
        Scores, numbers and records.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model gave no usable scores, or training failed.
    """
    spec, clock = task.spec, time.perf_counter()
    metrics = [registry.metric(name) for name in spec.metrics]
    seconds: dict[str, float] = {}
    groups = _load(registry, config, task, samples)
    seconds["load"] = time.perf_counter() - clock
    all_pairs = spec.is_global or any(metric.scope == "global" for metric in metrics)
    notes: list[str] = []
    stage: Stage | None = None
    clock = time.perf_counter()
    if isinstance(adapter, DualEncoder):
        prepared, fingerprint = prepare(adapter, groups, config.batch_size)
        seconds["prepare"], clock = time.perf_counter() - clock, time.perf_counter()
        stage = Stage(adapter, prepared, config.batch_size, spec.is_global, all_pairs)  # type: ignore[arg-type]
        raw = stage.score()
    else:
        raw, fingerprint = score_with_pairs(adapter, groups, config.batch_size, all_pairs)
    seconds["score"] = time.perf_counter() - clock
    check_finite(raw.groups, groups)
    scores: dict[str, list[Scores]] = {RAW: [raw]}
    _notify_scored(registry, config, spec, metrics, RAW, scores)
    ttm: dict[str, Any] | None = None
    simple: dict[str, Any] | None = None
    if (config.ttm or config.simple_match) and not can_adapt(adapter):
        notes.append(
            f"model {config.model} cannot be adapted (it has no matching_loss), so there are raw and SimpleMatch "
            "numbers only"
        )
    elif stage is not None:
        if config.simple_match:
            clock = time.perf_counter()
            simple, scores[SIMPLE_MATCH] = _run_simple_match(config, stage, raw, settings)
            seconds[SIMPLE_MATCH] = time.perf_counter() - clock
            _notify_scored(registry, config, spec, metrics, SIMPLE_MATCH, scores)
        if config.ttm:
            clock = time.perf_counter()
            ttm, scores[TTM] = _run_ttm(registry, config, spec, stage, raw, settings, metrics)
            seconds[TTM] = time.perf_counter() - clock
            _notify_scored(registry, config, spec, metrics, TTM, scores)
    summary = summarise(scores, metrics, config.bootstrap_iters, config.seed)
    return TaskOutcome(spec, metrics, groups, spec.source, fingerprint, scores, summary, ttm, simple, notes, seconds)


def _run_ttm(
    registry: Registry,
    config: RunConfig,
    spec: TaskSpec,
    stage: Stage,
    raw: Scores,
    settings: TTMConfig,
    metrics: Sequence[MetricSpec],
) -> tuple[dict[str, Any], list[Scores]]:
    """TTM for every seed: the record for the results document, and the last iteration's scores of each seed."""
    schedule = registry.schedule(settings.schedule)
    rate = settings.lr or DEFAULT_LEARNING_RATE
    final: list[Scores] = []
    iterations: list[dict[str, Any]] = []
    before = snapshot(stage.adapter)
    for seed in config.run_seeds:
        try:
            steps = adapt(stage, raw, config=settings, schedule=schedule, learning_rate=rate, seed=seed)
            for step in steps:
                scores = step.scores
                record = _record_of(step, seed, raw, spec, metrics)
                registry.plugins.notify("ttmbench_iteration_finished", task=spec.task, record=record)
                iterations.append(_iteration_dict(record))
        finally:
            restore(stage.adapter, before)
        final.append(scores)
    hyperparameters = {**settings.model_dump(mode="json"), "lr": rate}
    notes = [] if settings.lr else [f"no learning rate is known for this model and task; {rate} is the default"]
    return {
        "hyperparameters": hyperparameters,
        "preset": config.ttm_preset,
        "variant": spec.matching,
        "seeds": config.run_seeds,
        "reported": "last iteration",
        "notes": notes,
        "iterations": iterations,
    }, final


def _run_simple_match(
    config: RunConfig, stage: Stage, raw: Scores, settings: TTMConfig
) -> tuple[dict[str, Any], list[Scores]]:
    """SimpleMatch's overfitting step for every seed: its record, and the scores that each seed ends with."""
    rate = settings.lr or DEFAULT_LEARNING_RATE
    final: list[Scores] = []
    restarts: list[int] = []
    before = snapshot(stage.adapter)
    for seed in config.run_seeds:
        try:
            steps = list(overfit(stage, raw, config=settings, learning_rate=rate, seed=seed))
        finally:
            restore(stage.adapter, before)
        final.append(steps[-1].scores)
        restarts.append(len(steps))
    hyperparameters = {**settings.model_dump(mode="json"), "lr": rate}
    return {"hyperparameters": hyperparameters, "seeds": config.run_seeds, "restarts": restarts}, final


def _record_of(step: Step, seed: int, raw: Scores, spec: TaskSpec, metrics: Sequence[MetricSpec]) -> IterationRecord:
    """The only place where TTM's choices meet the labels: for the report."""
    images = raw.groups.shape[1]
    truth = raw.truth[:, None] if spec.is_global else np.broadcast_to(np.arange(images), (len(raw.groups), images))
    right = (step.captions == truth).all(axis=1)
    count = int(step.selected.sum())
    return IterationRecord(
        seed=seed,
        iteration=step.iteration,
        threshold=step.threshold,
        selected=count,
        candidates=len(step.selected),
        coverage=count / len(step.selected),
        tied=int(step.tie.sum()),
        pseudo_label_accuracy=int(right[step.selected].sum()) / count if count else None,
        loss=step.loss,
        learning_rate=step.learning_rate,
        metrics={metric.name: metric_mean(metric, step.scores) for metric in metrics},
        seconds=step.seconds,
    )


def _iteration_dict(record: IterationRecord) -> dict[str, Any]:
    return {**vars(record), "loss": list(record.loss), "metrics": dict(record.metrics)}


def _load(registry: Registry, config: RunConfig, task: TaskFile, samples: set[str] | None) -> list[Group]:
    if samples is None:
        return registry.load_groups(task, config.limit, config.offline)
    groups = registry.load_groups(task, None, config.offline)
    kept = [group for group in groups if group.group_id in samples]
    absent = samples - {group.group_id for group in kept}
    if absent:
        raise DataError(f"task '{task.spec.task}' has no group {min(absent)} (--samples {config.samples})")
    return kept[: config.limit]


def _notify_scored(
    registry: Registry,
    config: RunConfig,
    spec: TaskSpec,
    metrics: Sequence[MetricSpec],
    name: str,
    scores: Mapping[str, list[Scores]],
) -> None:
    if not registry.plugins.listens("ttmbench_task_scored"):
        return
    numbers = summarise({name: scores[name]}, metrics, 0, config.seed).results
    registry.plugins.notify("ttmbench_task_scored", task=spec.task, filter=name, results=numbers)
