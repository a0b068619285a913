"""One task of a run: planned, scored, and on request adapted to in all the variants that the run asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ttmbench._util.files import write_atomically
from ttmbench._util.redact import scrub_values, secrets_of
from ttmbench._version import __version__
from ttmbench.cache.scores import ScoreCache
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DivergedError, TtmbenchError, UsageError, phase
from ttmbench.evaluator.adapters import finetuned, model_notes, write_record
from ttmbench.evaluator.forced_choice import run_choice_task
from ttmbench.evaluator.plan import Run, ScoredTask, TaskPlan, plan_task
from ttmbench.evaluator.ranking_task import run_ranking
from ttmbench.evaluator.score_task import score_task
from ttmbench.evaluator.settings import usual_rate
from ttmbench.evaluator.task_result import Scored, TaskResult, scored_result
from ttmbench.evaluator.transfer_eval import Beside, Elsewhere, elsewhere_config
from ttmbench.results.breakdown import breakdowns
from ttmbench.results.labels import CHOICE, HOLDOUT, ORACLE, RAW, SIMPLE_MATCH, TTM, supervised_tracks
from ttmbench.results.summary import MethodScores, Summary, differences, summarise
from ttmbench.scoring.prepare import count_truncated, truncated_notes
from ttmbench.ttm.checkpoint import TaskCheckpoint
from ttmbench.ttm.variants import Adaptation, OnSeedDone
from ttmbench.types import GroupShape, MetricSpec


def run_task(
    run: Run,
    task: TaskFile,
    settings: TTMConfig,
    state: Path | None = None,
    score: Callable[[TaskPlan, Run], ScoredTask] = score_task,
    told: bool = True,
) -> TaskResult:
    """Scores a task, and adapts the model to it if the run asks for that; the adapter leaves as it came.

    Args:
        run: the run and its model.
        task: the task.
        settings: of the test-time stage, resolved for this model and task.
        state: folder for what a stopped run goes on from; None to keep nothing.
        score: gives the raw scores.
        told: plugins are told of every column; not of a task that an adapted model is only measured on.

    Returns:
        Scores, numbers and records. If the test-time stage failed, those that were reached before, and the failure.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model gave no usable scores.
        UsageError: the model cannot be adapted to this task.
    """
    config = run.config
    _notes_of(run)  # those of a task that failed are not this one's
    _undecided(run)
    plan = None if task.spec.kind != "groups" else plan_task(run, task, settings)
    if plan is None or plan.way == "choices":
        result = run_ranking(run, task) if plan is None else run_choice_task(plan, run)
        result.notes.extend(_notes_of(run))
        if told:
            _notify(run, task.spec.task, RAW if plan is None else CHOICE, result.summary)
        return replace(result, undecided=_undecided(run))
    scored = score(plan, run)
    raw, groups = MethodScores(RAW, [scored.raw]), scored.data.groups
    if told:
        _notify_scored(run, scored, raw)
    body = Scored([raw], count_truncated(run.capabilities.truncating, groups), {})
    notes = [*scored.notes, *_notes_of(run), *truncated_notes(body.truncated)]
    undecided, failure = _undecided(run), None
    if plan.adapts:
        try:
            _adapt(scored, run, settings, state, body)
        except Exception as error:
            failure = error
            if isinstance(error, DivergedError):
                error.usual = usual_rate(run.registry, config, plan.spec)
    elif config.adapts:
        notes.append(_not_adapted_note(plan.spec.shape, config.model))
    result = scored_result(
        plan.spec,
        plan.metrics,
        scored.data,
        body,
        (config.bootstrap_iters, config.seed, config.interval),
        notes,
        scored.seconds | {column.name: column.seconds for column in body.columns if column.seconds},
        breakdowns=breakdowns(groups, body.scores, plan.metrics, body.subsets, plan.spec.means),
        from_store=scored.from_store,
        undecided=undecided,
        failure=failure,
    )
    if plan.blind:
        notes.append(_blind_note(plan.spec.shape, result.summary))
    return result


def _adapt(scored: ScoredTask, run: Run, settings: TTMConfig, state: Path | None, body: Scored) -> None:
    """The test-time stage: fills the body with the columns of the methods and with the other tasks."""
    checkpoint = TaskCheckpoint(state, scored.data.fingerprint, run.key)
    beside = _beside(scored, run, state)
    divided = _divided(scored, run, settings, state)
    for column in method_columns(scored, run, settings, checkpoint, beside, divided):
        if column.name == TTM and beside is not None:
            body.elsewhere.update(beside.outcomes(run.config.run_seeds))
            column = _with_differences(column, scored, run.config)
        body.columns.append(column)
        _notify_scored(run, scored, column)


def with_others(run: Run, others: Mapping[str, TaskFile]) -> Run:
    """The run with other tasks that each adapted model is measured on; the same without any."""
    if not others:
        return run
    as_it_is = replace(run, config=elsewhere_config(run.config), samples=None, folders={})
    images = None if (cache := run.cache) is None else ScoreCache(cache.folder, cache.exact, images_alone=True)
    adapted = replace(as_it_is, cache=images)

    def score(task: TaskFile, is_adapted: bool) -> TaskResult:
        return run_task(adapted if is_adapted else as_it_is, task, TTMConfig(), told=False)

    return replace(run, elsewhere=Elsewhere(others, score, run.config, run.key))


def adaptation(
    scored: ScoredTask, run: Run, settings: TTMConfig, metrics: Sequence[MetricSpec] | None = None
) -> Adaptation:
    """The test-time stage of a scored task, as the run configures it; ``metrics`` in place of the task's own."""
    assert scored.stage is not None, "only what was prepared as a whole can be adapted"
    return Adaptation(
        run.registry,
        scored.plan.spec,
        scored.stage,
        scored.raw,
        settings,
        run.config.ttm_preset,
        scored.plan.metrics if metrics is None else metrics,
        run.config.run_seeds,
        run.config.seed,
        None if scored.data.clusters is None else scored.data.clusters.groups,
    )


def one_seed(run: Run, seed: int) -> Run:
    """The run with one of its seeds alone; the audit compares seeds that are over, so it is the whole run's."""
    return replace(run, config=run.config.model_copy(update={"seeds": [seed], "audit_labels": False}))


def adapt_ahead(scored: ScoredTask, run: Run, settings: TTMConfig, state: Path) -> None:
    """Runs the test-time stage for who runs the task later, and leaves its checkpoints."""
    checkpoint = TaskCheckpoint(state, scored.data.fingerprint, run.key)
    for _ in method_columns(scored, run, settings, checkpoint, _beside(scored, run, state)):
        pass


def _divided(scored: ScoredTask, run: Run, settings: TTMConfig, state: Path | None) -> frozenset[int]:
    """Has all seeds run ahead, each on one of several devices; gives those of the others."""
    if run.ahead is None or state is None or len(run.config.run_seeds) == 1:
        return frozenset()
    clock = time.perf_counter()
    others = run.ahead(
        "seed", scored.plan.spec.task, lambda unit: adapt_ahead(scored, one_seed(run, unit.part), settings, state)
    )
    scored.seconds["devices"] = time.perf_counter() - clock
    return frozenset(unit.part for unit in others)


def method_columns(
    scored: ScoredTask,
    run: Run,
    settings: TTMConfig,
    checkpoint: TaskCheckpoint,
    beside: Beside | None,
    told: frozenset[int] = frozenset(),
) -> Iterator[MethodScores]:
    """Every column of the test-time stage that the run asks for, in the order of the table, as each is finished.

    Plugins are told of new iterations, and of seeds in ``told`` that another process has run.
    """
    config, save = run.config, _saver(scored, run)
    stage = replace(adaptation(scored, run, settings), checkpoint=checkpoint, told=told)
    wanted: dict[str, Callable[[], MethodScores | list[MethodScores]]] = {}
    if config.simple_match:
        wanted[SIMPLE_MATCH] = partial(stage.simple_match, None if config.ttm else save)
    if config.ttm:
        ends, complete = _ends_of_seeds(save, beside), None if beside is None else beside.complete
        wanted[TTM] = partial(stage.ttm, audit=config.audit_labels, finished=ends, complete=complete)
        wanted |= {name: partial(stage.control, name) for name in config.ttm_controls}
        if config.ttm_holdout is not None:
            wanted[HOLDOUT] = partial(stage.holdout, config.ttm_holdout)
    if config.oracle:
        wanted[ORACLE] = stage.oracle
    for name, variant in wanted.items():
        clock = time.perf_counter()
        with phase(name):
            given = variant()
        *before, column = given if isinstance(given, list) else [given]
        yield from before
        yield replace(column, seconds=time.perf_counter() - clock)


def _beside(scored: ScoredTask, run: Run, state: Path | None) -> Beside | None:
    """The measurements on other tasks beside this one; None if there are none to make."""
    if run.elsewhere is None:
        return None
    found = run.elsewhere.beside(scored.plan.spec.task, scored.data.fingerprint, scored.raw, state)
    return found if found.others else None


def _ends_of_seeds(save: OnSeedDone | None, beside: Beside | None) -> OnSeedDone:
    """What is done with the adapted model of each seed: it is saved, and measured on other tasks."""

    def finished(seed: int, about: dict[str, Any]) -> None:
        if save is not None:
            save(seed, about)
        if beside is not None:
            beside.measure(seed)

    return finished


def _with_differences(column: MethodScores, scored: ScoredTask, config: RunConfig) -> MethodScores:
    """Next to what adaptation does to other tasks is what it does to this one, in the same form."""
    iterations, metrics = config.bootstrap_iters, scored.plan.metrics
    gains = differences(metrics, scored.raw, column.scores, scored.data.clusters, iterations, config.seed)
    return replace(column, record={**column.record, "differences": gains})


def _notes_of(run: Run) -> list[str]:
    reporting = run.capabilities.reporting
    return [*model_notes(run.adapter), *(reporting.take_notes() if reporting is not None else [])]


def _undecided(run: Run) -> dict[str, int] | None:
    """Pairs that the model left open since it was last asked; None where it left none, or never does."""
    bounding = run.capabilities.bounding
    open_pairs, of = bounding.take_undecided() if bounding is not None else (0, 0)
    return {"pairs": open_pairs, "of": of} if open_pairs else None


def _saver(scored: ScoredTask, run: Run) -> OnSeedDone | None:
    """What writes the adapted model of a seed; None if none is to be kept."""
    config, spec = run.config, scored.plan.spec
    if not run.folders:
        return None
    finetuning = finetuned(run.adapter)
    savable = run.capabilities.savable
    if savable is None:
        raise UsageError(f"model {config.model} cannot be saved (it has no save_pretrained); leave --save_adapted out")

    def save(seed: int, about: dict[str, Any]) -> None:
        folder = run.folders[spec.task, seed]
        card = {
            "model": config.model_name,
            "task": spec.task,
            "task_version": spec.version,
            "data_sha256": scored.data.fingerprint,
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


def _notify_scored(run: Run, scored: ScoredTask, column: MethodScores) -> None:
    if run.registry.plugins.listens("ttmbench_task_scored"):
        summary = summarise({column.name: column.scores}, scored.plan.metrics, 0, run.config.seed)
        _notify(run, scored.plan.spec.task, column.name, summary)


def _notify(run: Run, task: str, name: str, summary: Summary) -> None:
    tracks = summary.tracks if finetuned(run.adapter) is None else supervised_tracks(summary.tracks)
    plugins = run.registry.plugins
    plugins.notify("ttmbench_task_scored", task=task, filter=name, results=summary.results, tracks=tracks)


def _not_adapted_note(shape: GroupShape, model: str) -> str:
    if shape.true_captions > 1:
        return (
            f"{shape.true_captions} captions are true for each image, and no way is defined to adapt a model to "
            "several, so there are raw and SimpleMatch numbers only"
        )
    return (
        f"model {model} cannot be adapted (it has no matching_loss or pair_loss), so there are raw and "
        "SimpleMatch numbers only"
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
