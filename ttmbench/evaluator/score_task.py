"""From the plan of a task to its raw scores: data read, prepared for the model, scored once in one of three ways."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ttmbench._util.option_values import groups_of
from ttmbench.cache.scores import ScoreCache, TaskCache
from ttmbench.config import RunConfig
from ttmbench.data.checks import check_count
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError, phase
from ttmbench.evaluator.plan import RunContext, ScoredTask, TaskPlan, way_of
from ttmbench.evaluator.stored_pool import stored_pool
from ttmbench.plugins.registry import Registry
from ttmbench.results.clusters import clusters_of
from ttmbench.scoring.batches import BlockStore, Share
from ttmbench.scoring.capabilities import Capabilities, Trained
from ttmbench.scoring.data_identity import DataNow, groups_digest
from ttmbench.scoring.debiasing import Likelihoods, likelihoods
from ttmbench.scoring.dual_encoder import Features, Side, caption_pairs, encode_side, encode_tokens, score_features
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.image_rows import DECODED, ImageRows
from ttmbench.scoring.inputs import Prepared, distinct_captions, rows_of
from ttmbench.scoring.notes import refusal_notes, usable_scores
from ttmbench.scoring.pairs import PairTable, score_task_pairs
from ttmbench.scoring.prepare import PreparedTask, prepare, stored
from ttmbench.types import Group, GroupShape, ImageRef, Scores

if TYPE_CHECKING:
    from ttmbench.evaluator.unit import Unit


@dataclass(frozen=True)
class _Raw:
    """What a way of scoring gives: scores, the prepared inputs if it made any, and the parts of debiased scores."""

    scores: Scores
    stage: PreparedTask | None = None
    parts: Likelihoods | None = None


@dataclass
class _Laps:
    """Wall time of one step after the other."""

    seconds: dict[str, float] = field(default_factory=dict)
    clock: float = field(default_factory=time.perf_counter)

    def __call__(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step], self.clock = now - self.clock, now

    def waited(self, step: str, seconds: float) -> None:
        """Counts a part of the step that is under way as one of its own."""
        self.seconds[step] = seconds
        self.clock += seconds


@dataclass(frozen=True)
class _Data:
    """The groups of a task, where they came from, what the cache knows of them; or features with their fingerprint."""

    groups: list[Group]
    source: dict[str, Any]
    cache: TaskCache
    laps: _Laps
    features: Prepared | None = None
    fingerprint: str | None = None


def score_task(plan: TaskPlan, context: RunContext) -> ScoredTask:
    """Reads a task's data and scores it, or takes the scores that an earlier run kept.

    Args:
        plan: the task.
        context: model, configuration and cache.

    Returns:
        Data and scores.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model gave no usable scores.
        UsageError: the model has no scores.
    """
    if plan.way == "choices":
        raise UsageError(f"model {context.config.model} answers in words and has no scores; only `run` can evaluate it")
    with phase("load"):
        data = _load(plan, context)
    found = _SCORE[plan.way](plan, data, context)
    data.laps("score")
    with phase("score"):
        raw = usable_scores(context.capabilities.may_refuse, found.scores, data.groups)
        notes = refusal_notes(found.scores, data.groups)
        raw = _with_caption_pairs(raw, plan, data, context)
    return ScoredTask(
        plan=plan,
        groups=data.groups,
        source=data.source,
        from_store=data.cache.keep(found.parts or raw, context.config.model_name),
        fingerprint=data.fingerprint or data.cache.data.hexdigest(),
        stage=found.stage,
        raw=raw,
        seconds=data.laps.seconds,
        parts=found.parts,
        notes=tuple(notes),
        clusters=None if data.features is not None else clusters_of(data.groups, data.cache.data.of),
    )


def _load(plan: TaskPlan, context: RunContext) -> _Data:
    """The groups of a task; those of stored features are the file's rows, of which the cache keeps nothing."""
    laps, features, fingerprint, kept_in = _Laps(), None, None, context.cache
    if plan.way == "stored_features":
        features, fingerprint = _stored(context.capabilities, context.config, plan.spec)
        groups = _nameless_groups(len(features.rows.images), plan.spec.shape)
        source, kept_in = {"kind": "stored_features"}, None
    else:
        groups, source = load_data(context.registry, context.config, plan.task, context.samples)
    laps("load")
    cache = TaskCache(kept_in, context.capabilities, plan.spec, groups, plan.all_pairs, plan.prior)
    return _Data(groups, source, cache, laps, features, fingerprint)


def _score_stored_features(plan: TaskPlan, data: _Data, context: RunContext) -> _Raw:
    """Features from a file: nothing is left to prepare."""
    assert data.features is not None, "features are loaded in place of groups"
    stage = _stage(plan, context, data.features)
    with phase("score"):
        return _Raw(stage.score(), stage)


def _score_prepared(plan: TaskPlan, data: _Data, context: RunContext) -> _Raw:
    """Every input prepared once: held in memory where the test-time stage takes them, else encoded and dropped."""
    if not plan.needs_inputs:
        return _score_streamed(plan, data, context)
    cache = data.cache
    stage: PreparedTask | None = None
    with phase("prepare"):  # it recognises the data too, so it comes before the look into the cache
        adapter = context.capabilities.preparing
        assert adapter is not None, "the plan says so"
        prepared, _ = prepare(adapter, data.groups, DECODED, plan.enlarge, cache.data, cache.prepared)
    data.laps("prepare")
    stage = _stage(plan, context, prepared)
    cache.look_up()
    with phase("score"):
        if cache.kept is not None:
            return _raw(cache.kept, plan, stage)
        return _Raw(stage.score(cache.blocks), stage)


def _score_streamed(plan: TaskPlan, data: _Data, context: RunContext) -> _Raw:
    """By a dual encoder that is not adapted: images are prepared ahead of it, encoded in batches, and dropped."""
    cache, adapter, batch_sizer = data.cache, context.capabilities.dual_encoder, context.batch_sizer
    assert adapter is not None, "pair scorers are not streamed so"
    recognised = cache.may_have  # encoding opens every image in any case, so nothing is looked at before without need
    if recognised:
        _look_up(data)
    with phase("score"):
        if cache.kept is None:
            images = ImageRows.of(adapter, data.groups, cache.data, cache.prepared)
            encoded = encode_side(adapter, "images", images.parts, len(images), batch_sizer, cache.image_blocks)
            data.laps.waited("prepare", images.seconds)
            if not recognised:
                cache.look_up()
        if cache.kept is not None:
            return _raw(cache.kept, plan)
        rows, tokens = rows_of(data.groups), adapter.prepare_captions(distinct_captions(data.groups))
        captions = Side(encode_tokens(adapter, tokens, batch_sizer, cache.blocks), rows.captions)
        return _Raw(score_features(adapter, Features(Side(encoded, rows.images), captions), plan.all_pairs))


def _score_pairs(plan: TaskPlan, data: _Data, context: RunContext) -> _Raw:
    """Pair by pair, each image opened when its pairs come; log P(t) is taken off if the model has one."""
    cache = data.cache
    _look_up(data)
    with phase("score"):
        if cache.kept is not None:
            return _raw(cache.kept, plan)
        blocks = cache.blocks
        if context.ahead is not None and blocks is not None:
            cache.note_blocks()

            def score(unit: Unit) -> None:
                _pairs(plan, data, context, Share(blocks, unit.part, unit.cell.shards))

            context.ahead("groups", plan.spec.task, score)
        table = _pairs(plan, data, context, blocks)
        if plan.prior is None:
            return _Raw(table.scores(plan.all_pairs))
        return _raw(likelihoods(plan.prior, data.groups, table, plan.all_pairs), plan)


def _raw(scores: Scores | Likelihoods, plan: TaskPlan, stage: PreparedTask | None = None) -> _Raw:
    """Raw scores, or debiased ones with their parts."""
    if isinstance(scores, Scores):
        return _Raw(scores, stage)
    assert plan.prior is not None, "log P(t) is taken off these"
    return _Raw(scores.debiased(plan.prior.alpha), stage, scores)


def _pairs(plan: TaskPlan, data: _Data, context: RunContext, blocks: BlockStore | None) -> PairTable:
    """What a model gives pairs, as far as they are of these blocks."""
    can, sizer, cache = context.capabilities, context.batch_sizer, data.cache
    every = plan.all_pairs or (plan.prior is not None and plan.prior.prior == "test_images")
    return score_task_pairs(can, data.groups, sizer, every, cache.data, cache.prepared, blocks)


def score_share(plan: TaskPlan, context: RunContext, part: int, of: int) -> None:
    """Scores a part of the pairs of a task, and leaves it in the cache for who scores the task.

    Args:
        plan: the task, which is scored pair by pair.
        context: model, configuration and cache.
        part: which part, from 0.
        of: how many there are.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model did not return one score a pair.
    """
    with phase("load"):
        data = _load(plan, context)
    data.cache.look_up()
    if data.cache.kept is None and data.cache.blocks is not None:
        with phase("score"):
            _pairs(plan, data, context, Share(data.cache.blocks, part, of))


_SCORE: dict[str, Callable[[TaskPlan, _Data, RunContext], _Raw]] = {
    "stored_features": _score_stored_features,
    "prepared": _score_prepared,
    "pairs": _score_pairs,
}


def _look_up(data: _Data) -> None:
    if data.cache.on:
        data.cache.look_up()
        data.laps("look_up")


def _stage(plan: TaskPlan, context: RunContext, prepared: Prepared) -> PreparedTask:
    adapter = cast(Trained, context.adapter)  # features of others are only scored
    return PreparedTask(adapter, prepared, context.batch_sizer, plan.spec.is_global, plan.all_pairs)


def _with_caption_pairs(raw: Scores, plan: TaskPlan, data: _Data, context: RunContext) -> Scores:
    """The scores, with how alike captions are where a metric asks for it and the model can tell."""
    adapter = context.capabilities.dual_encoder
    if not any(metric.scope == "captions" for metric in plan.metrics) or adapter is None:
        return raw
    stored = None if data.features is None else data.features.captions
    return replace(raw, caption_pairs=caption_pairs(adapter, data.groups, context.batch_sizer, stored))


def _stored(model: Capabilities, config: RunConfig, spec: TaskSpec) -> tuple[Prepared, str]:
    if config.samples is not None:
        raise UsageError("--samples names groups by id, and stored features have none; use --limit")
    limit = groups_of(config.limit, spec.group.n_groups)
    if limit is None and config.limit is not None:
        raise UsageError(f"--limit {config.limit}: task '{spec.task}' states no number of groups to take a share of")
    assert model.stored_features is not None, "the plan says so"
    prepared, fingerprint = stored(model.stored_features, spec.shape, limit)
    found = len(prepared.rows.images)
    if limit is None or found < limit:
        check_count(spec, found, "the file of features")
    return prepared, fingerprint


def _nameless_groups(count: int, shape: GroupShape) -> list[Group]:
    """Groups of which only the features are at hand: they go by number."""

    def no_image() -> Any:
        raise DataError("the model reads stored features; there is no image to open")

    return [
        Group(
            group_id=str(group),
            images=tuple(ImageRef(f"{group}/image {index}", no_image) for index in range(shape.images)),
            captions=tuple(f"{group}/caption {index}" for index in range(shape.captions)),
        )
        for group in range(count)
    ]


def data_fingerprint(
    registry: Registry,
    config: RunConfig,
    model: Capabilities,
    task: TaskFile,
    samples: set[str] | None,
    run_cache: ScoreCache | None,
) -> DataNow:
    """What `score_task` would find of the data as they are now, without a model at work.

    Images whose files were decoded before are recognised by the cache, if there is one.

    Args:
        registry: sources.
        config: the run.
        model: the model; stored features are its data.
        task: the task.
        samples: ids of the groups to use; None for all.
        run_cache: where digests of images are kept.

    Returns:
        Digests of the data.

    Raises:
        DataError: data out of reach, or not what the task file says.
    """
    if model.stored_features is not None and task.spec.kind != "groups":
        limit = groups_of(config.limit, task.spec.group.n_groups)
        return DataNow(stored_pool(model.stored_features, task.spec, limit)[2])
    if way_of(model) == "stored_features":
        return DataNow(_stored(model, config, task.spec)[1])
    pixels = None if run_cache is None else run_cache.pixels(task.spec.task)
    groups = load_data(registry, config, task, samples)[0]
    found = Fingerprint(groups, pixels)
    found.add_remaining()
    if pixels is not None:
        pixels.flush()
    return DataNow(found.hexdigest(), groups_digest(groups))


def load_data(
    registry: Registry, config: RunConfig, task: TaskFile, samples: set[str] | None
) -> tuple[list[Group], dict[str, Any]]:
    """The groups that a run uses of a task, and where they came from; DataError if there are none such."""
    if samples is None:
        limit = groups_of(config.limit, task.spec.group.n_groups)
        loaded = load_task_data(registry, task, limit, config.offline, config.data_dir)
        return loaded.groups[: groups_of(config.limit, len(loaded.groups)) if limit is None else limit], loaded.source
    loaded = load_task_data(registry, task, None, config.offline, config.data_dir)
    kept = [group for group in loaded.groups if group.group_id in samples]
    absent = samples - {group.group_id for group in kept}
    if absent:
        raise DataError(f"task '{task.spec.task}' has no group {min(absent)} (--samples {config.samples})")
    return kept[: groups_of(config.limit, len(kept))], loaded.source
