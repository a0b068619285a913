"""Checkpoints of training, from which an interrupted run resumes: TTM, its variants, other methods and finetuning.

The folder of a method and seed has a file for each finished iteration of TTM, the training state after the last turn,
and, once the seed is finished, its final scores. Every file has a digest; a file that does not match is never used.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.file_io import Unreadable, load_sealed, replace_sealed, separated, tensors_digest
from ttmbench.methods.training import Iteration, TrainingState
from ttmbench.types import Record, Scores

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, Any]
Left = Mapping[str, tuple[Tensors, Metadata]]
"""What is made of a trained model while it is there, by name: tensors and JSON values, stored with the seed."""
AfterSeed = Callable[[int, Record], Left | None]
"""Makes it, of a seed and the record of its run."""
TRAINING, _FINAL, _STEP = "training.safetensors", "final.safetensors", "iteration_{}.safetensors"
_FORMAT = 4  # version of the files; other versions are not read
_MAX_SAVING = 0.1  # largest fraction of the time spent on writing files
_PARTS = ("model", "random", "extra")
_STEP_ARRAYS = ("captions", "selected", "tie")
_STEP_VALUES = ("iteration", "threshold", "loss", "learning_rate", "seconds")


@dataclass(frozen=True)
class SeedProgress:
    """Progress of a seed; nothing by default."""

    steps: Sequence[Iteration] = ()  # that are finished, of a method that has iterations
    state: TrainingState | None = None  # after the last turn, while the seed runs
    # final ones of a finished seed; while it runs, in the shuffled order, of groups that had a turn
    scores: Scores | None = None
    about: Metadata = field(default_factory=dict)  # other stored values
    left: Left = field(default_factory=dict)  # of a finished seed
    is_finished: bool = False


@dataclass
class SeedCheckpoint:
    """Checkpoint files of one method and seed that start from ``start`` (a digest); stores nothing without a folder.

    Files with another start are removed. ``warn`` is called if files cannot be written, and the run continues without
    checkpoints. If they cannot be read, the seed starts again.
    """

    folder: Path | None
    start: str
    warn: Callable[[str], None]
    _writer: threading.Thread | None = None
    _saved: float = field(default_factory=time.monotonic)
    _took: float = 0.0  # seconds of writing the last state

    def read(self) -> SeedProgress:
        """Progress of an earlier run; empty if a file is damaged or has another start."""
        if self.folder is None or not self.folder.is_dir():
            return SeedProgress()
        try:
            return self._read(self.folder)
        except FileNotFoundError:
            pass  # stopped before its first turn was over
        except Exception as error:
            warn(f"cannot resume from {self.folder}: {error}; its seed starts again")
        self.remove()
        return SeedProgress()

    def is_due(self, seconds: float = 0.0) -> bool:
        """Whether the last state is this many seconds old, and writing would take at most a tenth of the time."""
        return time.monotonic() - self._saved >= max(seconds, self._took / _MAX_SAVING)

    def keep(self, state: TrainingState, about: Metadata | None = None, scores: Scores | None = None) -> None:
        """Stores the state after a turn with the scores of the groups that had one; an iteration has a separate file.

        Weights on an accelerator are copied at once and written in the background, since a file of some hundred
        megabytes takes seconds. Until the new file is complete, the previous one is valid.
        """
        began = time.monotonic()
        for step in state.steps[-1:]:
            tensors = {name: torch.from_numpy(np.array(getattr(step, name))) for name in _STEP_ARRAYS}
            values = {name: getattr(step, name) for name in _STEP_VALUES}
            self._write(_STEP.format(step.iteration), {**tensors, **score_tensors(step.scores)}, values)
        tensors = {} if scores is None else score_tensors(scores)
        for part in _PARTS:
            tensors |= {f"{part}.{name}": tensor for name, tensor in getattr(state, part).items()}
        for number, optimizer in enumerate(state.optimizers):
            for parameter, values in optimizer["state"].items():
                known = {name: torch.as_tensor(value) for name, value in values.items() if value is not None}
                tensors |= {f"optimizer.{number}.{parameter}.{name}": value for name, value in known.items()}
        groups = [optimizer.get("param_groups") for optimizer in state.optimizers]
        turns = {"turns": state.turns, "steps": len(state.steps), "optimizers": groups}
        self._write(TRAINING, tensors, {**turns, "about": about or {}})
        self._saved = time.monotonic()
        self._took = self._saved - began

    def finish(self, final: Scores, steps: int, about: Metadata | None = None, left: Left | None = None) -> None:
        """Stores the scores of a finished seed and what is left of it, and removes the training state."""
        self.finish_writing()
        if self.folder is None:
            return
        left, tensors = left or {}, score_tensors(final)
        for number, (of_one, _) in enumerate(left.values()):
            tensors |= {f"left.{number}.{name}": tensor for name, tensor in of_one.items()}
        more = {"left": {name: values for name, (_, values) in left.items()}}
        self._write(_FINAL, tensors, {"steps": steps, "about": about or {}, **more})
        (self.folder / TRAINING).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes all files."""
        self.finish_writing()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, folder: Path) -> SeedProgress:
        if (folder / _FINAL).exists():
            tensors, about = self._load(folder / _FINAL)
            left = {}
            for index, (kind, values) in enumerate(about["left"].items()):
                start = f"left.{index}."
                left[kind] = (
                    {key.removeprefix(start): of for key, of in tensors.items() if key.startswith(start)},
                    values,
                )
            steps = self._steps(folder, about["steps"])
            return SeedProgress(steps, None, scores_of(tensors), about["about"], left, is_finished=True)
        tensors, about = self._load(folder / TRAINING)
        steps = self._steps(folder, about["steps"])
        parts: dict[str, Tensors] = {name: {} for name in _PARTS}
        optimizers: list[Metadata] = [{"state": {}, "param_groups": groups} for groups in about["optimizers"]]
        for key, tensor in tensors.items():
            part, _, name = key.partition(".")
            if part == "optimizer":
                number, parameter, name = name.split(".", 2)
                optimizers[int(number)]["state"].setdefault(int(parameter), {})[name] = tensor
            elif part in parts:
                parts[part][name] = tensor
        state = TrainingState(about["turns"], optimizers=optimizers, steps=steps, **parts)
        scores = scores_of(tensors) if "scores.groups" in tensors else None
        return SeedProgress(steps, state, scores, about["about"])

    def _steps(self, folder: Path, count: int) -> tuple[Iteration, ...]:
        steps = []
        for iteration in range(1, count + 1):
            tensors, about = self._load(folder / _STEP.format(iteration))
            values: Metadata = {name: about[name] for name in _STEP_VALUES} | {"loss": tuple(about["loss"])}
            values |= {name: tensors[name].numpy() for name in _STEP_ARRAYS}
            steps.append(Iteration(**values, scores=scores_of(tensors)))
        return tuple(steps)

    def _write(self, name: str, tensors: Tensors, about: Metadata) -> None:
        self.finish_writing()
        if self.folder is None:
            return
        path, apart = self.folder / name, separated(tensors)
        # With its seed and method, so that a file that was moved is not used.
        card = {**about, "file": "/".join(path.parts[-3:]), "start": self.start, "format": _FORMAT}

        def put() -> None:
            why = replace_sealed(path, apart, card)
            if why is not None:
                self.warn(why)
                self.folder = None

        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            self._writer = threading.Thread(target=put, name=f"writes {name}")
            self._writer.start()
        else:
            put()

    def finish_writing(self) -> None:
        """Waits until the last state is on the disk."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _load(self, path: Path) -> tuple[Tensors, Metadata]:
        try:
            tensors, about = load_sealed(path)
        except Unreadable as error:
            raise ValueError(f"{path.name} is damaged: {error}") from None
        if about.get("file") != "/".join(path.parts[-3:]):
            raise ValueError(f"{path.name} was written as {about.get('file')}")
        if about["start"] != self.start:
            raise ValueError("it was written for other scores, data or settings")
        if about.get("format") != _FORMAT:
            raise ValueError("it was written by another version")
        return tensors, about


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
        start = f"{self.run}:{self.data}:{tensors_digest(score_tensors(raw) | (more or {}))}"
        return SeedCheckpoint(self.folder / method / f"seed_{seed}", start, self._warn)

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
