"""Checkpoints of training, from which an interrupted run resumes: TTM, its variants, other methods and finetuning.

Each method and seed has one file: its finished iterations, the training state after the last turn, and, once the seed
is finished, its final scores. The file has a digest; one that is damaged or of another run is never used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.file_io import load_sealed, replace_sealed, separated, tensors_digest
from ttmbench.methods.training import Cost, Iteration, TrainingState
from ttmbench.types import Record, Scores

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, Any]
Left = Mapping[str, tuple[Tensors, Metadata]]
"""What is made of a trained model while it is there, by name: tensors and JSON values, stored with the seed."""
AfterSeed = Callable[[int, Record], Left | None]
"""Makes it, of a seed and the record of its run."""
_FORMAT = 5  # version of the files; other versions are not read
_MAX_SAVING = 0.1  # largest fraction of the time spent on writing files
_PARTS = ("model", "random", "extra")
_STEP_ARRAYS = ("captions", "selected", "tie")
_STEP_VALUES = ("iteration", "threshold", "loss", "learning_rate", "seconds")


@dataclass
class SeedRun:
    """What a method has done with one seed, in this process and in those that were stopped."""

    # in the task's order once it is finished; before, in the shuffled order, of groups that had a turn
    scores: Scores | None = None
    steps: list[Iteration] = field(default_factory=list)  # of a method that trains the whole model
    is_finished: bool = False
    turns: int = 0  # that are over
    updates: int = 0  # turns in which parameters were trained
    losses: list[float] = field(default_factory=list)  # of the turns that report one
    notes: list[str] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0  # wall time
    trained: Mapping[str, int] = field(default_factory=dict)  # name of a parameter -> how many numbers it has
    left: Left = field(default_factory=dict)  # what was made of the trained model


@dataclass
class SeedCheckpoint:
    """The checkpoint file of one method and seed; ``start`` says what it is valid for. Stored nowhere without a path.

    ``warn`` is called if it cannot be written, and the run continues without checkpoints.
    """

    path: Path | None
    start: str
    warn: Callable[[str], None]
    _writer: threading.Thread | None = None
    _saved: float = field(default_factory=time.monotonic)
    _took: float = 0.0  # seconds of writing the last state

    def read(self) -> tuple[SeedRun, TrainingState | None]:
        """An earlier run of the seed, and its state unless it had finished; a new one if its file cannot be used."""
        if self.path is not None and self.path.exists():
            try:
                return self._read(self.path)
            except Exception as error:
                warn(f"cannot resume from {self.path}: {error}; its seed starts again")
        return SeedRun(), None

    def _read(self, path: Path) -> tuple[SeedRun, TrainingState | None]:
        tensors, about = load_sealed(path)
        if about.get("start") != self.start:
            raise ValueError("it was written for another method, seed, scores, data or settings, or by another version")
        run = SeedRun(**{**about["run"], "cost": Cost(about["run"]["cost"])})
        run.scores = scores_of(tensors) if "scores.groups" in tensors else None
        for values in about["steps"]:
            of_step = _inside(tensors, f"step.{values['iteration']}.")
            arrays = {name: of_step[name].numpy() for name in _STEP_ARRAYS}
            known: Metadata = {**values, **arrays, "loss": tuple(values["loss"])}
            run.steps.append(Iteration(**known, scores=scores_of(of_step)))
        if run.is_finished:
            left = enumerate(about["left"].items())
            run.left = {name: (_inside(tensors, f"left.{number}."), values) for number, (name, values) in left}
            return run, None
        optimizers: list[Metadata] = [{"state": {}, "param_groups": groups} for groups in about["optimizers"]]
        for key, tensor in _inside(tensors, "optimizer.").items():
            number, parameter, name = key.split(".", 2)
            optimizers[int(number)]["state"].setdefault(int(parameter), {})[name] = tensor
        parts = {part: _inside(tensors, f"{part}.") for part in _PARTS}
        return run, TrainingState(run.turns, optimizers=optimizers, steps=run.steps, **parts)

    def is_due(self, seconds: float = 0.0) -> bool:
        """Whether the last state is this many seconds old, and writing would take at most a tenth of the time."""
        return time.monotonic() - self._saved >= max(seconds, self._took / _MAX_SAVING)

    def keep(self, run: SeedRun, state: TrainingState | None = None) -> None:
        """Replaces the file by the run as it is now, with the state after its last turn unless it is finished.

        Weights on an accelerator are copied at once and written in the background, since a file of some hundred
        megabytes takes seconds. Until the new file is complete, the previous one is valid.
        """
        self.finish_writing()
        if self.path is None:
            return
        began, path, groups = time.monotonic(), self.path, []
        tensors = {} if run.scores is None else score_tensors(run.scores)
        for step in run.steps:
            of_step = {name: torch.from_numpy(np.array(getattr(step, name))) for name in _STEP_ARRAYS}
            of_step |= score_tensors(step.scores)
            tensors |= {f"step.{step.iteration}.{name}": tensor for name, tensor in of_step.items()}
        if state is not None:
            tensors |= {f"{part}.{name}": of for part in _PARTS for name, of in getattr(state, part).items()}
            groups = [optimizer.get("param_groups") for optimizer in state.optimizers]
            for number, optimizer in enumerate(state.optimizers):
                for parameter, values in optimizer["state"].items():
                    known = {name: torch.as_tensor(value) for name, value in values.items() if value is not None}
                    tensors |= {f"optimizer.{number}.{parameter}.{name}": value for name, value in known.items()}
        for number, (made, _) in enumerate(run.left.values()):
            tensors |= {f"left.{number}.{name}": of for name, of in made.items()}
        about = {name: deepcopy(of) for name, of in vars(run).items() if name not in ("scores", "steps", "left")}
        left = {name: values for name, (_, values) in run.left.items()}
        steps = [{name: getattr(step, name) for name in _STEP_VALUES} for step in run.steps]
        card = {"run": about, "steps": steps, "left": left, "optimizers": groups, "start": self.start}
        apart = separated(tensors)

        def put() -> None:
            why = replace_sealed(path, apart, card)
            if why is not None:
                self.warn(why)
                self.path = None

        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            self._writer = threading.Thread(target=put, name=f"writes {path.name}")
            self._writer.start()
        else:
            put()
        self._saved = time.monotonic()
        self._took = self._saved - began

    def finish_writing(self) -> None:
        """Waits until the last state is on the disk."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None


def _inside(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass
class TaskCheckpoint:
    """Checkpoints of one task, valid for its data and run; stores nothing without a folder."""

    folder: Path | None = None
    data: str = ""  # digest
    run: str = ""  # key of the run
    _warned: bool = False

    def seed(self, method: str, seed: int, raw: Scores, more: Tensors | None = None) -> SeedCheckpoint:
        """The checkpoint of one method and seed, valid for the raw scores and other given inputs."""
        if self.folder is None or self._warned:
            return SeedCheckpoint(None, "", self._warn)
        digest = tensors_digest(score_tensors(raw) | (more or {}))
        start = f"{_FORMAT}:{method}:{seed}:{self.run}:{self.data}:{digest}"  # a file that was moved is not used
        return SeedCheckpoint(self.folder / method / f"seed_{seed}.safetensors", start, self._warn)

    def _warn(self, why: str) -> None:
        if not self._warned:
            warn(f"{why}; the run continues, but an interrupted run would resume from an earlier point")
        self._warned = True


_ARRAYS = ("groups", "all_pairs", "caption_pairs")


def score_tensors(scores: Scores) -> Tensors:
    """Converts score arrays to the tensors of a file; `scores_of` reads them."""
    arrays = {name: getattr(scores, name) for name in _ARRAYS}
    return {f"scores.{name}": torch.from_numpy(np.array(of)) for name, of in arrays.items() if of is not None}


def scores_of(tensors: Tensors) -> Scores:
    """The score arrays that `score_tensors` wrote."""
    known = (tensors.get(f"scores.{name}") for name in _ARRAYS)
    return Scores(*(None if tensor is None else tensor.numpy() for tensor in known))  # type: ignore[arg-type]
