"""MethodProgress of a training method on one task and seed, kept so that a stopped run resumes at the next turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ttmbench._util.digests import SealError, load_sealed
from ttmbench.methods.task import MethodState, MethodStep, TrainingTask
from ttmbench.ttm.checkpoint import read_state, write_state
from ttmbench.ttm.trainer import Cost, random_state, set_random_state
from ttmbench.types import Record

EVERY = 20.0  # seconds between two checkpoints, so that short turns are not spent on files
_VALUES = ("turns", "updates", "losses", "notes", "trained", "seconds", "is_finished")
_PARTS = ("parameters", "state", "random", "optimizer")


@dataclass
class MethodProgress:
    """What a method has done so far.

    Attributes:
        scores: [groups, images, captions], in the shuffled order; NaN where no turn has scored a group yet.
        turns: that are over.
        updates: turns in which something was trained.
        losses: of those turns that state one.
        state: to resume from; None at the beginning and at the end.
        random: states of torch's generators, likewise.
        notes, cost: of the turns so far.
        seconds: wall time of earlier processes.
        is_finished: whether no turn is left.
        trained: name of each parameter that was trained -> how many numbers it has.
    """

    scores: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    turns: int = 0
    updates: int = 0
    losses: list[float] = field(default_factory=list)
    state: MethodState | None = None
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    is_finished: bool = False
    trained: dict[str, int] = field(default_factory=dict)

    @property
    def mean_loss(self) -> float | None:
        """Mean over the turns that state one; None if none does."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def add(self, step: MethodStep) -> None:
        """Takes in a turn."""
        self.scores[step.groups] = step.scores.float().cpu()
        self.turns += 1
        self.updates += step.updated
        if step.loss is not None:
            self.losses.append(step.loss)

    def resume(self, task: TrainingTask) -> None:
        """Sets up a task that goes on from here; without a state, from the beginning."""
        if self.state is not None:
            task.notes, task.cost = [*self.notes], self.cost
            set_random_state(self.random, task.adapter)


@dataclass(frozen=True)
class AfterTraining:
    """What follows the training of a seed, before the model is restored."""

    do: Callable[[], object] = lambda: None  # with the trained model
    is_done: Callable[[], bool] = lambda: True  # for a seed that a stopped run finished, which else starts again

    @classmethod
    def of(
        cls,
        settings: Record,
        finished: Callable[[int, Record], object] | None,
        complete: Callable[[int], bool] | None,
        seed: int,
    ) -> AfterTraining:
        """Of one seed; ``finished`` and ``complete`` as in `MethodRun.column`."""
        do = (lambda: None) if finished is None else partial(finished, seed, {"settings": settings})
        return cls(do, (lambda: True) if complete is None else partial(complete, seed))


AFTER_TRAINING = AfterTraining()


def method_is_finished(folder: Path, method: str, seed: int, run: str) -> bool:
    """Whether a seed of a method is done; ``folder`` is of the task, ``run`` the key of the run."""
    try:
        about = load_sealed(_path(folder, method, seed))[1]
    except (OSError, SealError):
        return False
    return bool(about.get("is_finished")) and str(about.get("start", "")).startswith(f"{run}:")


def _path(folder: Path, method: str, seed: int) -> Path:
    return folder / method / f"seed_{seed}.safetensors"


class MethodCheckpoint:
    """File of one method, task and seed; without a folder nothing is stored.

    ``start`` is a digest of what the method starts from: a file of another start is not used.
    """

    def __init__(self, folder: Path | None, method: str, seed: int, start: str) -> None:
        self._path = None if folder is None else _path(folder, method, seed)
        self._start, self._last, self._began = start, time.monotonic(), time.perf_counter()
        self._consequence = f"method {method} starts again if it is stopped"

    def read(self, shape: tuple[int, ...], after: AfterTraining = AFTER_TRAINING) -> MethodProgress:
        """MethodProgress of an earlier run; the beginning, if there is none or its file is damaged.

        Also the beginning where what follows the training of a finished seed is not there.
        """
        stored = None if self._path is None else read_state(self._path, "it starts again")
        if stored is None or stored[1].get("start") != self._start or tuple(stored[0]["scores"].shape) != shape:
            return MethodProgress(torch.full(shape, torch.nan))
        tensors, about = stored
        if about["is_finished"] and not after.is_done():
            return MethodProgress(torch.full(shape, torch.nan))
        parts: dict[str, dict[str, torch.Tensor]] = {name: {} for name in _PARTS}
        for key, tensor in tensors.items():
            part, dot, name = key.partition(".")
            if dot:
                parts[part][name] = tensor
        values = {name: about[name] for name in _VALUES}
        optimizers = [_optimizer_state(number, parts["optimizer"], of) for number, of in enumerate(about["optimizers"])]
        state = MethodState(about["turns"], parts["parameters"], optimizers, parts["state"])
        left = None if about["is_finished"] else state
        return MethodProgress(
            tensors["scores"], **values, state=left, random=parts["random"], cost=Cost(**about["cost"])
        )

    def keep(self, progress: MethodProgress, task: TrainingTask) -> None:
        """Stores the progress and the state after a turn, if the last time is long enough ago."""
        if self._path is not None and time.monotonic() - self._last >= EVERY:
            self._write(progress, task, is_finished=False)
            self._last = time.monotonic()

    def finish(self, progress: MethodProgress, task: TrainingTask) -> None:
        """Stores the scores that the method ended with."""
        self._write(progress, task, is_finished=True)

    def _write(self, progress: MethodProgress, task: TrainingTask, is_finished: bool) -> None:
        if self._path is None:
            return
        tensors, settings = {"scores": progress.scores}, []
        if not is_finished:
            state = task.snapshot()
            random = random_state(task.adapter)
            for part, values in (("parameters", state.parameters), ("state", state.state), ("random", random)):
                tensors |= {f"{part}.{name}": tensor for name, tensor in values.items()}
            for number, optimizer in enumerate(state.optimizers):
                tensors |= _optimizer_tensors(number, optimizer)
                settings.append(optimizer["param_groups"])
        about = {
            "start": self._start,
            "turns": progress.turns,
            "updates": progress.updates,
            "losses": progress.losses,
            "notes": task.notes,
            "cost": asdict(task.cost),
            "seconds": progress.seconds + time.perf_counter() - self._began,
            "optimizers": settings,
            "is_finished": is_finished,
            "trained": progress.trained,
        }
        if not write_state(self._path, tensors, about, self._consequence):
            self._path = None


def _optimizer_tensors(number: int, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        f"optimizer.{number}.{parameter}.{name}": torch.as_tensor(value)
        for parameter, values in state["state"].items()
        for name, value in values.items()
    }


def _optimizer_state(number: int, tensors: Mapping[str, torch.Tensor], param_groups: object) -> dict[str, object]:
    """The state of an optimiser from tensors named ``number.parameter.name``."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        which, parameter, name = key.split(".", 2)
        if int(which) == number:
            state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, "param_groups": param_groups}
