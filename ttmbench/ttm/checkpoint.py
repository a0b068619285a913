"""Checkpoints of the test-time stage, so that a stopped run resumes.

A folder for every variant and seed holds each finished iteration, the state of training after the last of them, and,
once the seed is done, its final scores. Every file has a digest; one that does not match is never used.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.digests import SealError, load_sealed, save_sealed, separated, tensors_digest
from ttmbench._util.files import write_atomically
from ttmbench.errors import TtmbenchError
from ttmbench.ttm.trainer import Step, TrainingState
from ttmbench.types import Scores

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, Any]
_TRAINING, _FINAL = "training.safetensors", "final.safetensors"
_TEACHER = "teacher."
_STEP_ARRAYS = ("captions", "selected", "tie")
_STEP_VALUES = ("iteration", "threshold", "loss", "learning_rate", "seconds")


@dataclass(frozen=True)
class SeedProgress:
    """Progress of a seed."""

    steps: tuple[Step, ...] = ()  # finished iterations, in order
    state: TrainingState | None = None  # of training after the last of them, while the seed runs
    final: Scores | None = None  # scores that the seed ended with; None while it runs


class SeedCheckpoint:
    """Files of one variant and seed, which begin from ``start`` (a digest); without a folder nothing is stored.

    Files of another start are removed. ``warn`` is called if files cannot be written; the run goes on without them.
    """

    def __init__(self, folder: Path | None, start: str, warn: Callable[[str], None]) -> None:
        self._folder, self._start, self._warn = folder, start, warn
        self._writer: threading.Thread | None = None

    def read(self) -> SeedProgress:
        """Progress of an earlier run; the beginning, if anything there is damaged or of another start."""
        if self._folder is None or not self._folder.is_dir():
            return SeedProgress()
        try:
            return self._read(self._folder)
        except FileNotFoundError:
            pass  # stopped before its first iteration was over
        except Exception as error:
            warn(f"cannot resume from {self._folder}: {error}; its seed starts again")
        shutil.rmtree(self._folder, ignore_errors=True)
        return SeedProgress()

    def keep(self, step: Step, state: TrainingState) -> None:
        """Stores a finished iteration and the state of training after it.

        Weights of an accelerator are copied at once and written while training goes on, since a file of some hundred
        megabytes takes seconds. Until it is complete, the one before it counts.
        """
        tensors = {name: torch.from_numpy(np.array(getattr(step, name))) for name in _STEP_ARRAYS}
        about = {name: getattr(step, name) for name in _STEP_VALUES}
        self._write(_step_name(step.iteration), {**tensors, **score_tensors(step.scores)}, about)
        tensors = training_tensors(state.model, state.optimizer, state.random)
        tensors |= {f"{_TEACHER}{name}": tensor for name, tensor in (state.teacher or {}).items()}
        self._write(_TRAINING, tensors, {"iteration": state.iteration})

    def finish(self, final: Scores, steps: int) -> None:
        """Stores the scores of a seed that is done and removes the training state."""
        self.finish_writing()
        if self._folder is None:
            return
        self._write(_FINAL, score_tensors(final), {"steps": steps})
        (self._folder / _TRAINING).unlink(missing_ok=True)

    def _read(self, folder: Path) -> SeedProgress:
        if (folder / _FINAL).exists():
            tensors, about = self._load(folder / _FINAL)
            return SeedProgress(self._steps(folder, about["steps"]), None, scores_of(tensors))
        tensors, about = self._load(folder / _TRAINING)
        steps = self._steps(folder, about["iteration"])
        return SeedProgress(steps, _state_of(tensors, steps))

    def _steps(self, folder: Path, count: int) -> tuple[Step, ...]:
        steps = []
        for iteration in range(1, count + 1):
            tensors, about = self._load(folder / _step_name(iteration))
            values: Metadata = {name: about[name] for name in _STEP_VALUES} | {"loss": tuple(about["loss"])}
            values |= {name: tensors[name].numpy() for name in _STEP_ARRAYS}
            steps.append(Step(**values, scores=scores_of(tensors)))
        return tuple(steps)

    def _write(self, name: str, tensors: Tensors, about: Metadata) -> None:
        self.finish_writing()
        if self._folder is None:
            return
        card = {**about, "file": self._place(name), "start": self._start}
        arguments = (self._folder / name, separated(tensors), card)
        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            self._writer = threading.Thread(target=self._put, args=arguments, name=f"writes {name}")
            self._writer.start()
        else:
            self._put(*arguments)

    def _put(self, path: Path, tensors: Tensors, card: Metadata) -> None:
        why = _replaced(path, tensors, card)
        if why is not None:
            self._warn(why)
            self._folder = None

    def finish_writing(self) -> None:
        """Waits until the last state is on the disk."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _load(self, path: Path) -> tuple[Tensors, Metadata]:
        try:
            tensors, about = load_sealed(path)
        except SealError as error:
            raise ValueError(f"{path.name} is damaged: {error}") from None
        if about["file"] != self._place(path.name):
            raise ValueError(f"{path.name} was written as {about['file']}")
        if about["start"] != self._start:
            raise ValueError("it began from other scores, data or settings")
        return tensors, about

    def _place(self, name: str) -> str:
        """A file's name with its seed and variant, so that a file in another's place is not used."""
        assert self._folder is not None
        return "/".join((*self._folder.parts[-2:], name))


class TaskCheckpoint:
    """Checkpoints of one task, whose seeds start from ``data`` (its fingerprint) and ``run`` (the key of the run).

    Without a folder nothing is stored.
    """

    def __init__(self, folder: Path | None = None, data: str = "", run: str = "") -> None:
        self._folder, self._data, self._run, self._warned = folder, data, run, False

    def seed(self, variant: str, seed: int, raw: Scores) -> SeedCheckpoint:
        """The files of one variant and seed, which start from raw scores."""
        folder = None if self._folder is None or self._warned else self._folder / variant / f"seed_{seed}"
        start = "" if folder is None else f"{self._run}:{self._data}:{tensors_digest(score_tensors(raw))}"
        return SeedCheckpoint(folder, start, self._warn)

    def _warn(self, why: str) -> None:
        if not self._warned:
            warn(f"{why}; the test-time stage goes on, but if it is stopped it continues from before this")
        self._warned = True


def is_finished(folder: Path, variant: str, seed: int, run: str) -> bool:
    """Whether a seed of a variant is done, by its last file; damage of the others shows on reading.

    ``folder`` is of the task, ``run`` the key of the run.
    """
    try:
        about = load_sealed(folder / variant / f"seed_{seed}" / _FINAL)[1]
    except (OSError, SealError):
        return False
    return str(about.get("start", "")).startswith(f"{run}:")


def read_state(path: Path, consequence: str) -> tuple[Tensors, Metadata] | None:
    """Tensors of a sealed file and what they are; None without one, and with a warning for a damaged one."""
    try:
        return load_sealed(path)
    except FileNotFoundError:
        return None
    except (SealError, OSError) as error:
        warn(f"cannot resume from {path}: {error}; {consequence}")
        return None


def write_state(path: Path, tensors: Tensors, about: Metadata, consequence: str) -> bool:
    """Replaces a sealed file in one step; False, with a warning of the consequence, if it cannot be written."""
    why = _replaced(path, separated(tensors), about)
    if why is not None:
        warn(f"{why}; {consequence}")
    return why is None


def _replaced(path: Path, tensors: Tensors, about: Metadata) -> str | None:
    """Replaces a sealed file in one step; why it cannot be written, or None."""
    from safetensors import SafetensorError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda target: save_sealed(target, tensors, about))
    except (OSError, SafetensorError, TtmbenchError) as error:
        return str(error) if isinstance(error, TtmbenchError) else f"{path} cannot be written: {error}"
    return None


def _step_name(iteration: int) -> str:
    return f"iteration_{iteration}.safetensors"


def score_tensors(scores: Scores) -> Tensors:
    """Score arrays as tensors of a file; `scores_of` reads them."""
    tensors = {"scores.groups": torch.from_numpy(np.array(scores.groups))}
    if scores.all_pairs is not None:
        tensors["scores.all_pairs"] = torch.from_numpy(np.array(scores.all_pairs))
    return tensors


def scores_of(tensors: Tensors) -> Scores:
    """The score arrays that `score_tensors` wrote."""
    pairs = tensors.get("scores.all_pairs")
    return Scores(tensors["scores.groups"].numpy(), None if pairs is None else pairs.numpy())


def training_tensors(
    model: Mapping[str, torch.Tensor],
    optimizer: Mapping[int, Mapping[str, object]] | None,
    random: Mapping[str, torch.Tensor],
) -> Tensors:
    """Model, optimiser and random generators as tensors of one file; `training_parts` is the inverse."""
    tensors = {f"model.{name}": tensor for name, tensor in model.items()}
    tensors |= {f"random.{device}": state for device, state in random.items()}
    for number, values in (optimizer or {}).items():
        entries = {name: value for name, value in values.items() if value is not None}
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in entries.items()}
    return tensors


def training_parts(tensors: Mapping[str, torch.Tensor]) -> tuple[Tensors, dict[int, Tensors], Tensors]:
    """Model, optimiser (by number of the parameter) and random generators (by device) of `training_tensors`."""
    model: Tensors = {}
    random: Tensors = {}
    optimizer: dict[int, Tensors] = {}
    for key, tensor in tensors.items():
        kind, name = key.split(".", 1)
        if kind == "optimizer":
            number, name = name.split(".", 1)
            optimizer.setdefault(int(number), {})[name] = tensor
        else:
            {"model": model, "random": random}[kind][name] = tensor
    return model, optimizer, random


def _state_of(tensors: Tensors, steps: Sequence[Step]) -> TrainingState:
    teacher = {key.removeprefix(_TEACHER): tensors.pop(key) for key in list(tensors) if key.startswith(_TEACHER)}
    model, optimizer, random = training_parts(tensors)
    last = steps[-1]
    return TrainingState(last.iteration, last.scores, model, optimizer or None, random, teacher or None, steps)
