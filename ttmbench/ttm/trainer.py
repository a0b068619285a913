"""Training over the iterations of one run, its state between two of them, its cost, and the model as it was before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch
from tqdm import tqdm

from ttmbench.config import TTMConfig
from ttmbench.errors import NotRestoredError
from ttmbench.model import DualEncoder, Model
from ttmbench.scoring.inputs import subset
from ttmbench.scoring.prepare import PreparedTask
from ttmbench.ttm.finetune import (
    NamedParameters,
    TrainingPairs,
    finetune,
    named_parameters,
    random_state,
    restore,
    resume_weights,
    set_random_state,
    snapshot,
)
from ttmbench.ttm.parameters import (
    is_of_captions,
    is_of_images,
    is_temperature,
    low_rank_removed,
    parameters_of,
    remove_low_rank,
)
from ttmbench.ttm.parts import DEFAULT_PARTS, Parts
from ttmbench.types import Scores

TOLERANCE = 1e-4  # logits; what `check_adapter` allows for the same
GROUPS = 16  # in the batch that is scored before and after


@dataclass(frozen=True)
class Step:
    """One iteration as TTM itself sees it: no label was read.

    Attributes:
        iteration: from 1.
        threshold: tau_t.
        captions: caption given to each image, in the task's own order (unshuffled), int [units, images of a unit]; with
            more images than captions the image given to each caption, int [units, captions of a unit].
        selected: bool [units].
        tie: bool [units].
        loss: mean loss of each epoch.
        learning_rate: at the start of the iteration.
        scores: of the finetuned model (of its teacher, if there is one), in the task's own order.
        seconds: wall time.
    """

    iteration: int
    threshold: float
    captions: np.ndarray
    selected: np.ndarray
    tie: np.ndarray
    loss: tuple[float, ...]
    learning_rate: float
    scores: Scores
    seconds: float


@dataclass(frozen=True)
class TrainingState:
    """State of training after a turn (an iteration, a batch or an epoch): enough to resume as if it had never stopped.

    Attributes:
        iteration: the last turn that is over, from 1.
        scores: of the model after it; None where nothing is scored on the way.
        model: what training changes, by name.
        optimizers: states of optimisers, each with its ``state`` by parameter; none where they are new in every turn.
        random: states of torch's generators, by device.
        extra: weights of the teacher, as ``model``; or what a method remembers.
        steps: all iterations of TTM that are finished.
    """

    iteration: int
    scores: Scores | None
    model: Mapping[str, torch.Tensor]
    optimizers: Sequence[Mapping[str, Any]] = ()
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    steps: Sequence[Step] = ()


class Trainer:
    """Optimiser, batch size, learning rate and teacher over the iterations of one run."""

    def __init__(
        self,
        stage: PreparedTask,
        config: TTMConfig,
        learning_rate: float,
        seed: int,
        units: int,
        parts: Parts = DEFAULT_PARTS,
        option: str = "--ttm_args",
    ) -> None:
        self._option = option  # that sets the learning rate, for messages
        self.stage, self.config, self._learning_rate, self._seed = stage, config, learning_rate, seed
        self.parts = parts
        rows = stage.prepared.rows
        images = min(rows.images.shape[1], rows.captions.shape[1])
        self._batch = batch_of(config, units, images, stage.is_global)
        self._trained = trained_parameters(stage.adapter, config.train)
        self._optimizer = parts.optimizer(self._trained, config)
        names = stage.adapter.state_dict().keys() if config.train != "all" else ()
        self._updates = {name: value for name, value in self._trained if names and name not in names}  # of low rank
        self._teacher = None if parts.teacher is None else self._copied()
        torch.manual_seed(seed)  # for adapters with dropout; nothing else here draws from torch

    def rate(self, iteration: int) -> float:
        """Learning rate at the start of an iteration: lr x restart^(t-1), t from 1 (section B.1)."""
        return self._learning_rate * self.config.lr_restart ** (iteration - 1)

    def state(self, iteration: int, scores: Scores | None = None) -> TrainingState:
        """Everything that the next iteration depends on; the tensors are not copied."""
        optimizers = [{"state": self._optimizer.state_dict()["state"]}] if self.config.keep_optimizer_state else []
        return TrainingState(
            *(iteration, scores, self._weights(), optimizers, random_state(self.stage.adapter), self._teacher or {})
        )

    def _weights(self) -> dict[str, torch.Tensor]:
        """Everything that training changes, by name; the tensors are not copied."""
        return {**self.stage.adapter.state_dict(), **{name: update.detach() for name, update in self._updates.items()}}

    def _copied(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._weights().items()}

    def _load(self, weights: Mapping[str, torch.Tensor], is_resumed: bool = False) -> None:
        """Weights as `_weights` gives them; TtmbenchError if the model of a resumed run does not load them."""
        tensors = {name: tensor for name, tensor in weights.items() if name not in self._updates}
        (resume_weights if is_resumed else restore)(self.stage.adapter, tensors)
        with torch.no_grad():
            for name, update in self._updates.items():
                update.copy_(weights[name])

    def resume(self, state: TrainingState) -> None:
        """Goes on from a state."""
        self._load(state.model, is_resumed=True)
        for optimizer in state.optimizers:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": dict(optimizer["state"]), "param_groups": groups})
        if self._teacher is not None:
            self._teacher = {name: tensor.to(self._teacher[name].device) for name, tensor in state.extra.items()}
        set_random_state(state.random, self.stage.adapter)

    def score(self) -> Scores:
        """Scores of the model, or of its teacher if there is one; the model is not changed."""
        if self._teacher is None:
            return self.stage.score()
        model = self._copied()
        self._load(self._teacher)
        scores = self.stage.score()
        self._load(model)
        return scores

    def finish(self) -> None:
        """The model becomes its teacher, if there is one: the run is over."""
        if self._teacher is not None:
            self._load(self._teacher)

    def _updated(self) -> None:
        if self._teacher is not None and self.parts.teacher is not None:
            self.parts.teacher(self._teacher, self._weights())

    def train(
        self,
        iteration: int,
        pairs: TrainingPairs,
        shown: tqdm[NoReturn],
        factor: Callable[[int, int], float] | None = None,
    ) -> tuple[float, ...]:
        """Mean loss of every epoch; empty, and the model untouched, if nothing was selected.

        ``factor`` is the learning-rate schedule, (step, steps) -> factor, in place of that of the parts.
        """
        if len(pairs.images) == 0:
            shown.update(self.config.epochs)
            return ()
        if not self.config.keep_optimizer_state and iteration > 1:
            self._optimizer = self.parts.optimizer(self._trained, self.config)

        def course(step: int, steps: int) -> float:
            return self.parts.lr_schedule(step, steps, self.config.lr_floor) if factor is None else factor(step, steps)

        def epoch_done(loss: float) -> None:
            which = f"iteration {iteration}/{self.config.iterations}, " if factor is None else ""
            shown.set_postfix_str(f"{which}loss {loss:.3f}")
            shown.update()

        return finetune(
            self.stage.adapter,
            self.stage.prepared,
            pairs,
            self._optimizer,
            config=self.config,
            learning_rate=self.rate(iteration),
            batch=self._batch,
            rng=np.random.default_rng([self._seed, iteration]),
            crop_rng=np.random.default_rng([self._seed, iteration, 1]),
            epoch_done=epoch_done,
            part_size=self.stage.batch_size,
            factor=course,
            loss=self.parts.loss,
            updated=self._updated,
            option=self._option,
        )


def trained_parameters(adapter: Model, which: str) -> NamedParameters:
    """The parameters that ``train=`` names; all others are frozen. UsageError if there are none."""
    every = named_parameters(adapter)
    if which == "all":
        return every
    chosen = parameters_of(adapter, which)
    for _, parameter in every:
        parameter.requires_grad_(False)
    for parameter in chosen.values():
        parameter.requires_grad_(True)
    return list(chosen.items())


def trained_sizes(adapter: Model, which: str) -> dict[str, int]:
    """Each parameter that ``train=`` names, with its size; the model is not changed."""
    if which == "all":
        return {name: parameter.numel() for name, parameter in named_parameters(adapter)}
    with low_rank_removed(adapter):
        return {name: parameter.numel() for name, parameter in parameters_of(adapter, which).items()}


def batch_of(config: TTMConfig, units: int, images: int, is_global: bool) -> int:
    """Units in a batch, of a task with so many units and matched images in a group."""
    # In the global variant a unit is one pair, and a batch holds the pairs of as many groups.
    per_group = images if is_global else 1
    if config.batch_groups is not None:
        return config.batch_groups * per_group
    return batch_units(units, (100 if images == 1 else 50) * per_group)


def batch_units(total: int, default: int) -> int:
    """Units in a batch: the default, or slightly more where the total is just above a multiple of it (section B.1).

    >>> batch_units(102, 50), batch_units(400, 50), batch_units(135, 50), batch_units(7, 50)
    (51, 50, 50, 7)
    """
    if total <= default:
        return max(1, total)
    full, rest = divmod(total, default)
    return math.ceil(total / full) if 0 < rest <= 0.15 * default else default


@dataclass
class Cost:
    """Counts of one method on one task and seed.

    Attributes:
        image_rows, caption_rows: through the towers, forward.
        image_rows_backward, caption_rows_backward: those whose gradient was computed.
        optimizer_steps: updates.
        views: images that were made of others and encoded.
        reward_rows: images and captions through a reward model.
        view_seconds: wall time of making and encoding its views.
        shared_seconds: of these, time that an earlier method of the run had spent.
    """

    image_rows: int = 0
    caption_rows: int = 0
    image_rows_backward: int = 0
    caption_rows_backward: int = 0
    optimizer_steps: int = 0
    views: int = 0
    reward_rows: int = 0
    view_seconds: float = 0.0
    shared_seconds: float = 0.0

    def count(self, **more: float) -> None:
        """Adds to the counts that are named."""
        for name, number in more.items():
            setattr(self, name, getattr(self, name) + number)

    def count_backward(self, side: str, features: torch.Tensor) -> None:
        """Counts the rows of features of ``images`` or ``captions`` when, and if, their gradient is computed."""
        if features.requires_grad:
            rows, name = len(features), f"{side[:-1]}_rows_backward"
            features.register_hook(lambda _: self.count(**{name: rows}))  # type: ignore[no-untyped-call]

    def record(self, images: int, captions: int, seconds: float) -> dict[str, float]:
        """For results, of a method that took so many ``seconds``, to which shared ones are added.

        ``tower_passes`` are in units of encoding every image, or every caption, of the task once. A backward pass
        counts twice a forward pass.
        """
        passes = (self.image_rows + 2 * self.image_rows_backward) / images
        passes += (self.caption_rows + 2 * self.caption_rows_backward) / captions
        counts = asdict(self)
        seconds += counts.pop("shared_seconds")
        return {**counts, "tower_passes": passes, "seconds": seconds}


def cost_of(stage: PreparedTask, config: TTMConfig, steps: Sequence[Step], trained: Iterable[str]) -> Cost:
    """What TTM's iterations cost, counted from what they selected: the task is scored first and after each update.

    A model that scores pairs sees an image and a caption for each pair.

    Args:
        stage: model and prepared inputs.
        config: hyperparameters.
        steps: the iterations.
        trained: names of the parameters that they train.
    """
    rows, cost = stage.prepared.rows, Cost()
    m, k = rows.images.shape[1], rows.captions.shape[1]
    batch = batch_of(config, rows.images.size if stage.is_global else len(rows.images), min(m, k), stage.is_global)
    whole = [len(np.unique(side)) for side in (rows.images, rows.captions)]
    of_unit = [1, 1] if stage.is_global else [min(m, k)] * 2 if config.loss == "own" else [m, k]
    if not isinstance(stage.adapter, DualEncoder):  # it learns from all pairs of a group
        whole, of_unit = [rows.images.size * k] * 2, [m * k] * 2
    towers = [name for name in trained if not is_temperature(name)]
    backward = (not all(map(is_of_captions, towers)), not all(map(is_of_images, towers)))
    cost.count(image_rows=whole[0], caption_rows=whole[1])
    for step in (step for step in steps if step.loss):
        selected, epochs = int(step.selected.sum()), len(step.loss)
        cost.count(optimizer_steps=-(-selected // batch) * epochs)
        for side, every, each, is_trained in zip(("image", "caption"), whole, of_unit, backward, strict=True):
            seen = selected * each * epochs
            cost.count(**{f"{side}_rows": every + seen, f"{side}_rows_backward": seen if is_trained else 0})
    return cost


class Original:
    """The original model before the test-time stage: its weights, and its scores of the first `GROUPS` groups."""

    def __init__(self, stage: PreparedTask) -> None:
        self._adapter, self._weights = stage.adapter, snapshot(stage.adapter)
        self._trained = [(parameter, parameter.requires_grad) for parameter in stage.adapter.parameters()]
        first = np.arange(min(GROUPS, len(stage.prepared.rows.images)))
        self._batch = replace(stage, prepared=subset(stage.prepared, first), is_global=False, all_pairs=False)
        self._scores: np.ndarray | None = None

    @contextmanager
    def adapted(self) -> Iterator[None]:
        """Restores the model afterwards; TtmbenchError if the groups then have other scores than before."""
        if self._scores is None:
            self._scores = self._batch.score().groups
        try:
            yield
        except Exception:
            self._restore(self._scores)
            raise
        except BaseException:  # interrupted: no time for the check, and nothing more is scored
            self._reset()
            raise
        else:
            self._restore(self._scores)

    def _reset(self) -> None:
        restore(self._adapter, self._weights)
        if any(parameter.requires_grad != is_trained for parameter, is_trained in self._trained):
            remove_low_rank(self._adapter)  # where all parameters are trained, there are no updates
        for parameter, is_trained in self._trained:
            parameter.requires_grad_(is_trained)

    def _restore(self, before: np.ndarray) -> None:
        self._reset()
        after = self._batch.score().groups
        if np.array_equal(before, after):
            return
        # Some models round in another way each time they are asked: by how much shows in a second look at the same.
        noise = _distance(after, self._batch.score().groups)
        difference = _distance(before, after)
        if not difference <= max(TOLERANCE, 2 * noise):
            raise NotRestoredError(
                f"model adapter {type(self._adapter).__name__} does not give the same scores after its weights were "
                f"restored: a batch of {len(before)} groups differs by up to {difference:.3g}. Its load_state_dict "
                "must load every tensor that its state_dict returns, and scores must depend on nothing else that "
                "training changes; ttmbench.testing.check_adapter tests this"
            )


@contextmanager
def restored(stage: PreparedTask) -> Iterator[None]:
    """Restores the model afterwards; TtmbenchError if it cannot be."""
    with Original(stage).adapted():
        yield


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    """Largest absolute difference; NaN if a score is NaN."""
    return float(np.abs(left.astype(np.float64) - right).max())
