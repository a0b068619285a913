"""One task of a run: planned, scored, adapted to by the methods that the run asks for, and summed up.

With ``--also``, adapted models are measured on other tasks as a run measures them, whatever their kind. Each
measurement is stored with the seed's other files until the task is done, so that a resumed run repeats none.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.digests import tensors_digest
from ttmbench._util.file_io import write_atomically
from ttmbench._util.third_party_errors import error_line, phase
from ttmbench._version import __version__
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DivergedError, NotRestoredError, TtmbenchError, UsageError
from ttmbench.evaluator.adapters import finetuned, write_record
from ttmbench.evaluator.ranking_task import rank_task
from ttmbench.evaluator.score_task import Run, ask_task, plan_task, score_task
from ttmbench.evaluator.task_result import Answered, Scored, TaskResult, TransferResult
from ttmbench.methods.checkpoint import (
    AFTER_SEED,
    AfterSeed,
    Metadata,
    TaskCheckpoint,
    Tensors,
    read_state,
    score_tensors,
    scores_of,
    write_state,
)
from ttmbench.methods.settings import usual_rate
from ttmbench.model import ChoiceModel, PairScorer
from ttmbench.results.document import MOST_UNDECIDED
from ttmbench.results.numbers import (
    CHOICE,
    RAW,
    Number,
    as_entries,
    supervised_tracks,
)
from ttmbench.results.summary import MethodScores, breakdowns, difference_of, differences, summarise
from ttmbench.scoring.inputs import count_truncated
from ttmbench.stats import seed_std
from ttmbench.types import Group, Record, Scores

Gains = Mapping[str, Record]
"""Metric -> its difference, as results documents have it."""
Measurement = tuple[Tensors, Metadata]
"""Score arrays of an adapted model on another task, if it has any; its ``results``, ``ties`` and ``seconds``."""
STAGE = "also"


@dataclass
class TransferEvaluation:
    """The measurements for one task: for every method and seed each other task, stored as soon as it is made."""

    score: Callable[[str], TaskResult]  # another task with the model as it is now
    others: Mapping[str, TaskResult]  # with the original model
    config: RunConfig  # the run
    start: str  # digest of what the models start from; stored measurements are for it alone
    folder: Path | None  # for what a stopped run resumes from; None to store nothing
    _made: dict[tuple[str, int, str], Measurement] = field(default_factory=dict)

    def measure(self, seed: int, method: str) -> None:
        """Scores every other task that is not measured yet with the model as a seed of a method has trained it."""
        for name in self.others:
            if self._known(method, seed, name) is not None:
                continue
            with phase(STAGE):
                result = self.score(name)
            tensors = score_tensors(result.raw) if isinstance(result, Scored) else {}
            seconds, entries = math.fsum(result.seconds.values()), as_entries(result.numbers)
            about = {"results": entries["results"], "ties": entries["ties"], "seconds": seconds}
            self._made[method, seed, name] = tensors, about
            if self.folder is not None:
                whole = {**about, "of": self._identity(method, seed, name)}
                why = f"if the run is stopped, task {name} is measured again"
                if not write_state(self._path(self.folder, method, seed, name), tensors, whole, why):
                    self.folder = None

    def complete(self, seed: int, method: str) -> bool:
        """Whether every other task was measured with this seed of a method."""
        return all(self._known(method, seed, name) is not None for name in self.others)

    def outcomes(self, seeds: Mapping[str, Sequence[int]]) -> dict[str, TransferResult]:
        """Every other task over the seeds of each method, all of which are complete."""
        outcomes = {}
        for name, raw in self.others.items():
            made = {method: [self._made[method, seed, name] for seed in of] for method, of in seeds.items()}
            result: TaskResult
            if isinstance(raw, Scored):
                scores = {method: [scores_of(tensors) for tensors, _ in each] for method, each in made.items()}
                columns = [raw.columns[0], *(MethodScores(method, each) for method, each in scores.items())]
                how = self.config.bootstrap_iters, self.config.seed, self.config.interval
                result = replace(raw, columns=columns).summarised(how)
                gains = {method: gains_of(raw, each, self.config) for method, each in scores.items()}
            else:  # means over seeds, without intervals over groups
                gains, numbers = {}, list(raw.numbers)
                for method, each in made.items():
                    of_method, gains[method] = _numbers_over_seeds(raw, method, each)
                    numbers += of_method
                result = replace(raw, numbers=numbers)
            seconds = math.fsum(about["seconds"] for each in made.values() for _, about in each)
            outcomes[name] = TransferResult(result, seeds, gains, seconds)
        return outcomes

    def _known(self, method: str, seed: int, name: str) -> Measurement | None:
        """A measurement of this process or of a stopped run; None if it has to be made."""
        if (method, seed, name) not in self._made and self.folder is not None:
            stored = read_state(self._path(self.folder, method, seed, name), f"task {name} is measured again")
            if stored is not None and stored[1].get("of") == self._identity(method, seed, name):
                self._made[method, seed, name] = stored
        return self._made.get((method, seed, name))

    def _identity(self, method: str, seed: int, name: str) -> list[object]:
        return [method, seed, name, self.start, self.others[name].data.fingerprint]

    @staticmethod
    def _path(folder: Path, method: str, seed: int, name: str) -> Path:
        return folder / STAGE / method / f"seed_{seed}" / f"{name}.safetensors"


def gains_of(raw: Scored, adapted: Sequence[Scores], config: RunConfig) -> Gains:
    """Every metric after adaptation minus before it, group by group."""
    return differences(raw.metrics, raw.raw, adapted, raw.data.clusters, config.bootstrap_iters, config.seed)


def _numbers_over_seeds(raw: TaskResult, method: str, made: Sequence[Measurement]) -> tuple[list[Number], Gains]:
    """A method's numbers on a task whose single groups are not kept, and its differences."""
    numbers, gains = list[Number](), dict[str, Any]()
    for before in (number for number in raw.numbers if number.method == RAW):
        by_seed = [about["results"].get(before.key) for _, about in made]
        ties = [about["ties"].get(before.key) for _, about in made]
        known: dict[str, Any] = {"value": None, "chance": before.chance}
        if None not in by_seed:
            known |= {"value": float(np.mean(by_seed)), "seed_std": seed_std(np.array(by_seed))}
        known["ties"] = None if None in ties else float(np.mean([tie or 0 for tie in ties]))
        numbers.append(Number(before.task, before.metric, method, **known))
        gains[before.metric] = difference_of(before.value, by_seed)
    return numbers, {metric: gain for metric, gain in gains.items() if gain is not None}


ASKED_AGAIN = 8  # pairs, where all scores came from the cache


def run_task(
    run: Run,
    task: TaskFile,
    settings: TTMConfig,
    state: Path | None = None,
    methods: Methods | None = None,
) -> TaskResult:
    """Scores a task and adapts the model to it if the run asks for that; the model is restored afterwards.

    ``state`` is the folder of checkpoints; ``methods`` is None where an adapted model is only measured. The failure
    of a test-time stage becomes part of the result; errors before it are those of `score_task`.
    """
    run = run.on(task.spec)
    run.model.notes()  # those of a task that failed are not this one's
    _take_undecided(run)
    result: TaskResult
    read = run.model.tokens_read
    if task.spec.kind != "groups":
        result = rank_task(run, task)
    else:
        plan = plan_task(run, task, settings)
        if isinstance(run.model, ChoiceModel) and plan.way == "choices":
            result = ask_task(plan, run, run.model)
        else:
            result = score_task(plan, run)
    tokens = run.model.tokens_read - read
    undecided = _take_undecided(run, result.data.groups)
    found = {"pairs": 0, "of": 1, "mass": 1.0, **(undecided or {})}
    is_mentioned = found["mass"] >= 0.5 or found["pairs"] > MOST_UNDECIDED * found["of"]  # as undecided, with a remedy
    said = [] if is_mentioned else [f"P(yes) + P(no) is {found['mass']:.2g} on average: often something else is said"]
    result = replace(result, notes=[*result.notes, *said, *run.model.notes()], undecided=undecided, tokens=tokens)
    if isinstance(result, Scored):
        truncated, cut = count_truncated(run.model, result.data.groups)
        result = replace(result, truncated=truncated, notes=[*result.notes, *cut])
        if methods is not None:
            methods = methods.of(run)
            methods.notify(result, result.columns[0])
            result = methods.applied_to(result, settings, state)
        by_tag = breakdowns(result.data.groups, result.scores, result.metrics, result.spec.means)
        result = replace(result, breakdowns=by_tag, stage=None, parts=None)  # prepared inputs are not needed any more
    result = result.summarised(run.resampling)
    if isinstance(result, Scored):
        return replace(result, notes=[*result.notes, *_blind_notes(run, result)])
    if methods is not None:
        _notify(run, result.spec.task, CHOICE if isinstance(result, Answered) else RAW, result.numbers)
    return result


class Methods:
    """The test-time methods of a run, and what follows each finished seed while the model is adapted."""

    def __init__(
        self,
        run: Run,
        folders: Mapping[tuple[str, int], Path] | None = None,
        others: Mapping[str, TaskFile] | None = None,
    ) -> None:
        self._run, self._folders, self._others = run, folders or {}, others or {}
        self._raw: dict[str, TaskResult] = {}  # other tasks with the original model, scored once a run

    def of(self, run: Run) -> Methods:
        """The same with the model as a task takes it."""
        same = copy(self)
        same._run = run
        return same

    def applied_to(self, scored: Scored, settings: TTMConfig, state: Path | None) -> Scored:
        """The task with the columns of all methods; if some fail, with those of the others and the first failure."""
        run = self._run
        if run.config.methods:
            from ttmbench.evaluator.methods import undefined_notes

            scored = replace(scored, notes=[*scored.notes, *undefined_notes(run, scored.spec)])
        columns, seconds, failures = list(scored.columns), dict(scored.seconds), dict[str, Exception]()
        transfers, measured = None, dict[str, list[int]]()
        try:
            transfers = self._transfers(scored, state)
            for column in self.columns(scored, settings, state, failures, transfers):
                if transfers is not None and column.name in run.left_models:
                    measured[column.name] = run.config.run_seeds
                    gains = gains_of(scored, column.scores, run.config)
                    column = replace(column, record={**column.record, "differences": gains})
                columns.append(column)
                seconds |= {column.name: column.seconds} if column.seconds else {}
                self.notify(scored, column)
        except Exception as error:
            failures[""] = error
        first, *further = failures.values() or [None]
        return replace(
            scored,
            columns=columns,
            seconds=seconds,
            notes=[*scored.notes, *(f"a further method failed: {error_line(error)}" for error in further if error)],
            elsewhere=transfers.outcomes(measured) if transfers is not None and measured else {},
            failure=first,
        )

    def run_seeds(self, seeds: Sequence[int], scored: Scored, settings: TTMConfig, state: Path) -> None:
        """Runs some seeds of what is trained, and leaves their checkpoints for the run that does the whole task.

        A failure of one of ``--methods`` is left to that run, unless the model is no longer what it was.
        """
        failures, whole = dict[str, Exception](), self._run.config
        config = whole.model_copy(update={"seeds": list(seeds), "audit_labels": False})  # the audit compares all seeds
        part = self.of(replace(self._run, config=config))
        for _ in part.columns(scored, settings, state, failures, trained_alone=True):
            pass
        for error in failures.values():
            if isinstance(error, NotRestoredError):
                raise error

    def notify(self, scored: Scored, column: MethodScores) -> None:
        """Tells plugins of a finished column."""
        if self._run.registry.listens("ttmbench_task_scored"):
            numbers = summarise([column], scored.metrics, 0, self._run.config.seed)
            _notify(self._run, scored.spec.task, column.name, numbers)

    def columns(
        self,
        scored: Scored,
        settings: TTMConfig,
        state: Path | None,
        failures: dict[str, Exception],
        transfers: TransferEvaluation | None = None,
        trained_alone: bool = False,
    ) -> Iterator[MethodScores]:
        """The columns of all methods.

        A failure is added to ``failures`` and does not stop the other methods, unless the model is no longer what it
        was. ``trained_alone`` leaves out what trains nothing.
        """
        run = self._run
        if not run.config.methods:
            return
        from ttmbench.evaluator.methods import runnable, runner

        checkpoint = TaskCheckpoint(state, scored.data.fingerprint, run.key)
        runs = runner(run, scored, settings, checkpoint, trained_alone)
        for spec, given, plugin in runnable(run, scored.spec):
            if trained_alone and not spec.trains:
                continue
            clock, name = time.perf_counter(), spec.name
            try:
                with phase(name):
                    after = self._after(scored, name, transfers) if spec.leaves_model else AFTER_SEED
                    made = runs.column(spec, given, plugin, after)
            except Exception as error:
                if isinstance(error, DivergedError):
                    error.usual = usual_rate(run.registry, run.config, scored.spec)
                failures[name] = error
                if isinstance(error, NotRestoredError):
                    return
            else:
                yield replace(made, seconds=time.perf_counter() - clock)

    def _transfers(self, scored: Scored, state: Path | None) -> TransferEvaluation | None:
        """The measurements on other tasks of models trained on this one; None if there are none to make."""
        run, task = self._run, scored.spec.task
        others = [name for name in self._others if name != task]
        if not others:
            return None
        from ttmbench.evaluator.methods import runnable

        if not any(spec.leaves_model for spec, _, _ in runnable(run, scored.spec)):
            return None
        with phase(STAGE):
            for name in others:
                if name not in self._raw:
                    self._raw[name] = self._score_elsewhere(name, False)
        digest = tensors_digest({"raw": score_tensors(scored.raw)["scores.groups"]})
        start, raw = f"{run.key}:{scored.data.fingerprint}:{digest}", {name: self._raw[name] for name in others}
        return TransferEvaluation(partial(self._score_elsewhere, is_adapted=True), raw, run.config, start, state)

    def _score_elsewhere(self, name: str, is_adapted: bool) -> TaskResult:
        """Scores another task with the model as it is now; scores of an adapted one are not cached."""
        off: Record = {"methods": [], "method_args": {}, "samples": None, "also": [], "save_adapted": None}
        config = self._run.config.model_copy(update=off)
        cache = None if is_adapted else self._run.cache
        return run_task(replace(self._run, config=config, samples=None, cache=cache), self._others[name], TTMConfig())

    def _after(self, scored: Scored, name: str, transfers: TransferEvaluation | None) -> AfterSeed:
        """What follows each trained seed of a method: its model is saved and measured elsewhere, if it is to be."""
        save = self._saver(scored, name)
        if transfers is None:
            return AFTER_SEED if save is None else AfterSeed(save)

        def do(seed: int, about: Record) -> None:
            if save is not None:
                save(seed, about)
            transfers.measure(seed, name)

        return AfterSeed(do, partial(transfers.complete, method=name))

    def _saver(self, scored: Scored, name: str) -> Callable[[int, Record], object] | None:
        """Writes the model that a method trained with a seed; None if it is not saved."""
        run, spec, model = self._run, scored.spec, self._run.model
        if not self._folders:
            return None
        finetuning = finetuned(run.model)
        if not model.savable:
            raise UsageError(f"model {run.config.model} cannot be saved (it has no save); omit --save_adapted")
        root = Path(run.config.save_adapted or "")

        def save(seed: int, about: Mapping[str, object]) -> None:
            folder = self._folders[spec.task, seed]
            if len(run.left_models) > 1:
                folder = root / name / folder.relative_to(root)
            card = {
                "model": run.config.model_name,
                "task": spec.task,
                "task_version": spec.version,
                "data_sha256": scored.data.fingerprint,
                "seed": seed,
                "ttmbench": __version__,
                "method": name,
                **about,
            }
            try:
                folder.mkdir(parents=True, exist_ok=True)
                model.save(folder)
                if finetuning is not None:
                    write_record(folder, finetuning)  # adapted or not, the weights stay those of a finetuned model
            except OSError as error:
                why = error.strerror or error
                raise TtmbenchError(f"the adapted model cannot be written to {folder}: {why}") from None
            text = json.dumps(card, indent=2) + "\n"
            write_atomically(folder / "ttmbench.json", lambda path: path.write_text(text, encoding="utf-8"))

        return save


def _take_undecided(run: Run, groups: Sequence[Group] = ()) -> Record | None:
    """Pairs that the model left undecided since it was last asked; None where it was not asked, or never says.

    Scores from the cache or another device say nothing: some of the ``groups`` are then asked about again.
    """
    scorer = run.model
    if not isinstance(scorer, PairScorer) or (taken := scorer.take_undecided()) is None:
        return None
    if not taken.of and groups:
        for group in groups[:: max(1, len(groups) // ASKED_AGAIN)][:ASKED_AGAIN]:
            scorer.score_pairs([group.images[0].open()], [group.captions[0]])
        taken = scorer.take_undecided() or taken
    return {name: value for name, value in taken._asdict().items() if value is not None} if taken.of else None


def _notify(run: Run, task: str, name: str, numbers: Sequence[Number]) -> None:
    entries = as_entries(numbers)
    tracks = entries["tracks"] if finetuned(run.model) is None else supervised_tracks(entries["tracks"])
    run.registry.notify("ttmbench_task_scored", task=task, method=name, results=entries["results"], tracks=tracks)


def _blind_notes(run: Run, result: Scored) -> list[str]:
    """How far the captions alone give the answer, measured by a scorer that never sees the image."""
    shape = result.spec.shape
    if not (isinstance(run.model, PairScorer) and run.model.blind):
        return []
    if shape.images > 1:
        return [
            f"the scorer never sees an image: in {shape} groups all images get equal scores, so text, image and group "
            "score and group match are 0 by construction; a task of this shape cannot be solved by its captions alone"
        ]
    for metric in ("text_score", "group_match"):
        number = next((one for one in result.numbers if (one.metric, one.method) == (metric, RAW)), None)
        if number is not None and number.value is not None and number.chance is not None:
            return [
                f"the scorer never sees an image, and is right in {100 * number.value:.2f} % of the groups, "
                f"{100 * (number.value - number.chance):+z.2f} points from chance: so much do the captions alone give "
                "away"
            ]
    return ["the scorer never sees an image"]


def adapted_folders(config: RunConfig, tasks: Sequence[str], new: bool) -> dict[tuple[str, int], Path]:
    """(task, seed) -> folder of ``--save_adapted``: the folder itself for one task and seed, else a folder for each.

    None of them is made but the first; empty if nothing is to be saved. UsageError if the folder cannot be made, or if
    it is to be ``new`` (no run is resumed) and is not empty.
    """
    if config.save_adapted is None:
        return {}
    folder, seeds = Path(config.save_adapted), config.run_seeds
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if new and any(folder.iterdir()):
            raise UsageError(f"--save_adapted {folder} is not empty; name a new folder")
    except OSError as error:
        raise UsageError(f"--save_adapted {folder} cannot be written to: {error.strerror or error}") from None
    if len(tasks) == 1 and len(seeds) == 1:
        return {(tasks[0], seeds[0]): folder}
    return {(task, seed): folder / task / f"seed_{seed}" for task in tasks for seed in seeds}
