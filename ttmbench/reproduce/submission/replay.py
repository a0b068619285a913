"""Replays the test-time stage of a submission without its model: recomputes every selection from stored scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from ttmbench.config import DEFAULT_LEARNING_RATE, TTMConfig
from ttmbench.errors import DataError
from ttmbench.evaluator.plan import Run, TaskPlan
from ttmbench.evaluator.task import Methods
from ttmbench.evaluator.task_result import Scored
from ttmbench.plugins.registry import Registry
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, ORACLE, SIMPLE_MATCH
from ttmbench.results.method_record import Control, Holdout, Iteration, OracleRecord, TrainingRecord, TtmRecord
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.batches import BlockStore
from ttmbench.scoring.capabilities import Trained
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.scoring.prepare import PreparedTask
from ttmbench.ttm.algorithm import ShuffledTask, fixed_selection, is_overfitted, selections, stop_of
from ttmbench.ttm.checkpoint import SeedCheckpoint, SeedProgress, TaskCheckpoint
from ttmbench.ttm.parts import DEFAULT_PARTS, Parts, load_parts
from ttmbench.ttm.selection import CONTROLS, algorithm1_selection, oracle
from ttmbench.ttm.trainer import Step, batch_of
from ttmbench.ttm.variants import truth_of
from ttmbench.types import Scores

MOST_ITERATIONS = 10_000
"""Of one seed; a schedule is computed for so many."""
LOSS_PER_RANGE = 10
"""The largest mean cross entropy of an epoch, relative to the range of all scores of the seed."""
NOISE = 0.02
"""By how much a group's scores may depend on what is scored beside it, relative to the range of all scores."""


def replayed_columns(
    document: ResultsDocument, scored: Scored, plan: TaskPlan, run: Run, settings: TTMConfig, stored: StoredScores
) -> Sequence[MethodScores]:
    """The columns of the test-time stage, their records made by the code of a run.

    Args:
        document: of results; losses and seconds of iterations are taken from it.
        scored: the task as the raw model scores it.
        plan: the task.
        run: the command and what its names stand for.
        settings: of the test-time stage, as the command gives them.
        stored: scores of every iteration.

    Returns:
        The columns, in the order of the run.

    Raises:
        DataError: stored scores or losses are missing, or contradict what was selected.
    """
    if settings.iterations > MOST_ITERATIONS:
        raise DataError(f"its settings have {settings.iterations} iterations, at most {MOST_ITERATIONS} are taken")
    raw, parts = scored.raw, {}
    if HOLDOUT in stored.subsets and stored.iterations.get(HOLDOUT):
        held = np.isin(np.arange(len(raw.groups)), stored.subsets[HOLDOUT])
        images = np.arange(held.size * raw.groups.shape[1]).reshape(held.size, -1)
        parts = {
            tuple(images[held].ravel().tolist()): _near(stored.scores[HOLDOUT_RAW][0], raw.groups[held]),
            tuple(images[~held].ravel().tolist()): _near(stored.iterations[HOLDOUT][0][0], raw.groups[~held]),
        }
    unaudited = run.config.model_copy(update={"audit_labels": False, "methods": []})
    stated = _Stated(document, plan, settings, run.registry, stored, run.config.run_seeds)
    staged = replace(scored, stage=_stage(raw, plan, parts))
    columns = list(Methods(replace(run, config=unaudited)).columns(staged, settings, _Checkpoint(stated)))
    return [_as_stated(column, document.training(scored.spec.task, column.name)) for column in columns]


def _as_stated(column: MethodScores, stated: object) -> MethodScores:
    """The column with what the document says of a model that is not here, and without what older documents lack."""
    if not isinstance(stated, TrainingRecord):
        return column
    record = {**column.record, **stated.model_dump(mode="json", include={"cost", "trained"}, exclude_none=True)}
    if stated.positions is None:
        record.pop("positions", None)
    return replace(column, record=record)


def _near(scores: Scores, whole: np.ndarray) -> Scores:
    """Scores of some groups by themselves; DataError if they are not nearly those that the groups have among all."""
    if scores.groups.shape != whole.shape or np.abs(scores.groups - whole).max() > NOISE * np.ptp(whole):
        raise DataError("the scores of held-out and adapted groups before training are not those of the raw model")
    return scores


def check_pairs(stored: StoredScores) -> None:
    """DataError if scores inside groups are not nearly those that the same pairs have among all pairs."""
    per_seed = [*stored.scores.values(), *(steps for seeds in stored.iterations.values() for steps in seeds)]
    for scores in (scores for several in per_seed for scores in several if scores.all_pairs is not None):
        groups, images, captions = scores.groups.shape
        assert scores.all_pairs is not None, "filtered"
        inside = scores.all_pairs.reshape(groups, images, groups, captions)[np.arange(groups), :, np.arange(groups)]
        if np.abs(inside - scores.groups).max() > NOISE * np.ptp(scores.all_pairs):
            raise DataError("its scores inside groups are not those of the same pairs among all pairs")


@dataclass(frozen=True)
class _Stage(PreparedTask):
    """A task without inputs: images and captions are numbers, and scores of a part of the groups are looked up."""

    parts: Mapping[tuple[int, ...], Scores]

    def score(self, blocks: BlockStore | None = None) -> Scores:
        """The stored scores of these groups."""
        scores = self.parts.get(tuple(cast(list[int], self.prepared.images)))
        if scores is None:
            raise DataError("the held-out groups of its scores are not those that the seed draws")
        return scores


def _stage(raw: Scores, plan: TaskPlan, parts: Mapping[tuple[int, ...], Scores]) -> _Stage:
    groups, images, captions = raw.groups.shape
    rows = [np.arange(groups * count).reshape(groups, -1) for count in (images, captions)]
    prepared = Prepared(list(range(groups * images)), list(range(groups * captions)), Rows(*rows))
    return _Stage(cast(Trained, None), prepared, 1, plan.spec.is_global, plan.all_pairs, parts)


@dataclass(frozen=True)
class _Stated:
    """What the submission says of the stage."""

    document: ResultsDocument
    plan: TaskPlan
    settings: TTMConfig
    registry: Registry
    stored: StoredScores
    seeds: Sequence[int]

    def progress(self, variant: str, seed: int, raw: Scores) -> SeedProgress:
        """All iterations of a seed, and its final scores."""
        where, at = f"{variant}, seed {seed}", self.seeds.index(seed)
        final = self.stored.scores.get(variant, [])
        if at >= len(final):
            raise DataError(f"{where}: its scores are missing; --save_scores stores them")
        after = [*self.stored.iterations[variant][at], *([] if variant == HOLDOUT else [final[at]])]
        if variant == HOLDOUT:
            first, *after = after or [final[at]]
            if not np.array_equal(first.groups, raw.groups):
                raise DataError(f"{where}: does not begin with the raw model's scores of the adapted groups")
        blind = ShuffledTask(_stage(raw, self.plan, {}), seed)
        if variant == SIMPLE_MATCH:
            steps = self._overfitted(blind, raw, after, where)
        else:
            steps = self._iterations(blind, raw, after, variant, seed, where)
        return SeedProgress(steps, None, final[at])

    def _iterations(
        self, blind: ShuffledTask, raw: Scores, after: Sequence[Scores], variant: str, seed: int, where: str
    ) -> tuple[Step, ...]:
        config, lines, parts = self.settings, self._lines(variant, seed), self._parts
        is_whole = len(lines) == config.iterations or (
            parts.stopping is not None and 0 < len(lines) < config.iterations
        )
        if not len(lines) == len(after) or not is_whole:
            raise DataError(
                f"{where}: has {len(lines)} iterations and scores of {len(after)}, its settings give "
                f"{config.iterations} (--save_scores stores the scores of all)"
            )
        most = 20 + LOSS_PER_RANGE * max(float(np.ptp(scores.groups)) for scores in (raw, *after))
        truth = truth_of(raw, blind.is_global)
        supervision = oracle(truth) if variant == ORACLE else CONTROLS.get(variant, algorithm1_selection)
        choose = selections(blind, raw, config, self.registry.schedule(config.schedule), seed, supervision, parts)
        scores, steps = raw, list[Step]()
        for number, (line, stored) in enumerate(zip(lines, after, strict=True), start=1):
            threshold, labels, chosen = choose(number, scores)
            selected = int(chosen.selected.sum())
            if len(line.loss) != (config.epochs if selected else 0):
                raise DataError(
                    f"{where}, iteration {number}: loss has {len(line.loss)} epochs, {selected} selected units and "
                    f"{config.epochs} epochs of the settings give {config.epochs if selected else 0}"
                )
            if not max(line.loss, default=0.0) <= most:
                raise DataError(f"{where}, iteration {number}: loss is {line.loss!s:.100}, impossible for its scores")
            if not selected and not np.array_equal(stored.groups, scores.groups):
                raise DataError(f"{where}, iteration {number}: selects nothing, and its scores changed")
            captions, scores, seconds = blind.unshuffle(chosen.captions), stored, line.seconds
            loss, tie = tuple(line.loss), labels.tie
            rate = (config.lr or DEFAULT_LEARNING_RATE) * config.lr_restart ** (number - 1)
            steps.append(Step(number, threshold, captions, chosen.selected, tie, loss, rate, stored, seconds))
        stop = stop_of(blind, parts)
        ends = [] if stop is None else [stop(steps[:count]) for count in range(1, len(steps) + 1)]
        if True in ends[:-1] or (ends and not ends[-1] and len(steps) < config.iterations):
            raise DataError(f"{where}: has {len(steps)} iterations, after which its stopping rule does not end it")
        return tuple(steps)

    @property
    def _parts(self) -> Parts:
        return load_parts(self.registry, self.settings) if self.settings.other_parts else DEFAULT_PARTS

    def _overfitted(self, blind: ShuffledTask, raw: Scores, after: Sequence[Scores], where: str) -> tuple[Step, ...]:
        """SimpleMatch's step ends with the first restart after which nothing is left to train, or with the last."""
        labels, fixed = fixed_selection(blind, raw, self.settings)
        captions = blind.unshuffle(labels.captions)
        ends = [is_overfitted(blind.is_global, scores, fixed.selected, captions) for scores in after]
        if True in ends[:-1] or not (ends[-1] or len(ends) == self.settings.iterations):
            raise DataError(f"{where}: has scores of {len(ends)} restarts, after which the step does not end")
        tie, none = labels.tie, (0.0, captions, fixed.selected)
        return tuple(Step(at, *none, tie, (), 0.0, scores, 0.0) for at, scores in enumerate(after, start=1))

    def _lines(self, variant: str, seed: int) -> list[Iteration]:
        record = self.document.training(self.plan.spec.task, variant)
        if not isinstance(record, TtmRecord | Control | Holdout | OracleRecord):
            return []
        return [line for line in record.iterations if line.seed == seed]


class _Checkpoint(TaskCheckpoint):
    """Every seed is over, as the submission says."""

    def __init__(self, stated: _Stated) -> None:
        super().__init__()
        self._stated = stated

    def seed(self, method: str, seed: int, raw: Scores, more: object = None) -> SeedCheckpoint:
        """The seed's progress, which is whole."""
        return _Seed(self._stated.progress(method, seed, raw))


class _Seed(SeedCheckpoint):
    def __init__(self, progress: SeedProgress) -> None:
        super().__init__(None, "", print)
        self._progress = progress

    def read(self, is_done: Callable[[], bool] = lambda: True) -> SeedProgress:
        """All iterations and the final scores."""
        return self._progress


def equal_seeds(
    document: ResultsDocument, plan: TaskPlan, settings: TTMConfig, columns: Sequence[MethodScores]
) -> list[str]:
    """Columns of which two seeds end in the same scores, though their training draws batches or crops at random."""
    names = []
    groups, images, captions = columns[0].scores[0].groups.shape
    units = groups * images if plan.spec.is_global else groups
    batch = batch_of(settings, units, min(images, captions), plan.spec.is_global)
    for column in columns:
        record = document.training(plan.spec.task, column.name)
        if not isinstance(record, TtmRecord | Control | Holdout | OracleRecord):
            continue
        random = {line.seed for line in record.iterations if line.loss and (settings.augment or line.selected > batch)}
        ends = [
            scores.groups.tobytes() for scores, seed in zip(column.scores, record.seeds, strict=True) if seed in random
        ]
        names += [column.name] if len(set(ends)) < len(ends) else []
    return names
