"""Transfer evaluation (``--ttm_also``): scores a model that TTM, or another method, trained on one task on others too.

Other tasks are measured as a run measures them, whatever their kind. Each measurement is stored with the seed's other
files until the task is done, so that a resumed run repeats none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from ttmbench._util.third_party_errors import phase
from ttmbench.config import RunConfig
from ttmbench.evaluator.task_result import Scored, TaskResult, TransferResult
from ttmbench.results.labels import RAW, key_of, numbers_in, seed_std_key, stderr_key
from ttmbench.results.summary import MethodScores, Summary, difference_of, differences
from ttmbench.stats import seed_std
from ttmbench.ttm.checkpoint import Metadata, Tensors, read_state, score_tensors, scores_of, write_state
from ttmbench.types import Record, Scores

Gains = Mapping[str, Record]
"""Metric -> its difference, as results documents have it."""
Measurement = tuple[Tensors, Metadata]
"""Score arrays of an adapted model on another task, if it has any; its ``results``, ``ties`` and ``seconds``."""
STAGE = "ttm_also"


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
            tensors = {}
            if isinstance(result, Scored):
                tensors = score_tensors(result.raw)
                if result.raw.caption_pairs is not None:
                    tensors["caption_pairs"] = torch.from_numpy(result.raw.caption_pairs)
            seconds, summary = math.fsum(result.seconds.values()), result.summary
            about = {"results": summary.results, "ties": summary.ties, "seconds": seconds}
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
                scores = {method: [_scores_of(tensors) for tensors, _ in each] for method, each in made.items()}
                columns = [raw.columns[0], *(MethodScores(method, each) for method, each in scores.items())]
                how = self.config.bootstrap_iters, self.config.seed, self.config.interval
                result = replace(raw, columns=columns).summarised(how)
                gains = {method: gains_of(raw, each, self.config) for method, each in scores.items()}
            else:  # means over seeds, without intervals over groups
                before = raw.summary
                summary = Summary(dict(before.results), dict(before.ci), dict(before.chance), dict(before.ties))
                gains = {method: _gains_in_numbers(before, summary, method, each) for method, each in made.items()}
                result = replace(raw, summary=summary)
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


def _scores_of(tensors: Tensors) -> Scores:
    pairs = tensors.get("caption_pairs")
    return replace(scores_of(tensors), caption_pairs=None if pairs is None else pairs.numpy())


def gains_of(raw: Scored, adapted: Sequence[Scores], config: RunConfig) -> Gains:
    """Every metric after adaptation minus before it, group by group."""
    return differences(raw.metrics, raw.raw, adapted, raw.data.clusters, config.bootstrap_iters, config.seed)


def _gains_in_numbers(before: Summary, summary: Summary, method: str, made: Sequence[Measurement]) -> Gains:
    """Adds a method's numbers to a summary; returns its differences."""
    gains = {}
    for metric, name in numbers_in(before.results):
        if name != RAW:
            continue
        raw_key, key = key_of(metric, RAW), key_of(metric, method)
        by_seed = [about["results"].get(raw_key) for _, about in made]
        known = [value for value in by_seed if value is not None]
        is_known = len(known) == len(by_seed)
        summary.results[key] = float(np.mean(known)) if is_known else None
        summary.results[stderr_key(metric, method)] = summary.ci[key] = None
        summary.results[seed_std_key(metric, method)] = seed_std(np.array(known)) if is_known else None
        ties = [about["ties"].get(raw_key) for _, about in made]
        summary.ties[key] = None if None in ties else float(np.mean([tie or 0 for tie in ties]))
        gains[metric] = difference_of(before.results[raw_key], by_seed)
    return {metric: gain for metric, gain in gains.items() if gain is not None}
