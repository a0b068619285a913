"""One task of a run: planned, scored, and on request adapted to in all the variants that the run asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttmbench._util.files import write_atomically
from ttmbench._util.redact import scrub_values, secrets_of
from ttmbench._version import __version__
from ttmbench.cache.scores import ImagesAlone
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DivergedError, TtmbenchError, UsageError, phase
from ttmbench.evaluator.adapters import model_notes
from ttmbench.evaluator.classification import run_classification
from ttmbench.evaluator.finetuned import finetuned, write_record
from ttmbench.evaluator.forced_choice import run_choice_task
from ttmbench.evaluator.outcome import AlsoOutcome, TaskOutcome
from ttmbench.evaluator.plan import RunContext, ScoredTask, TaskPlan, plan_task
from ttmbench.evaluator.retrieval import run_retrieval
from ttmbench.evaluator.score_task import score_task
from ttmbench.evaluator.settings import usual_rate
from ttmbench.evaluator.transfer_eval import Beside, Elsewhere, elsewhere_config
from ttmbench.results.breakdown import breakdowns
from ttmbench.results.deltas import differences
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, ORACLE, RAW, SIMPLE_MATCH, TTM, supervised_tracks
from ttmbench.results.summary import Summary, summarise
from ttmbench.results.tag_means import tag_means
from ttmbench.scoring.forced_choice.arrays import CHOICE
from ttmbench.scoring.notes import count_truncated, truncated_notes
from ttmbench.ttm.checkpoint import TaskCheckpoint
from ttmbench.ttm.variants import Adaptation, OnSeedDone, VariantResult
from ttmbench.types import GroupShape, MetricSpec, Scores

RANKED = {"retrieval": run_retrieval, "classification": run_classification}
"""Kinds of tasks that rank candidates instead of telling things apart inside groups."""


@dataclass(frozen=True)
class _Done:
    """A variant of the test-time stage that is over.

    Attributes:
        name: of its column.
        ran: what it gave.
        seconds: wall time.
    """

    name: str
    ran: VariantResult
    seconds: float

    @property
    def scores(self) -> dict[str, list[Scores]]:
        """Column -> score arrays; held-out groups have a column of their scores before training, too."""
        before = {} if self.ran.raw is None else {HOLDOUT_RAW: [self.ran.raw]}
        return {**before, self.name: self.ran.scores}

    @property
    def subsets(self) -> dict[str, list[int]]:
        """Column -> positions of the groups that its scores are of, where these are not all."""
        return {} if self.ran.held is None else {name: list(self.ran.held) for name in self.scores}


def run_task(context: RunContext, task: TaskFile, settings: TTMConfig, state: Path | None = None) -> TaskOutcome:
    """Scores a task, and adapts the model to it if the run asks for that; the adapter leaves as it came.

    Args:
        context: the run and its model.
        task: the task.
        settings: of the test-time stage, resolved for this model and task.
        state: folder for what a stopped run goes on from; None to keep nothing.

    Returns:
        Scores, numbers and records. If the test-time stage failed, those that were reached before, and the failure.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model gave no usable scores.
        UsageError: the model cannot be adapted to this task.
    """
    config = context.config
    _notes_of(context)  # those of a task that failed are not this one's
    _undecided(context)
    if task.spec.kind in RANKED:
        outcome = RANKED[task.spec.kind](context, task)
        outcome.notes.extend(_notes_of(context))
        _notify(context, task.spec.task, RAW, outcome.summary)
        return replace(outcome, undecided=_undecided(context))
    plan = plan_task(context, task, settings)
    spec, metrics = plan.spec, plan.metrics
    if plan.way == "choices":
        outcome = run_choice_task(plan, context)
        outcome.notes.extend(_notes_of(context))
        _notify(context, spec.task, CHOICE, outcome.summary)
        return outcome
    scored = scored_task(plan, context)
    _notify_scored(context, scored, {RAW: [scored.raw]})
    truncated = count_truncated(context.capabilities.truncating, scored.groups)
    notes = [*scored.notes, *_notes_of(context), *truncated_notes(truncated)]
    undecided = _undecided(context)
    done: list[_Done] = []
    also: dict[str, AlsoOutcome] = {}
    failure: Exception | None = None
    if plan.adapts:
        try:
            kept = TaskCheckpoint(state, scored.fingerprint, context.key)
            beside = _beside(scored, context, state)
            divided = _divided(scored, context, settings, state)
            for one in _variants(scored, context, settings, kept, beside, divided):
                done.append(one)
                _notify_scored(context, scored, one.scores)
                if one.name == TTM and beside is not None:
                    also = beside.outcomes(config.run_seeds)
        except Exception as error:
            failure = error
            if isinstance(error, DivergedError):
                error.usual = usual_rate(context.registry, config, spec)
    elif config.adapts and spec.shape.true_captions > 1:
        notes.append(
            f"{spec.shape.true_captions} captions are true for each image, and no way is defined to adapt a model to "
            "several, so there are raw and SimpleMatch numbers only"
        )
    elif config.adapts:
        notes.append(
            f"model {config.model} cannot be adapted (it has no matching_loss or pair_loss), so there are raw and "
            "SimpleMatch numbers only"
        )
    scores = {RAW: [scored.raw]} | {name: arrays for one in done for name, arrays in one.scores.items()}
    subsets = {name: held for one in done for name, held in one.subsets.items()}
    clusters = scored.clusters
    summary = summarise(scores, metrics, config.bootstrap_iters, config.seed, config.interval, clusters, subsets)
    resampling = config.bootstrap_iters, config.seed, config.interval
    means = tag_means(scored.groups, scores, metrics, subsets, spec.means, clusters, resampling)
    if plan.blind:
        notes.append(_blind_note(spec.shape, summary))
    return TaskOutcome(
        spec=spec,
        metrics=metrics,
        groups=scored.groups,
        source=scored.source,
        fingerprint=scored.fingerprint,
        scores=scores,
        summary=summary,
        records=_records(done) if not also else _with_differences(_records(done), scored, scores[TTM], config),
        notes=notes,
        seconds=scored.seconds | {one.name: one.seconds for one in done},
        subsets=subsets,
        breakdowns=breakdowns(scored.groups, scores, metrics, subsets, spec.means),
        tag_means=means,
        failure=failure,
        from_store=scored.from_store,
        clusters=clusters,
        truncated=truncated,
        undecided=undecided,
        also=also,
    )


def scored_task(plan: TaskPlan, context: RunContext) -> ScoredTask:
    """The task with its data and scores: scored now, or for an earlier part of the same run."""
    memory, adapter, can = context.memory, context.adapter, context.capabilities
    if memory is None or not plan.adapts or can.reporting is not None or can.bounding is not None:
        return score_task(plan, context)
    of = (context.key, plan.spec.task, adapter)
    if memory.scored is None or memory.of is None or memory.of[:2] != of[:2] or memory.of[2] is not adapter:
        memory.of = memory.scored = None  # before the next one is read: both may not fit
        scored = score_task(plan, context)
        memory.of, memory.scored = of, scored
    return memory.scored


def with_others(context: RunContext, others: Mapping[str, TaskFile]) -> RunContext:
    """The run with other tasks that each adapted model is measured on; the same without any."""
    if not others:
        return context
    images = None if context.cache is None else ImagesAlone(context.cache)
    as_it_is = replace(
        context, config=elsewhere_config(context.config), samples=None, folders={}, also=None, silent=True
    )

    def score(task: TaskFile, adapted: bool) -> TaskOutcome:
        return run_task(replace(as_it_is, cache=images) if adapted else as_it_is, task, TTMConfig())

    return replace(context, also=Elsewhere(others, score, context.config, context.key))


def adaptation(
    scored: ScoredTask, context: RunContext, settings: TTMConfig, metrics: Sequence[MetricSpec] | None = None
) -> Adaptation:
    """The test-time stage of a scored task, as the run configures it; ``metrics`` in place of the task's own."""
    assert scored.stage is not None, "only what was prepared as a whole can be adapted"
    return Adaptation(
        context.registry,
        scored.plan.spec,
        scored.stage,
        scored.raw,
        settings,
        context.config.ttm_preset,
        scored.plan.metrics if metrics is None else metrics,
        context.config.run_seeds,
        context.config.seed,
        None if scored.clusters is None else scored.clusters.groups,
    )


def one_seed(context: RunContext, seed: int) -> RunContext:
    """The run with one of its seeds alone; the audit compares seeds that are over, so it is the whole run's."""
    return replace(context, config=context.config.model_copy(update={"seeds": [seed], "audit_labels": False}))


def adapt_ahead(scored: ScoredTask, context: RunContext, settings: TTMConfig, state: Path) -> None:
    """Runs the test-time stage for who runs the task later, and leaves its checkpoints."""
    checkpoint = TaskCheckpoint(state, scored.fingerprint, context.key)
    for _ in _variants(scored, context, settings, checkpoint, _beside(scored, context, state)):
        pass


def _divided(scored: ScoredTask, context: RunContext, settings: TTMConfig, state: Path | None) -> frozenset[int]:
    """Has all seeds run ahead, each on one of several devices; gives those of the others."""
    if context.ahead is None or state is None or len(context.config.run_seeds) == 1:
        return frozenset()
    clock = time.perf_counter()
    others = context.ahead(
        "seed", scored.plan.spec.task, lambda unit: adapt_ahead(scored, one_seed(context, unit.part), settings, state)
    )
    scored.seconds["devices"] = time.perf_counter() - clock
    return frozenset(unit.part for unit in others)


def _variants(
    scored: ScoredTask,
    context: RunContext,
    settings: TTMConfig,
    checkpoint: TaskCheckpoint,
    beside: Beside | None,
    told: frozenset[int] = frozenset(),
) -> Iterator[_Done]:
    """Every variant of the test-time stage that the run asks for, in the order of the columns, as each is over.

    Plugins are told of new iterations, and of seeds in ``told`` that another process has run.
    """
    config, save = context.config, _saver(scored, context)
    stage = replace(adaptation(scored, context, settings), checkpoint=checkpoint, told=told, silent=context.silent)
    wanted: list[tuple[str, Callable[[], VariantResult]]] = []
    if config.simple_match:
        kept = None if config.ttm else save
        wanted.append((SIMPLE_MATCH, lambda: stage.simple_match(kept)))
    if config.ttm:
        ends, complete = _ends_of_seeds(save, beside), None if beside is None else beside.complete
        wanted.append((TTM, lambda: stage.ttm(audit=config.audit_labels, finished=ends, complete=complete)))
        wanted += [(name, lambda name=name: stage.control(name)) for name in config.ttm_controls]  # type: ignore[misc]
        if config.ttm_holdout is not None:
            share = config.ttm_holdout
            wanted.append((HOLDOUT, lambda: stage.holdout(share)))
    if config.oracle:
        wanted.append((ORACLE, stage.oracle))
    for name, variant in wanted:
        clock = time.perf_counter()
        with phase(name):
            ran = variant()
        yield _Done(name, ran, time.perf_counter() - clock)


def _beside(scored: ScoredTask, context: RunContext, state: Path | None) -> Beside | None:
    """The measurements on other tasks beside this one; None if there are none to make."""
    if context.also is None:
        return None
    found = context.also.beside(scored.plan.spec.task, scored.fingerprint, scored.raw, state)
    return found if found.others else None


def _ends_of_seeds(save: OnSeedDone | None, beside: Beside | None) -> OnSeedDone:
    """What is done with the adapted model of each seed: it is saved, and measured on other tasks."""

    def finished(seed: int, about: dict[str, Any]) -> None:
        if save is not None:
            save(seed, about)
        if beside is not None:
            beside.measure(seed)

    return finished


def _with_differences(
    records: dict[str, dict[str, Any]], scored: ScoredTask, adapted: Sequence[Scores], config: RunConfig
) -> dict[str, dict[str, Any]]:
    """Beside what adaptation does to other tasks stands what it does to this one, in the same form."""
    metrics, raw, clusters = scored.plan.metrics, scored.raw, scored.clusters
    gains = differences(metrics, raw, adapted, clusters, config.bootstrap_iters, config.seed)
    return {**records, "ttm": {**records["ttm"], "differences": gains}}


def _records(done: Sequence[_Done]) -> dict[str, dict[str, Any]]:
    """The document's records of the variants: controls and held-out groups stand in TTM's."""
    records: dict[str, dict[str, Any]] = {}
    for one in done:
        if one.name in _RECORD_OF:
            records[_RECORD_OF[one.name]] = dict(one.ran.record)
        elif one.name == HOLDOUT:
            records["ttm"]["holdout"] = one.ran.record
        else:
            records["ttm"].setdefault("controls", {})[one.name] = one.ran.record
    return records


_RECORD_OF = {SIMPLE_MATCH: "simple_match", TTM: "ttm", ORACLE: "oracle"}


def _notes_of(context: RunContext) -> list[str]:
    reporting = context.capabilities.reporting
    return [*model_notes(context.adapter), *(reporting.take_notes() if reporting is not None else [])]


def _undecided(context: RunContext) -> dict[str, int] | None:
    """Pairs that the model left open since it was last asked; None where it left none, or never does."""
    bounding = context.capabilities.bounding
    open_pairs, of = bounding.take_undecided() if bounding is not None else (0, 0)
    return {"pairs": open_pairs, "of": of} if open_pairs else None


def _saver(scored: ScoredTask, context: RunContext) -> OnSeedDone | None:
    """What writes the adapted model of a seed; None if none is to be kept."""
    config, spec = context.config, scored.plan.spec
    if not context.folders:
        return None
    finetuning = finetuned(context.adapter)
    savable = context.capabilities.savable
    if savable is None:
        raise UsageError(f"model {config.model} cannot be saved (it has no save_pretrained); leave --save_adapted out")

    def save(seed: int, about: dict[str, Any]) -> None:
        folder = context.folders[spec.task, seed]
        card = {
            "model": config.model_name,
            "task": spec.task,
            "task_version": spec.version,
            "data_sha256": scored.fingerprint,
            "seed": seed,
            "ttmbench": __version__,
            **about,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            savable.save_pretrained(folder)
            if finetuning is not None:
                write_record(folder, finetuning)  # adapted or not, the weights stay those of a finetuned model
        except OSError as error:
            raise TtmbenchError(f"the adapted model cannot be written to {folder}: {error.strerror or error}") from None
        text = json.dumps(scrub_values(card, secrets_of(config.model_args)), indent=2) + "\n"
        write_atomically(folder / "ttmbench.json", lambda path: path.write_text(text, encoding="utf-8"))

    return save


def _notify_scored(context: RunContext, scored: ScoredTask, columns: dict[str, list[Scores]]) -> None:
    if context.silent or not context.registry.plugins.listens("ttmbench_task_scored"):
        return
    for name, scores in columns.items():
        summary = summarise({name: scores}, scored.plan.metrics, 0, context.config.seed)
        _notify(context, scored.plan.spec.task, name, summary)


def _notify(context: RunContext, task: str, name: str, summary: Summary) -> None:
    if context.silent:
        return
    tracks = supervised_tracks(summary.tracks) if context.supervised else summary.tracks
    context.registry.plugins.notify(
        "ttmbench_task_scored", task=task, filter=name, results=summary.results, tracks=tracks
    )


def _blind_note(shape: GroupShape, summary: Summary) -> str:
    """What the numbers of a scorer that never sees the image say of a task: how much its captions alone give away.

    With one image per group, a blind scorer's number beside chance is what language alone gives. With several, every
    image has the same scores: only one of them can prefer its own caption, and images and matchings tie.
    """
    if shape.images > 1:
        return (
            f"the scorer never sees an image: in {shape} groups all images get equal scores, so text, image and group "
            "score and group match are 0 by construction; a task of this shape cannot be solved by its captions alone"
        )
    value, chance = summary.results.get(f"text_score,{RAW}"), summary.chance.get("text_score")
    if value is None or chance is None:
        value, chance = summary.results.get(f"group_match,{RAW}"), summary.chance.get("group_match")
    if value is None or chance is None:
        return "the scorer never sees an image"
    return (
        f"the scorer never sees an image, and is right in {100 * value:.2f} % of the groups, "
        f"{100 * (value - chance):+.2f} points from chance: so much do the captions alone give away"
    )
