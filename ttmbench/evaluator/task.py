"""One task of a run: load, score, and on request the test-time stage in all its variants."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttmbench._util.files import write_atomically
from ttmbench._util.redact import scrub_values, secrets_of
from ttmbench._version import __version__
from ttmbench.cache.scores import ScoreStore
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import TtmbenchError, UsageError, during
from ttmbench.evaluator.adapters import can_adapt, learns_from_pairs, only_chooses
from ttmbench.evaluator.blindness import blind_note
from ttmbench.evaluator.forced_choice import run_choice_task
from ttmbench.evaluator.record import TaskOutcome
from ttmbench.evaluator.score_task import OpenTask, open_task
from ttmbench.plugins.registry import Registry
from ttmbench.protocols import Blind, Reporting, Savable
from ttmbench.results.breakdown import breakdowns
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, ORACLE, RAW, SIMPLE_MATCH, TTM
from ttmbench.results.summary import summarise
from ttmbench.scoring.batch_size import AtOnce
from ttmbench.scoring.forced_choice.arrays import CHOICE
from ttmbench.ttm.checkpoint import TaskCheckpoint
from ttmbench.ttm.variants import Adaptation, Ran
from ttmbench.types import MetricSpec, Scores

Folders = Mapping[tuple[str, int], Path]
"""(task, seed) -> where the adapted model goes."""


@dataclass
class _Numbers:
    """What a task has given so far."""

    scores: dict[str, list[Scores]]
    subsets: dict[str, list[int]] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """What the tasks of a run share.

    Attributes:
        samples: ids of the groups to use; None for all.
        folders: where adapted models go; empty if they are not kept.
        store: where raw scores are kept; None to keep none.
        at_once: how much the model takes at a time; learnt from one task to the next.
    """

    samples: set[str] | None
    folders: Folders
    store: ScoreStore | None
    at_once: AtOnce


def run_task(
    registry: Registry,
    config: RunConfig,
    adapter: Any,
    task: TaskFile,
    settings: TTMConfig,
    shared: Shared,
    state: Path | None = None,
) -> TaskOutcome:
    """Scores a task, and adapts the model to it if the run asks for that; the adapter leaves as it came.

    Args:
        registry: metrics, sources and hooks.
        config: the run.
        adapter: the model.
        task: the task.
        settings: of the test-time stage, resolved for this model and task.
        shared: with the other tasks of the run.
        state: folder for what a stopped run goes on from; None to keep nothing.

    Returns:
        Scores, numbers and records. If the test-time stage failed, those that were reached before, and the failure.

    Raises:
        DataError: data out of reach, or not what the task file says.
        TtmbenchError: the model gave no usable scores.
    """
    _notes_of(adapter)  # those of a task that failed are not this one's
    if only_chooses(adapter):
        outcome = run_choice_task(registry, config, adapter, task, shared.samples, shared.at_once)
        outcome.notes.extend(_notes_of(adapter))
        registry.plugins.notify(
            "ttmbench_task_scored",
            task=task.spec.task,
            filter=CHOICE,
            results=outcome.summary.results,
            tracks=outcome.summary.tracks,
        )
        return outcome
    adapts = config.adapts and can_adapt(adapter)
    if adapts and task.spec.is_global and learns_from_pairs(adapter):
        raise UsageError(
            f"model {config.model} learns which pairs inside a group match, and task '{task.spec.task}' is matched "
            "globally, without groups; use a task inside groups, or leave the test-time stage out"
        )
    enlarge = settings.augment_scale if adapts and settings.augment else None
    opened = open_task(
        registry,
        config,
        adapter,
        task,
        samples=shared.samples,
        enlarge=enlarge,
        run_store=shared.store,
        at_once=shared.at_once,
    )
    spec, metrics = opened.spec, opened.metrics
    numbers = _Numbers({RAW: [opened.raw]}, seconds=opened.seconds)
    _notify_scored(registry, config, spec, metrics, RAW, numbers.scores)
    notes: list[str] = [*opened.notes, *_notes_of(adapter)]
    if config.adapts and not adapts:
        notes.append(
            f"model {config.model} cannot be adapted (it has no matching_loss or pair_loss), so there are raw and "
            "SimpleMatch numbers only"
        )
    failure: Exception | None = None
    if adapts:
        stage = adaptation(registry, config, opened, settings)
        stage = replace(stage, checkpoint=TaskCheckpoint(state, opened.fingerprint))
        try:
            _adapt(stage, config, numbers, _saver(adapter, config, spec, opened.fingerprint, shared.folders))
        except Exception as error:
            failure = error
    summary = summarise(numbers.scores, metrics, config.bootstrap_iters, config.seed, config.interval)
    if isinstance(adapter, Blind) and adapter.blind:
        notes.append(blind_note(spec.shape, summary))
    return TaskOutcome(
        spec=spec,
        metrics=metrics,
        groups=opened.groups,
        source=opened.source,
        fingerprint=opened.fingerprint,
        scores=numbers.scores,
        summary=summary,
        records=numbers.records,
        notes=notes,
        seconds=numbers.seconds,
        subsets=numbers.subsets,
        breakdowns=breakdowns(opened.groups, numbers.scores, metrics, numbers.subsets),
        failure=failure,
        from_store=opened.from_store,
    )


def _notes_of(adapter: Any) -> list[str]:
    return adapter.take_notes() if isinstance(adapter, Reporting) else []


def adaptation(
    registry: Registry,
    config: RunConfig,
    opened: OpenTask,
    settings: TTMConfig,
    metrics: Sequence[MetricSpec] | None = None,
) -> Adaptation:
    """The test-time stage of an open task, as the run configures it; ``metrics`` in place of the task's own."""
    assert opened.stage is not None, "only what was prepared as a whole can be adapted"
    return Adaptation(
        registry,
        opened.spec,
        opened.stage,
        opened.raw,
        settings,
        config.ttm_preset,
        opened.metrics if metrics is None else metrics,
        config.run_seeds,
        config.seed,
    )


def _adapt(stage: Adaptation, config: RunConfig, numbers: _Numbers, save: Callable[..., None] | None) -> None:
    """Every variant of the test-time stage that the run asks for, in the order of the columns."""

    def keep(name: str, variant: Callable[[], Ran]) -> dict[str, Any]:
        clock = time.perf_counter()
        with during(name):
            ran = variant()
        numbers.seconds[name] = time.perf_counter() - clock
        numbers.scores[name] = ran.scores
        _notify_scored(stage.registry, config, stage.spec, stage.metrics, name, numbers.scores)
        return ran.record

    if config.simple_match:
        kept = None if config.ttm else save
        numbers.records["simple_match"] = keep(SIMPLE_MATCH, lambda: stage.simple_match(kept))
    if config.ttm:
        record = keep(TTM, lambda: stage.ttm(audit=config.audit_labels, finished=save))
        numbers.records["ttm"] = record
        for control in config.ttm_controls:
            record.setdefault("controls", {})[control] = keep(control, lambda name=control: stage.control(name))  # type: ignore[misc]
        if config.ttm_holdout is not None:
            clock = time.perf_counter()
            with during(HOLDOUT):
                ran, raw, held = stage.holdout(config.ttm_holdout)
            numbers.seconds[HOLDOUT] = time.perf_counter() - clock
            record["holdout"] = ran.record
            for name, scores in ((HOLDOUT_RAW, [raw]), (HOLDOUT, ran.scores)):
                numbers.scores[name] = scores
                numbers.subsets[name] = held.tolist()
                _notify_scored(stage.registry, config, stage.spec, stage.metrics, name, numbers.scores)
    if config.oracle:
        numbers.records["oracle"] = keep(ORACLE, stage.oracle)


def _saver(
    adapter: Any, config: RunConfig, spec: TaskSpec, fingerprint: str, folders: Folders
) -> Callable[[int, dict[str, Any]], None] | None:
    """What writes the adapted model of a seed; None if none is to be kept."""
    if not folders:
        return None
    if not isinstance(adapter, Savable):
        raise UsageError(f"model {config.model} cannot be saved (it has no save_pretrained); leave --save_adapted out")

    def save(seed: int, about: dict[str, Any]) -> None:
        folder = folders[spec.task, seed]
        card = {
            "model": config.model_name,
            "task": spec.task,
            "task_version": spec.version,
            "data_sha256": fingerprint,
            "seed": seed,
            "ttmbench": __version__,
            **about,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            adapter.save_pretrained(folder)
        except OSError as error:
            raise TtmbenchError(f"the adapted model cannot be written to {folder}: {error.strerror or error}") from None
        text = json.dumps(scrub_values(card, secrets_of(config.model_args)), indent=2) + "\n"
        write_atomically(folder / "ttmbench.json", lambda path: path.write_text(text, encoding="utf-8"))

    return save


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
    summary = summarise({name: scores[name]}, metrics, 0, config.seed)
    registry.plugins.notify(
        "ttmbench_task_scored", task=spec.task, filter=name, results=summary.results, tracks=summary.tracks
    )
