"""From a task file to scored inputs: data read, prepared for the model and scored once, as every command needs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttmbench.cache.scores import ScoreStore
from ttmbench.cache.task import TaskStore
from ttmbench.config import RunConfig
from ttmbench.data.checks import check_count
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, TtmbenchError, UsageError, during
from ttmbench.evaluator.adapters import can_adapt, only_chooses
from ttmbench.plugins.registry import Registry
from ttmbench.protocols import Debiasable, DualEncoder, PreparedPairScorer, StoredFeatures
from ttmbench.scoring.batch_size import AtOnce
from ttmbench.scoring.debiasing import Likelihoods, likelihoods
from ttmbench.scoring.dual_encoder import check_finite
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.inputs import Prepared
from ttmbench.scoring.pairs import score_with_pairs
from ttmbench.scoring.prepare import prepare, stored
from ttmbench.scoring.prepared_pairs import score_streaming
from ttmbench.scoring.prepared_task import Stage
from ttmbench.scoring.refusals import settle_refusals
from ttmbench.types import Group, GroupShape, ImageRef, MetricSpec, Scores

DECODED = 64  # pictures held decoded at a time, while they are prepared


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
        from_store: what of the scores an earlier run kept: key and date of an entry, or blocks; None for nothing.
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
    from_store: dict[str, Any] | None = None


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
    with_stage: bool = False,
    run_store: ScoreStore | None = None,
    at_once: AtOnce | None = None,
) -> OpenTask:
    """Reads a task's data and scores it, or takes the scores that an earlier run kept.

    Args:
        registry: metrics and sources.
        config: the run.
        adapter: the model.
        task: the task.
        samples: ids of the groups to use; None for all.
        enlarge: also keep the images so many times as large, for augmentation.
        extra_metrics: to compute beside the task's own.
        with_parts: also keep log P(t|i) and log P(t) apart, of a model that has both, whatever its alpha.
        with_stage: the test-time stage follows, so the inputs are prepared even if the scores are there.
        run_store: where scores are kept; None to keep none.
        at_once: how much the model takes at a time; by default what the configuration says.

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
    at_once = at_once or AtOnce.for_run(config.batch_size, adapter, config.deterministic)
    seconds: dict[str, float] = {}

    def lap(step: str) -> None:
        nonlocal clock
        seconds[step], clock = time.perf_counter() - clock, time.perf_counter()

    def stage_of(prepared: Prepared) -> Stage:
        return Stage(adapter, prepared, at_once, spec.is_global, all_pairs)

    if isinstance(adapter, StoredFeatures) and isinstance(adapter, DualEncoder):
        prepared, fingerprint = _stored(adapter, config, spec)
        groups, source = _nameless_groups(len(prepared.rows.images), spec.shape), {"kind": "stored_features"}
        lap("load")
        features = stage_of(prepared)
        raw = features.score()
        lap("score")
        check_finite(raw.groups, groups)
        return OpenTask(spec, metrics, groups, source, fingerprint, features, raw, seconds)

    with during("load"):
        groups, source = load_data(registry, config, task, samples)
    lap("load")
    adapts = with_stage or (config.adapts and can_adapt(adapter))
    in_memory = isinstance(adapter, DualEncoder) or (config.adapts and can_adapt(adapter))
    prior = None if in_memory else _prior(adapter, with_parts)
    store = TaskStore(run_store, adapter, spec, groups, all_pairs, prior)
    # Preparing recognises the data too, so it comes first where it is needed in any case, or nothing is kept yet.
    late = in_memory and (adapts or not store.may_have)
    if store.on and not late:
        store.look_up()
        lap("look_up")
    stage: Stage | None = None
    parts: Likelihoods | None = None
    if in_memory and store.kept is None:
        with during("prepare"):
            prepared, _ = prepare(adapter, groups, DECODED, enlarge, store.data, store.pictures)
        lap("prepare")
        stage = stage_of(prepared)
    if late:
        store.look_up()
    with during("score"):
        if store.kept is not None:
            raw, parts = store.kept.raw, store.kept.parts
        elif stage is not None:
            raw = stage.score(store.blocks)
        else:
            raw, parts = _score_pairs(adapter, groups, at_once, all_pairs, prior, store)
        lap("score")
        raw, notes = settle_refusals(adapter, raw, groups)
        check_finite(raw.groups, groups)
    if raw.all_pairs is not None and not np.isfinite(raw.all_pairs).all():
        image = int(np.argmin(np.isfinite(raw.all_pairs).all(axis=1)))
        group_id = groups[image // spec.shape.images].group_id
        raise TtmbenchError(f"the model gave an image of group {group_id} a score that is not a finite number")
    from_store = store.keep(raw, parts, config.model_name)
    fingerprint = store.data.hexdigest()
    return OpenTask(spec, metrics, groups, source, fingerprint, stage, raw, seconds, parts, tuple(notes), from_store)


def _score_pairs(
    adapter: Any,
    groups: Sequence[Group],
    at_once: AtOnce,
    all_pairs: bool,
    prior: Debiasable | None,
    store: TaskStore,
) -> tuple[Scores, Likelihoods | None]:
    """Scores of a model that sees pairs, and the parts of which they were debiased; completes the fingerprint."""
    data, blocks = store.data, store.blocks
    if not isinstance(adapter, PreparedPairScorer):
        return score_with_pairs(adapter, groups, at_once, all_pairs, data, blocks)[0], None
    every = all_pairs or (prior is not None and prior.prior == "test_images")
    table, _ = score_streaming(adapter, groups, at_once, every, data, store.pictures, blocks)
    if prior is None:
        return table.scores(all_pairs), None
    parts = likelihoods(prior, groups, table, all_pairs)
    return parts.debiased(prior.alpha), parts


def _prior(adapter: Any, with_parts: bool) -> Debiasable | None:
    """Where log P(t) comes from; None if it is not taken off."""
    if not (isinstance(adapter, PreparedPairScorer) and isinstance(adapter, Debiasable)):
        return None
    return adapter if adapter.alpha != 0 or with_parts else None


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


def data_fingerprint(
    registry: Registry,
    config: RunConfig,
    adapter: Any,
    task: TaskFile,
    samples: set[str] | None,
    run_store: ScoreStore | None,
) -> str:
    """The fingerprint that `open_task` would find of the data as they are now, without a model at work.

    Pictures whose files were decoded before are recognised by the store, if there is one.

    Args:
        registry: sources.
        config: the run.
        adapter: the model; stored features are its data.
        task: the task.
        samples: ids of the groups to use; None for all.
        run_store: where digests of pictures are kept.

    Returns:
        sha256, hexadecimal.

    Raises:
        DataError: data out of reach, or not what the task file says.
    """
    if isinstance(adapter, StoredFeatures) and isinstance(adapter, DualEncoder):
        return _stored(adapter, config, task.spec)[1]
    pixels = None if run_store is None else run_store.pixels(task.spec.task)
    found = Fingerprint(load_data(registry, config, task, samples)[0], pixels)
    found.take_in_the_rest()
    if pixels is not None:
        pixels.flush()
    return found.hexdigest()


def load_data(
    registry: Registry, config: RunConfig, task: TaskFile, samples: set[str] | None
) -> tuple[list[Group], dict[str, Any]]:
    """The groups that a run uses of a task, and where they came from; DataError if there are none such."""
    if samples is None:
        loaded = load_task_data(registry, task, config.limit, config.offline, config.data_dir)
        return loaded.groups, loaded.source
    loaded = load_task_data(registry, task, None, config.offline, config.data_dir)
    kept = [group for group in loaded.groups if group.group_id in samples]
    absent = samples - {group.group_id for group in kept}
    if absent:
        raise DataError(f"task '{task.spec.task}' has no group {min(absent)} (--samples {config.samples})")
    return kept[: config.limit], loaded.source
