"""What adaptation costs elsewhere: a model that TTM adapted to a task is scored on other tasks too (``--ttm_also``).

Another task is measured as a run measures it, whatever its kind: what is asked for is its `TaskResult`. Every
measurement is kept beside the seed's other files until the task is done: a run that was stopped does none twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.digests import SealError, load_sealed, save_sealed, tensors_digest
from ttmbench._util.files import write_atomically
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError, phase
from ttmbench.evaluator.task_result import Scored, TaskResult, TransferResult
from ttmbench.results.labels import RAW, TTM, key_of, numbers_in, seed_std_key, stderr_key
from ttmbench.results.summary import MethodScores, Summary, difference_of, differences, summarise
from ttmbench.stats import seed_std
from ttmbench.types import Scores

Score = Callable[[TaskFile, bool], TaskResult]
"""Scores a task with the model as it is at the moment; the flag says that it is adapted: no kept scores are of it."""
STAGE = "ttm_also"


@dataclass(frozen=True)
class Measurement:
    """An adapted model on another task.

    Attributes:
        numbers: results, intervals, chance and ties under the filter ``none``, as JSON values.
        scores: None of a kind of task that has no score arrays of groups.
        seconds: wall time.
    """

    numbers: dict[str, dict[str, Any]]
    scores: Scores | None
    seconds: float


@dataclass
class Elsewhere:
    """The other tasks of a run.

    Attributes:
        tasks: by name.
        score: see `Score`.
        config: the run.
        key: of the run; what is kept is for it alone.
    """

    tasks: Mapping[str, TaskFile]
    score: Score
    config: RunConfig
    key: str = ""
    _raw: dict[str, TaskResult] = field(default_factory=dict)

    def raw(self, name: str) -> TaskResult:
        """Another task with the model as it came, scored once a run; asked for while the model is as it came."""
        if name not in self._raw:
            self._raw[name] = self.score(self.tasks[name], False)
        return self._raw[name]

    def beside(self, task: str, data: str, raw: Scores, state: Path | None) -> Beside:
        """The measurements beside one task that TTM adapts to; the model is still as it came.

        Args:
            task: the task.
            data: fingerprint of its data.
            raw: its scores.
            state: folder for what a stopped run goes on from; None to keep nothing.

        Returns:
            Measurements, none made yet; the other tasks have been scored once.
        """
        with phase(STAGE):
            others = {name: self.raw(name) for name in self.tasks if name != task}
        start = f"{self.key}:{data}:{tensors_digest({'raw': torch.from_numpy(np.array(raw.groups))})}"
        return Beside(self, others, start, None if state is None else state / STAGE)


class Beside:
    """The measurements beside one task: for every seed each other task, kept as soon as it is made."""

    def __init__(self, run: Elsewhere, others: Mapping[str, TaskResult], start: str, folder: Path | None) -> None:
        self._run, self.others, self._start, self._folder = run, others, start, folder
        self._made: dict[tuple[int, str], Measurement] = {}

    def measure(self, seed: int) -> None:
        """Scores every other task with the model as a seed has adapted it, but those that a stopped run has done."""
        for name in self.others:
            if self._known(seed, name) is None:
                with phase(STAGE):
                    found = self._run.score(self._run.tasks[name], True)
                numbers, seconds = found.summary, math.fsum(found.seconds.values())
                kept = {one: dict(getattr(numbers, one)) for one in ("results", "ci", "chance", "ties")}
                scores = found.body.columns[0].scores[0] if isinstance(found.body, Scored) else None
                self._made[seed, name] = Measurement(kept, scores, seconds)
                self._keep(seed, name)

    def complete(self, seed: int) -> bool:
        """Whether every other task was measured with this seed."""
        return all(self._known(seed, name) is not None for name in self.others)

    def outcomes(self, seeds: Sequence[int]) -> dict[str, TransferResult]:
        """Every other task over the seeds, all of which are complete."""
        found = {}
        for name, raw in self.others.items():
            made = [one for one in (self._known(seed, name) for seed in seeds) if one is not None]
            assert len(made) == len(seeds), "every seed is complete"
            scores = [one.scores for one in made if one.scores is not None]
            whole = len(scores) == len(made) and isinstance(raw.body, Scored)
            outcome, gains = with_adapted_scores(raw, scores, self._run.config) if whole else _with_numbers(raw, made)
            found[name] = TransferResult(outcome, list(seeds), gains, math.fsum(one.seconds for one in made))
        return found

    def _known(self, seed: int, name: str) -> Measurement | None:
        """A measurement, of this process or of one that was stopped; None if it has to be made."""
        if (seed, name) not in self._made and self._folder is not None:
            path = self._path(self._folder, seed, name)
            try:
                tensors, about = load_sealed(path)
            except FileNotFoundError:
                return None
            except (SealError, OSError) as error:
                warn(f"{path} cannot be used ({error}); task {name} is measured again")
                return None
            if about.get("start") != self._start_of(name) or about.get("file") != path.name:
                return None
            self._made[seed, name] = Measurement(about["numbers"], _scores_of(tensors), about["seconds"])
        return self._made.get((seed, name))

    def _keep(self, seed: int, name: str) -> None:
        if self._folder is None:
            return
        path, made = self._path(self._folder, seed, name), self._made[seed, name]
        about = {
            "start": self._start_of(name),
            "file": path.name,
            "numbers": made.numbers,
            "seconds": made.seconds,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda target: save_sealed(target, _tensors(made.scores), about))
        except (OSError, TtmbenchError) as error:
            warn(f"{error}; if the run is stopped, task {name} is measured again")
            self._folder = None

    def _start_of(self, name: str) -> str:
        return f"{self._start}:{self.others[name].data.fingerprint}"

    @staticmethod
    def _path(folder: Path, seed: int, name: str) -> Path:
        return folder / f"seed_{seed}" / f"{name}.safetensors"


def elsewhere_config(config: RunConfig) -> RunConfig:
    """The run without its test-time stage: what is measured elsewhere is the model as it is at the moment."""
    off = {"ttm": False, "simple_match": False, "oracle": False, "ttm_also": [], "save_adapted": None, "samples": None}
    return config.model_copy(update=off)


def with_adapted_scores(
    raw: TaskResult, adapted: Sequence[Scores], config: RunConfig
) -> tuple[TaskResult, dict[str, dict[str, Any]]]:
    """Numbers of score arrays of each seed: as those of every task, and differences group by group."""
    before = raw.scored.columns[0]
    resampling = config.bootstrap_iters, config.seed, config.interval
    body = Scored([before, MethodScores(TTM, list(adapted))])
    summary = summarise(body.scores, raw.metrics, *resampling, raw.data.clusters)
    gains = differences(raw.metrics, before.scores[0], adapted, raw.data.clusters, config.bootstrap_iters, config.seed)
    return replace(raw, body=body, summary=summary), gains


def _with_numbers(raw: TaskResult, made: Sequence[Measurement]) -> tuple[TaskResult, dict[str, dict[str, Any]]]:
    """Numbers of a kind of task without score arrays: means over seeds; what only groups could tell is unknown."""
    own = raw.summary
    summary = Summary(dict(own.results), dict(own.ci), dict(own.chance), dict(own.ties))
    gains = {}
    for metric, name in numbers_in(own.results):
        if name != RAW:
            continue
        before, key = key_of(metric, RAW), key_of(metric, TTM)
        each = [one.numbers["results"].get(before) for one in made]
        known = [float(one) for one in each if one is not None]
        whole = len(known) == len(each)
        summary.results[key] = float(np.mean(known)) if whole else None
        summary.results[stderr_key(metric, TTM)] = summary.ci[key] = None
        summary.results[seed_std_key(metric, TTM)] = seed_std(np.array(known)) if whole else None
        ties = [one.numbers["ties"].get(before) for one in made]
        summary.ties[key] = None if None in ties else float(np.mean([tie or 0 for tie in ties]))
        gains[metric] = difference_of(own.results[before], each)
    return replace(raw, summary=summary), {name: one for name, one in gains.items() if one is not None}


def _tensors(scores: Scores | None) -> dict[str, torch.Tensor]:
    arrays = {} if scores is None else {"groups": scores.groups, "all_pairs": scores.all_pairs}
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items() if array is not None}


def _scores_of(tensors: Mapping[str, torch.Tensor]) -> Scores | None:
    if "groups" not in tensors:
        return None
    pairs = tensors.get("all_pairs")
    return Scores(tensors["groups"].numpy(), None if pairs is None else pairs.numpy())
