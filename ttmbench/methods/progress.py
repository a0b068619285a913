"""Progress of a test-time method on one task and seed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ttmbench.methods.task import MethodStep, TrainingTask
from ttmbench.ttm.checkpoint import SeedCheckpoint, SeedProgress
from ttmbench.ttm.finetune import set_random_state
from ttmbench.ttm.trainer import Cost
from ttmbench.types import Scores

EVERY = 20.0  # seconds between two checkpoints, so that short turns are not spent on files


@dataclass
class MethodProgress:
    """Progress of a method.

    Attributes:
        scores: [groups, images, captions], in the shuffled order; NaN where no turn has scored a group yet.
        turns: number of finished turns.
        updates: number of turns in which parameters were trained.
        losses: losses of the turns that report one.
        notes, cost: of the turns so far.
        seconds: wall time spent in earlier processes.
        trained: name of each parameter that was trained -> how many numbers it has.
    """

    scores: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    turns: int = 0
    updates: int = 0
    losses: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    trained: Mapping[str, int] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, kept: SeedProgress, shape: tuple[int, ...]) -> MethodProgress:
        """The stored progress, or an empty one for a task of this shape."""
        scores = kept.final if kept.state is None else kept.state.scores
        if scores is None:
            return cls(torch.full(shape, torch.nan))
        return cls(torch.from_numpy(scores.groups), **{**kept.about, "cost": Cost(**kept.about["cost"])})

    @property
    def mean_loss(self) -> float | None:
        """Mean loss over the turns that report one; None if no turn does."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def add(self, step: MethodStep, task: TrainingTask, checkpoint: SeedCheckpoint) -> None:
        """Record a turn, and store the state after it if the last checkpoint is old enough."""
        self.scores[step.groups] = step.scores.float().cpu()
        self.trained = {name: parameter.numel() for name, parameter in task.trained.items()}
        self.turns += 1
        self.updates += step.updated
        if step.loss is not None:
            self.losses.append(step.loss)
        if checkpoint.is_due(EVERY):
            checkpoint.keep(None, task.snapshot(Scores(self.scores.numpy())), self.about(task))

    def resume(self, task: TrainingTask, kept: SeedProgress) -> None:
        """Restore a task from stored progress, if there is any."""
        if kept.state is not None:
            task.notes, task.cost = [*self.notes], self.cost
            set_random_state(kept.state.random, task.adapter)

    def about(self, task: TrainingTask) -> dict[str, Any]:
        """What a checkpoint stores in addition to scores and state."""
        values = {name: getattr(self, name) for name in ("turns", "updates", "losses", "trained")}
        seconds = self.seconds + time.perf_counter() - self.began
        return {**values, "notes": task.notes, "cost": asdict(task.cost), "seconds": seconds}
