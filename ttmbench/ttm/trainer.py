"""Training over the iterations of one run, and where it stands between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ttmbench.config import TTMConfig
from ttmbench.scoring.prepare import PreparedTask
from ttmbench.ttm.finetune import TrainingPairs, finetune, iteration_learning_rate, make_optimizer
from ttmbench.ttm.restoring import resume_weights
from ttmbench.types import Scores


@dataclass(frozen=True)
class TrainingState:
    """Where a run of TTM stands after an iteration: enough to go on as if it had never stopped.

    Attributes:
        iteration: the last that is finished.
        scores: of the model after it.
        model: what training changes, by name.
        optimizer: per parameter, by its number: name -> value; None if the next iteration starts with a new optimiser.
        random: states of torch's generators, by device.
    """

    iteration: int
    scores: Scores
    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[int, Mapping[str, torch.Tensor]] | None
    random: Mapping[str, torch.Tensor]


class Trainer:
    """Optimiser, batch size and learning rate over the iterations of one run."""

    def __init__(self, stage: PreparedTask, config: TTMConfig, learning_rate: float, seed: int, units: int) -> None:
        self._stage, self._config, self._learning_rate, self._seed = stage, config, learning_rate, seed
        rows = stage.prepared.rows
        images = min(rows.images.shape[1], rows.captions.shape[1])
        # In the global variant a unit is one pair, and a batch holds the pairs of as many groups.
        per_group = images if stage.is_global else 1
        if config.batch_groups is not None:
            self._batch = config.batch_groups * per_group
        else:
            self._batch = batch_units(units, (100 if images == 1 else 50) * per_group)
        self._optimizer = make_optimizer(stage.adapter, config)
        torch.manual_seed(seed)  # for adapters with dropout; nothing else here draws from torch

    def rate(self, iteration: int) -> float:
        """Learning rate at the start of an iteration."""
        return iteration_learning_rate(self._config, self._learning_rate, iteration)

    def state(self, iteration: int, scores: Scores) -> TrainingState:
        """Everything that the next iteration depends on; the tensors are not copied."""
        optimizer = self._optimizer.state_dict()["state"] if self._config.keep_optimizer_state else None
        return TrainingState(iteration, scores, self._stage.adapter.state_dict(), optimizer, random_state())

    def resume(self, state: TrainingState) -> None:
        """Goes on from there."""
        resume_weights(self._stage.adapter, state.model)
        if state.optimizer is not None:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": dict(state.optimizer), "param_groups": groups})
        set_random_state(state.random)

    def train(self, iteration: int, pairs: TrainingPairs, shown: Any) -> tuple[float, ...]:
        """Mean loss of every epoch; empty, and the model untouched, if nothing was selected."""
        if len(pairs.images) == 0:
            shown.update(self._config.epochs)
            return ()
        if not self._config.keep_optimizer_state and iteration > 1:
            self._optimizer = make_optimizer(self._stage.adapter, self._config)

        def epoch_done(loss: float) -> None:
            shown.set_postfix_str(f"iteration {iteration}/{self._config.iterations}, loss {loss:.3f}")
            shown.update()

        return finetune(
            self._stage.adapter,
            self._stage.prepared,
            pairs,
            self._optimizer,
            config=self._config,
            learning_rate=self.rate(iteration),
            batch=self._batch,
            rng=np.random.default_rng([self._seed, iteration]),
            crop_rng=np.random.default_rng([self._seed, iteration, 1]),
            epoch_done=epoch_done,
            part_size=self._stage.batch_size,
        )


def random_state() -> dict[str, torch.Tensor]:
    """States of torch's generators, by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.cuda.current_device()
        states[f"cuda:{device}"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: Mapping[str, torch.Tensor]) -> None:
    """Puts torch's generators back where `random_state` found them."""
    torch.set_rng_state(states["cpu"])
    for device, state in states.items():
        if device != "cpu":
            torch.cuda.set_rng_state(state, device)


def batch_units(total: int, default: int) -> int:
    """Units in a batch: the default, or slightly more where the total is just above a multiple of it (section B.1).

    >>> batch_units(102, 50), batch_units(400, 50), batch_units(135, 50), batch_units(7, 50)
    (51, 50, 50, 7)
    """
    if total <= default:
        return max(1, total)
    full, rest = divmod(total, default)
    return math.ceil(total / full) if 0 < rest <= 0.15 * default else default
