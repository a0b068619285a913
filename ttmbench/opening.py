"""From a task file to scored inputs: data read, prepared for the model and scored once, as every command needs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttmbench.checks import check_count
from ttmbench.debiasing import Likelihoods, likelihoods
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.models import can_adapt, only_chooses
from ttmbench.pairscoring import score_streaming
from ttmbench.protocols import Debiasable, DualEncoder, PreparedPairScorer, StoredFeatures
from ttmbench.registry import Registry
from ttmbench.runconfig import RunConfig
from ttmbench.scoring import Prepared, check_finite, prepare, score_with_pairs, stored
from ttmbench.stage import Stage
from ttmbench.taskfile import TaskFile, TaskSpec
from ttmbench.types import Group, GroupShape, ImageRef, MetricSpec, Scores
from ttmbench.undefined import settle_refusals


@dataclass(frozen=True)
class OpenTask:
    """A task with its data and the model's scores.

    Attributes:
        spec: the task.
        metrics: that it asks for.
        groups: in the order of the scores.
        source: where the data came from.
        fingerprint: digest of decoded pixels and captions, or of stored features.
        stage: what the test-time stage works on; None for a model that scores pair by pair, unless the run adapts it.
        raw: scores of the model as it is.
        seconds: step -> wall time.
        parts: of scores that were debiased.
        notes: what a reader should know of the scores.
    """

    spec: TaskSpec
    metrics: list[MetricSpec]
    groups: list[Group]
    source: dict[str, Any]
    fingerprint: str
    stage: Stage | None
    raw: Scores
    seconds: dict[str, float]
    parts: Likelihoods | None = None
    notes: tuple[str, ...] = ()


def open_task(
    registry: Registry,
    config: RunConfig,
    adapter: Any,
    task: TaskFile,
    *,
    samples: set[str] | None = None,
    enlarge: float | None = None,
    extra_metrics: Sequence[str] = (),
    with_parts: bool = False,
) -> OpenTask:
    """Reads a task's data and scores it.

    Args:
        registry: metrics and sources.
        config: the run.
        adapter: the model.
        task: the task.
        samples: ids of the groups to use; None for all.
        enlarge: also keep the images so many times as large, for augmentation.
        extra_metrics: to compute beside the task's own.
        with_parts: also keep log P(t|i) and log P(t) apart, of a model that has both, whatever its alpha.

    Returns:
        Data and scores.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model gave no usable scores.
        UsageError: the model has no scores.
    """
    if only_chooses(adapter):
        raise UsageError(f"model {config.model} answers in words and has no scores; only `run` can evaluate it")
    spec, clock = task.spec, time.perf_counter()
    metrics = [registry.metric(name) for name in dict.fromkeys([*spec.metrics, *extra_metrics])]
    all_pairs = spec.is_global or any(metric.scope == "global" for metric in metrics)
    seconds: dict[str, float] = {}

    def lap(step: str) -> None:
        nonlocal clock
        seconds[step], clock = time.perf_counter() - clock, time.perf_counter()

    def stage_of(prepared: Prepared) -> Stage:
        return Stage(adapter, prepared, config.batch_size, spec.is_global, all_pairs)

    stage: Stage | None = None
    parts: Likelihoods | None = None
    if isinstance(adapter, StoredFeatures) and isinstance(adapter, DualEncoder):
        prepared, fingerprint = _stored(adapter, config, spec)
        groups, source = _nameless_groups(len(prepared.rows.images), spec.shape), {"kind": "stored_features"}
        lap("load")
        stage = stage_of(prepared)
    else:
        groups, source = load_data(registry, config, task, samples)
        lap("load")
        if isinstance(adapter, DualEncoder) or (config.adapts and can_adapt(adapter)):
            prepared, fingerprint = prepare(adapter, groups, config.batch_size, enlarge)
            lap("prepare")
            stage = stage_of(prepared)
    if stage is not None:
        raw = stage.score()
    elif isinstance(adapter, PreparedPairScorer):
        prior: Debiasable | None = adapter if isinstance(adapter, Debiasable) else None
        if prior is not None and prior.alpha == 0 and not with_parts:
            prior = None
        every = all_pairs or (prior is not None and prior.prior == "test_images")
        table, fingerprint = score_streaming(adapter, groups, config.batch_size, every)
        raw = table.scores(all_pairs)
        if prior is not None:
            parts = likelihoods(prior, groups, table, all_pairs)
            raw = parts.debiased(prior.alpha)
    else:
        raw, fingerprint = score_with_pairs(adapter, groups, config.batch_size, all_pairs)
    lap("score")
    raw, notes = settle_refusals(adapter, raw, groups)
    check_finite(raw.groups, groups)
    if raw.all_pairs is not None and not np.isfinite(raw.all_pairs).all():
        image = int(np.argmin(np.isfinite(raw.all_pairs).all(axis=1)))
        group_id = groups[image // spec.shape.images].group_id
        raise TtmbenchError(f"the model gave an image of group {group_id} a score that is not a finite number")
    return OpenTask(spec, metrics, groups, source, fingerprint, stage, raw, seconds, parts, tuple(notes))


def _stored(adapter: StoredFeatures, config: RunConfig, spec: TaskSpec) -> tuple[Prepared, str]:
    if config.samples is not None:
        raise UsageError("--samples names groups by id, and stored features have none; use --limit")
    prepared, fingerprint = stored(adapter, spec.shape, config.limit)
    found = len(prepared.rows.images)
    if config.limit is None or found < config.limit:
        check_count(spec, found, "the file of features")
    return prepared, fingerprint


def _nameless_groups(count: int, shape: GroupShape) -> list[Group]:
    """Groups of which only the features are at hand: they go by number."""

    def no_picture() -> Any:
        raise DataError("the model reads stored features; there is no picture to open")

    return [
        Group(
            group_id=str(group),
            images=tuple(ImageRef(f"{group}/image {index}", no_picture) for index in range(shape.images)),
            captions=tuple(f"{group}/caption {index}" for index in range(shape.captions)),
        )
        for group in range(count)
    ]


def load_data(
    registry: Registry, config: RunConfig, task: TaskFile, samples: set[str] | None
) -> tuple[list[Group], dict[str, Any]]:
    """The groups that a run uses of a task, and where they came from; DataError if there are none such."""
    if samples is None:
        loaded = registry.load(task, config.limit, config.offline, config.data_dir)
        return loaded.groups, loaded.source
    loaded = registry.load(task, None, config.offline, config.data_dir)
    kept = [group for group in loaded.groups if group.group_id in samples]
    absent = samples - {group.group_id for group in kept}
    if absent:
        raise DataError(f"task '{task.spec.task}' has no group {min(absent)} (--samples {config.samples})")
    return kept[: config.limit], loaded.source
