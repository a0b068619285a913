"""Transfer evaluation (``--ttm_also``): scores a model that TTM, or another method, trained on one task on others too.

Other tasks are measured as a run measures them, whatever their kind. Each measurement is stored with the seed's other
files until the task is done, so that a resumed run repeats none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from ttmbench._util.digests import tensors_digest
from ttmbench._util.third_party_errors import phase
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.evaluator.task_result import Scored, TaskResult, TransferResult
from ttmbench.results.labels import RAW, TTM, key_of, numbers_in, seed_std_key, stderr_key
from ttmbench.results.summary import MethodScores, Summary, difference_of, differences
from ttmbench.stats import seed_std
from ttmbench.ttm.checkpoint import read_state, score_tensors, scores_of, write_state
from ttmbench.types import Record, Scores

Score = Callable[[TaskFile, bool], TaskResult]
"""Scores a task with the model in its current state; the flag says that it is adapted (no cached scores)."""
Gains = Mapping[str, Record]
"""Metric -> its difference, as results documents have it."""
STAGE = "ttm_also"


@dataclass(frozen=True)
class Measurement:
    """An adapted model on another task.

    Attributes:
        results: numbers of the filter ``none``; ties likewise.
        ties: see above.
        scores: None for a kind of task that has no score arrays of groups.
        seconds: wall time.
    """

    results: dict[str, float | None]
    ties: dict[str, float | None]
    scores: Scores | None
    seconds: float


@dataclass
class TransferTasks:
    """The other tasks of a run.

    Attributes:
        tasks: by name.
        score: see `Score`.
        config: the run.
        key: of the run; stored measurements are for it alone.
    """

    tasks: Mapping[str, TaskFile]
    score: Score
    config: RunConfig
    key: str = ""
    _raw: dict[str, TaskResult] = field(default_factory=dict)

    def raw(self, name: str) -> TaskResult:
        """Another task with the original model, scored once a run; to be called while the model is unadapted."""
        if name not in self._raw:
            self._raw[name] = self.score(self.tasks[name], False)
        return self._raw[name]

    def evaluation(self, task: str, data: str, raw: Scores, state: Path | None) -> TransferEvaluation:
        """The measurements for one task that the model is trained on; it is still unadapted.

        Args:
            task: the task.
            data: fingerprint of its data.
            raw: its scores.
            state: folder for what a stopped run resumes from; None to store nothing.

        Returns:
            Measurements, none made yet; the other tasks have been scored once.
        """
        with phase(STAGE):
            others = {name: self.raw(name) for name in self.tasks if name != task}
        start = f"{self.key}:{data}:{tensors_digest({'raw': score_tensors(raw)['scores.groups']})}"
        return TransferEvaluation(self, others, start, None if state is None else state / STAGE)


class TransferEvaluation:
    """The measurements for one task: for every method and seed each other task, stored as soon as it is made."""

    def __init__(self, run: TransferTasks, others: Mapping[str, TaskResult], start: str, folder: Path | None) -> None:
        self._run, self.others, self._start, self._folder = run, others, start, folder
        self._made: dict[tuple[str, int, str], Measurement] = {}

    def measure(self, seed: int, method: str = TTM) -> None:
        """Scores every other task that is not measured yet with the model as a seed of a method has trained it."""
        for name in self.others:
            if self._known(method, seed, name) is None:
                with phase(STAGE):
                    result = self._run.score(self._run.tasks[name], True)
                scores = result.raw if isinstance(result, Scored) else None
                seconds, summary = math.fsum(result.seconds.values()), result.summary
                self._made[method, seed, name] = Measurement(summary.results, summary.ties, scores, seconds)
                self._store(method, seed, name)

    def complete(self, seed: int, method: str = TTM) -> bool:
        """Whether every other task was measured with this seed of a method."""
        return all(self._known(method, seed, name) is not None for name in self.others)

    def outcomes(self, seeds: Mapping[str, Sequence[int]]) -> dict[str, TransferResult]:
        """Every other task over the seeds of each method, all of which are complete."""
        outcomes = {}
        for name, raw in self.others.items():
            found = {method: [self._known(method, seed, name) for seed in of] for method, of in seeds.items()}
            made = {method: [known for known in each if known is not None] for method, each in found.items()}
            assert all(len(made[method]) == len(of) for method, of in seeds.items()), "every seed is complete"
            scores = {method: [one.scores for one in each if one.scores is not None] for method, each in made.items()}
            result: TaskResult
            if isinstance(raw, Scored) and all(len(scores[method]) == len(made[method]) for method in made):
                result, gains = with_adapted_scores(raw, scores, self._run.config)
            else:
                result, gains = _with_numbers(raw, made)
            seconds = math.fsum(one.seconds for each in made.values() for one in each)
            outcomes[name] = TransferResult(result, seeds, gains, seconds)
        return outcomes

    def _known(self, method: str, seed: int, name: str) -> Measurement | None:
        """A measurement of this process or of a stopped run; None if it has to be made."""
        if (method, seed, name) not in self._made and self._folder is not None:
            path = self._path(self._folder, method, seed, name)
            stored = read_state(path, f"task {name} is measured again")
            if stored is not None and stored[1].get("of") == self._identity(path, method, name):
                tensors, about = stored
                scores = scores_of(tensors) if tensors else None
                made = Measurement(about["results"], about["ties"], scores, about["seconds"])
                self._made[method, seed, name] = made
        return self._made.get((method, seed, name))

    def _store(self, method: str, seed: int, name: str) -> None:
        if self._folder is not None:
            path, made = self._path(self._folder, method, seed, name), self._made[method, seed, name]
            about = {"of": self._identity(path, method, name), **asdict(replace(made, scores=None))}
            tensors = {} if made.scores is None else score_tensors(made.scores)
            if not write_state(path, tensors, about, f"if the run is stopped, task {name} is measured again"):
                self._folder = None

    def _identity(self, path: Path, method: str, name: str) -> list[str]:
        of_method = [] if method == TTM else [method]
        return [path.name, self._start, self.others[name].data.fingerprint, *of_method]

    @staticmethod
    def _path(folder: Path, method: str, seed: int, name: str) -> Path:
        of_method = folder if method == TTM else folder / method
        return of_method / f"seed_{seed}" / f"{name}.safetensors"


def unadapted_config(config: RunConfig) -> RunConfig:
    """The run without its test-time stage: other tasks are measured with the model in its current state."""
    off = {"ttm": False, "simple_match": False, "oracle": False, "methods": [], "method_args": {}}
    return config.model_copy(update={**off, "ttm_also": [], "save_adapted": None, "samples": None})


def gains_of(raw: Scored, adapted: Sequence[Scores], config: RunConfig) -> Gains:
    """Every metric after adaptation minus before it, group by group."""
    return differences(raw.metrics, raw.raw, adapted, raw.data.clusters, config.bootstrap_iters, config.seed)


def with_adapted_scores(
    raw: Scored, adapted: Mapping[str, Sequence[Scores]], config: RunConfig
) -> tuple[Scored, dict[str, Gains]]:
    """Numbers of score arrays of each method: as those of every task, and differences group by group."""
    columns = [raw.columns[0], *(MethodScores(method, list(scores)) for method, scores in adapted.items())]
    whole = replace(raw, columns=columns).summarised((config.bootstrap_iters, config.seed, config.interval))
    return whole, {method: gains_of(raw, scores, config) for method, scores in adapted.items()}


def _with_numbers(raw: TaskResult, made: Mapping[str, Sequence[Measurement]]) -> tuple[TaskResult, dict[str, Gains]]:
    """Numbers of a kind of task without score arrays: means over seeds, without intervals over groups."""
    before = raw.summary
    summary = Summary(dict(before.results), dict(before.ci), dict(before.chance), dict(before.ties))
    gains = {method: _gains_in_numbers(before, summary, method, each) for method, each in made.items()}
    return replace(raw, summary=summary), gains


def _gains_in_numbers(before: Summary, summary: Summary, method: str, made: Sequence[Measurement]) -> Gains:
    """Adds a method's numbers to a summary; returns its differences."""
    gains = {}
    for metric, name in numbers_in(before.results):
        if name != RAW:
            continue
        raw_key, key = key_of(metric, RAW), key_of(metric, method)
        by_seed = [measurement.results.get(raw_key) for measurement in made]
        known = [value for value in by_seed if value is not None]
        is_known = len(known) == len(by_seed)
        summary.results[key] = float(np.mean(known)) if is_known else None
        summary.results[stderr_key(metric, method)] = summary.ci[key] = None
        summary.results[seed_std_key(metric, method)] = seed_std(np.array(known)) if is_known else None
        ties = [measurement.ties.get(raw_key) for measurement in made]
        summary.ties[key] = None if None in ties else float(np.mean([tie or 0 for tie in ties]))
        gains[metric] = difference_of(before.results[raw_key], by_seed)
    return {metric: gain for metric, gain in gains.items() if gain is not None}
