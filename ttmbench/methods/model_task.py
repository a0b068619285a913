"""The task of a method that trains the whole model on pairs (`MethodSpec.needs_model`): scores, training and state.

Captions are shuffled by seed before the method sees them; `Iteration.captions` is mapped back for the report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch

from ttmbench._arrays import fewer_first
from ttmbench._util.console import progress_bar
from ttmbench.config import DEFAULT_LEARNING_RATE, NO_LEARNING_RATE, TTMConfig
from ttmbench.errors import DivergedError, TtmbenchError, UsageError
from ttmbench.methods.parameters import parameters_of, trained_towers
from ttmbench.methods.training import (
    Cost,
    Iteration,
    Loss,
    MakeOptimizer,
    TrainingPairs,
    TrainingState,
    adamw,
    batch_units,
    cosine_within_iteration,
    gradient,
    loss_of_features,
    random_state,
    restore,
    resume_weights,
    set_random_state,
)
from ttmbench.model import DualEncoder
from ttmbench.scoring.batches import BatchSizer, attempt
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import take
from ttmbench.types import ScheduleSpec, Scores

Ties = Literal["exclude", "include"]


@dataclass(frozen=True)
class PseudoLabels:
    """A candidate matching of every unit (a group; a pair in the global variant) and the model's confidence in it.

    Attributes:
        captions: position of the caption given to each image, among the shuffled ones, int [units, images of a unit].
        confidence: value compared with tau_t, logits [units]: the margin, or the pair's score in the global variant.
        tie: bool [units]; a tied unit is selected only where ties are included.
        soft: soft labels, float [units, images of a unit, captions to choose from], rows sum to 1; None for hard ones.
    """

    captions: np.ndarray
    confidence: np.ndarray
    tie: np.ndarray
    soft: np.ndarray | None = None


@dataclass(frozen=True)
class Selection:
    """The selection of an iteration: pseudo-labels as in `PseudoLabels`, and the ``selected`` units, bool [units]."""

    captions: np.ndarray
    selected: np.ndarray
    soft: np.ndarray | None = None


PseudoLabelRule = Callable[[np.ndarray], PseudoLabels]
"""Scores, logits [groups, images, captions] -> pseudo-label and confidence of every group.

With more images than captions, rows are captions and columns images. In the global variant scores are [images,
captions] of all pairs of the task, and every image is a unit.
"""

SelectionRule = Callable[[PseudoLabels, float, bool, Ties], np.ndarray]
"""(pseudo-labels, tau_t, whether tau_t is a fraction, whether ties may be used) -> selected units, bool [units].

Tied units are never selected unless ties are included, regardless of the rule.
"""

LearningRateSchedule = Callable[[int, int, float], float]
"""(step of the iteration from 0, number of steps, ``lr_floor``) -> factor on the iteration's learning rate."""

Weights = Mapping[str, torch.Tensor]
Teacher = Callable[[Weights, Weights], object]
"""(teacher's weights, model's weights), by name -> None; updates the teacher in place after every step."""


@dataclass(frozen=True)
class Round:
    """A finished iteration, the input of a stopping rule.

    Attributes:
        selected: units that were trained on, bool [units].
        captions: pseudo-label of each unit, as in `PseudoLabels`.
        loss: mean loss of each epoch; empty if nothing was selected.
        scores: scores after the iteration, in the layout of `PseudoLabelRule`.
    """

    selected: np.ndarray
    captions: np.ndarray
    loss: tuple[float, ...]
    scores: np.ndarray


StoppingRule = Callable[[Sequence[Round]], bool]
"""All iterations so far, at least one -> whether to stop."""


@dataclass(frozen=True)
class Parts:
    """The parts of a run of TTM; by default those of the paper (`ttmbench.methods.ttm.DEFAULT_PARTS`)."""

    selection: SelectionRule
    pseudo_labels: PseudoLabelRule
    loss: Loss | None = None  # None: the model's loss, on matched pairs
    optimizer: MakeOptimizer = adamw
    lr_schedule: LearningRateSchedule = cosine_within_iteration
    stopping: StoppingRule | None = None  # None: no early stopping
    teacher: Teacher | None = None  # None: no separate teacher


class ModelTask:
    """A task and a model that the method trains as a whole, on pairs of images and captions.

    Captions are shuffled inside every group or, in the global variant, among all captions. With more images than
    captions, where each caption selects an image, the images are shuffled, and rows of scores are captions.

    Attributes:
        settings: those of TTM; a method without them sets its own before `iterations`.
        parts: parts of TTM that they name, in place of those of the paper.
        is_global: whether all images and captions are matched, and every image is a unit, in place of a group.
        steps: the iterations so far that `train` made.
        turns: how many iterations are over, or under way.
        notes: what a reader of the method's numbers should know.
        cost: counts of what was computed.
        trained: name -> parameter, of those that are trained.
    """

    def __init__(
        self,
        stage: PreparedTask,
        raw: Scores,
        settings: TTMConfig,
        seed: int,
        schedule: ScheduleSpec,
        parts: Parts,
        *,
        with_labels: bool = False,
        resume: TrainingState | None = None,
    ) -> None:
        self.settings, self.schedule, self.parts = settings, schedule, parts
        self._stage, self._raw, self._seed, self._resume, self._labels = stage, raw, seed, resume, with_labels
        self.is_global = stage.is_global
        rows = stage.prepared.rows
        self._captions_choose = rows.images.shape[1] > rows.captions.shape[1]
        self._choosing, self._options = self._sides(rows.images, rows.captions)
        rng = np.random.default_rng([seed, 0])
        if self.is_global:
            self._order = rng.permutation(self._options.size)
        else:
            each = np.arange(self._options.shape[1])
            self._order = rng.permuted(np.broadcast_to(each, self._options.shape), axis=1)
        self.steps: list[Iteration] = [] if resume is None else list(resume.steps)
        self.turns = 0 if resume is None else resume.turns
        note = settings.lr_note or (None if settings.lr is not None else NO_LEARNING_RATE)
        self.notes = [] if note is None else [f"learning rate {self.rate(1):g}: {note}"]
        self.cost, self.trained = Cost(), dict[str, torch.nn.Parameter]()
        self._teacher: dict[str, torch.Tensor] | None = None

    @cached_property
    def first(self) -> np.ndarray:
        """Logits of the original model, [groups, images, captions]; [images, captions] in the global variant."""
        return in_order(self._raw, self.is_global, self._order)

    @cached_property
    def truth(self) -> np.ndarray | None:
        """True captions of each unit, int [units, images of a unit]; None unless the method needs labels."""
        return self._shuffled(true_captions(self._raw, self.is_global)) if self._labels else None

    def labelled_pairs(self) -> TrainingPairs:
        """Pairs to train on, one a unit, so that batches are drawn over all groups; caption i is true for image i.

        For a dual encoder every image with its caption; for a model that says whether a pair matches every image with
        every caption of its group. UsageError unless the method needs labels.
        """
        if not self._labels:
            raise UsageError("the method reads labels, so its needs must have 'labels'")
        images, captions = self._stage.prepared.rows.images, self._stage.prepared.rows.captions
        m, k = images.shape[1], captions.shape[1]
        true = min(m, k)
        if isinstance(self._stage.adapter, DualEncoder):
            return TrainingPairs(images[:, :true].reshape(-1, 1), captions[:, :true].reshape(-1, 1))
        shape = (len(images), m, k)
        sides = np.broadcast_to(images[:, :, None], shape), np.broadcast_to(captions[:, None, :], shape)
        matched = np.broadcast_to(np.eye(m, k, dtype=bool), shape)
        return TrainingPairs(*(side.reshape(-1, 1) for side in (*sides, matched)))

    @property
    def scores(self) -> np.ndarray:
        """Scores of the current model, as ``first``."""
        return in_order(self.steps[-1].scores, self.is_global, self._order) if self.steps else self.first

    @property
    def rounds(self) -> list[Round]:
        """The iterations so far, as stopping rules see them."""
        return [
            Round(
                step.selected,
                self._shuffled(step.captions),
                step.loss,
                in_order(step.scores, self.is_global, self._order),
            )
            for step in self.steps
        ]

    def rate(self, iteration: int) -> float:
        """Learning rate at the start of an iteration: lr x restart^(t-1), t from 1 (section B.1)."""
        return (self.settings.lr or DEFAULT_LEARNING_RATE) * self.settings.lr_restart ** (iteration - 1)

    def draws(self) -> np.random.Generator:
        """A generator for random draws of a control, which follow from seed and iteration."""
        return np.random.default_rng([self._seed, len(self.steps) + 1, 2])

    def iterations(self, stop: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Yields the number of each iteration, from 1 or after those of a stopped run, until ``stop`` or the last.

        The method calls `train` or `fit` once for each. One that ends early says so by ``stop``: a resumed run asks it
        again.
        """
        config, adapter, rows = self.settings, self._stage.adapter, self._stage.prepared.rows
        fewer, more = self._choosing.shape[1], self._options.shape[1]
        # In the global variant a unit is one pair, and a batch holds the pairs of as many groups.
        per_group = fewer if self.is_global else 1
        units = rows.images.size if self.is_global else len(rows.images)
        default = batch_units(units, (100 if fewer == 1 else 50) * per_group)
        self._batch = default if config.batch_groups is None else config.batch_groups * per_group
        self.trained = dict(parameters_of(adapter, config.train))
        if config.train != "all":
            for parameter in adapter.parameters():
                parameter.requires_grad_(False)
            for parameter in self.trained.values():
                parameter.requires_grad_(True)
        self._optimizer = self.parts.optimizer(list(self.trained.items()), config)
        names = adapter.state_dict().keys() if config.train != "all" else ()
        self._added = {name: value for name, value in self.trained.items() if names and name not in names}  # low rank
        self._teacher = None if self.parts.teacher is None else self._copied()
        torch.manual_seed(self._seed)  # for adapters with dropout; nothing else here draws from torch
        # rows of images and of captions in one scoring pass, and of a unit in one epoch
        self._whole = [len(np.unique(side)) for side in (rows.images, rows.captions)]
        self._of_unit = [1, 1] if self.is_global else [fewer, fewer]
        if not self.is_global and config.loss != "own":
            self._of_unit = [rows.images.shape[1], rows.captions.shape[1]]
        if not isinstance(adapter, DualEncoder):  # it sees an image and a caption for each pair, and learns from all
            self._whole, self._of_unit = [rows.images.size * rows.captions.shape[1]] * 2, [fewer * more] * 2
        if self._resume is None:
            self.cost.update(image_rows=self._whole[0], caption_rows=self._whole[1])
        else:
            self._go_on(self._resume)
        with progress_bar(config.iterations * config.epochs, f"training, seed {self._seed}", "epochs") as self.bar:
            self.bar.update(self.turns * config.epochs)
            while self.turns < config.iterations and not (self.turns and stop()):
                self.turns += 1
                yield self.turns

    def finish(self) -> None:
        """The model becomes its teacher, if there is one."""
        if self._teacher is not None:
            self._load(self._teacher)

    def _go_on(self, state: TrainingState) -> None:
        """Loads the state of a stopped run."""
        self._load(state.model, is_resumed=True)
        for optimizer in state.optimizers:
            of_groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": dict(optimizer["state"]), "param_groups": of_groups})
        if self._teacher is not None:
            self._teacher = {name: tensor.to(self._teacher[name].device) for name, tensor in state.extra.items()}
        set_random_state(state.random, self._stage.adapter)

    def train(self, threshold: float, labels: PseudoLabels, chosen: Selection) -> Iteration:
        """One iteration: trains the model on the selected units, and scores it, or its teacher if it has one.

        TtmbenchError if the loss or the scores are NaN or infinite, or memory is too small.
        """
        started, number = time.perf_counter(), len(self.steps) + 1
        scores, rate = self.steps[-1].scores if self.steps else self._raw, self.rate(number)
        loss = self.fit(number, self.pairs(chosen, self.parts.loss is not None))
        if loss:
            model = None if self._teacher is None else self._copied()
            self.finish()
            scores = self._stage.score()
            if model is not None:
                self._load(model)
            if not np.isfinite(scores.groups).all():
                raise DivergedError(f"after iteration {number} the model's scores are NaN or infinite", rate)
            units = int(chosen.selected.sum())
            self.cost["optimizer_steps"] += -(-units // self._batch) * len(loss)
            trained = trained_towers(self._stage.adapter, self.trained)
            sides = zip(("image", "caption"), self._whole, self._of_unit, trained, strict=True)
            for side, whole, each, is_trained in sides:
                seen = units * each * len(loss)
                self.cost[f"{side}_rows"] += whole + seen
                self.cost[f"{side}_rows_backward"] += seen * is_trained
        captions, seconds = self.unshuffle(chosen.captions), time.perf_counter() - started
        step = Iteration(number, threshold, captions, chosen.selected, labels.tie, loss, rate, scores, seconds)
        self.steps.append(step)
        return step

    def fit(
        self, iteration: int, pairs: TrainingPairs, factor: Callable[[int, int], float] | None = None
    ) -> tuple[float, ...]:
        """Trains on pairs; returns the loss of every epoch, a mean over units; of no epoch if there are no pairs.

        ``factor`` is the learning-rate schedule, (step, steps) -> factor, in place of that of the parts. Images are
        cropped anew in every step, if they are enlarged. DivergedError if the loss is NaN or infinite, TtmbenchError if
        memory is too small.
        """
        config, parts, adapter, prepared = self.settings, self.parts, self._stage.adapter, self._stage.prepared
        if len(pairs.images) == 0:
            self.bar.update(config.epochs)
            return ()
        if not config.keep_optimizer_state and iteration > 1:
            self._optimizer = parts.optimizer(list(self.trained.items()), config)
        rng, crop_rng = (np.random.default_rng([self._seed, iteration, *more]) for more in ((), (1,)))
        memory, units, losses = BatchSizer.of(self._stage.batch_size), len(pairs.images), list[float]()
        per_epoch = -(-units // self._batch)
        steps = per_epoch * config.epochs
        for epoch in range(config.epochs):
            order, total = rng.permutation(units), torch.zeros(())
            for step in range(per_epoch):
                chosen, done = order[step * self._batch : (step + 1) * self._batch], epoch * per_epoch + step
                now = factor(done, steps) if factor else parts.lr_schedule(done, steps, config.lr_floor)
                for group in self._optimizer.param_groups:
                    group["lr"] = group.setdefault("initial_lr", group["lr"]) * (self.rate(iteration) * now)
                rows, of_features = pairs.images[chosen].reshape(-1), None
                images, captions = take(prepared.images, rows), pairs.captions[chosen].reshape(-1)
                if isinstance(adapter, DualEncoder) and prepared.enlarged is not None:
                    images = adapter.crop(take(prepared.enlarged, rows), crop_rng.random((len(rows), 2)))
                if isinstance(adapter, DualEncoder) and parts.loss is not None and pairs.targets is not None:
                    of_features = partial(loss_of_features, parts.loss, pairs.targets[chosen], adapter)
                matched = None if pairs.matched is None else pairs.matched[chosen].reshape(-1)
                batch = images, take(prepared.captions, captions), matched
                loss = gradient(adapter, *batch, self._optimizer, memory, of_features)
                if not attempt(self._optimizer.step)[0]:  # its first step makes its state
                    numbers = sum(parameter.numel() for parameter in self.trained.values())
                    raise TtmbenchError(
                        f"out of memory in a step of the optimizer, which keeps two numbers for each of {numbers:,} "
                        "trained parameters; train fewer (--ttm_args train=norm, or for chat models --model_args "
                        "lora=16)"
                    )
                if self._teacher is not None and parts.teacher is not None:
                    parts.teacher(self._teacher, self._weights())
                total = total + loss * len(chosen)  # stays on the device, to synchronise once per epoch
            losses.append(float(total) / units)
            if not math.isfinite(losses[-1]):
                raise DivergedError(f"the loss became {losses[-1]} in epoch {epoch + 1}", self.rate(iteration))
            which = "" if factor else f"iteration {iteration}/{config.iterations}, "
            self.bar.set_postfix_str(f"{which}loss {losses[-1]:.3f}")
            self.bar.update()
        return tuple(losses)

    def snapshot(self) -> TrainingState:
        """Everything that the next iteration depends on; the tensors are not copies, and change with it."""
        optimizers = [{"state": self._optimizer.state_dict()["state"]}] if self.settings.keep_optimizer_state else []
        random = random_state(self._stage.adapter)
        return TrainingState(self.turns, self._weights(), optimizers, random, self._teacher or {}, tuple(self.steps))

    def pairs(self, choice: Selection, with_targets: bool = False) -> TrainingPairs:
        """Training pairs of the selected units, as rows of distinct images and captions; with soft labels if asked.

        A model that learns from pairs that match or not gets every pair inside the groups, in the shuffled order.
        """
        chosen, rows = choice.selected, self._stage.prepared.rows
        if self.is_global:
            captions = rows.captions.reshape(-1)[self.unshuffle(choice.captions)][chosen]
            targets = np.ones((len(captions), 1, 1), np.float32) if with_targets else None
            return TrainingPairs(rows.images.reshape(-1)[chosen][:, None], captions, targets=targets)
        choosing, options = self._choosing[chosen], np.take_along_axis(self._options, self._order, axis=1)[chosen]
        if with_targets:
            soft = choice.soft if choice.soft is not None else choice.captions[..., None] == np.arange(options.shape[1])
            targets = soft[chosen].astype(np.float32)
            targets = targets.swapaxes(1, 2) if self._captions_choose else targets
            return TrainingPairs(*self._sides(choosing, options), targets=targets)
        if isinstance(self._stage.adapter, DualEncoder):
            return TrainingPairs(*self._sides(choosing, np.take_along_axis(options, choice.captions[chosen], axis=1)))
        shape = (*choosing.shape, options.shape[1])
        matched = choice.captions[chosen][:, :, None] == np.arange(shape[2])
        sides = np.broadcast_to(choosing[:, :, None], shape), np.broadcast_to(options[:, None, :], shape)
        flat = len(choosing), math.prod(shape[1:])
        return TrainingPairs(*self._sides(*(side.reshape(flat) for side in sides)), matched.reshape(flat))

    def unshuffle(self, captions: np.ndarray) -> np.ndarray:
        """Captions of the units by their positions in the task's original order."""
        if self.is_global:
            return np.asarray(self._order[captions])
        return np.take_along_axis(self._order, captions, axis=1)

    def _shuffled(self, captions: np.ndarray) -> np.ndarray:
        """Captions of the units by their positions among the shuffled ones."""
        back = np.argsort(self._order, axis=-1)
        return back[captions] if self.is_global else np.take_along_axis(back, captions, axis=1)

    def _sides(self, choosing: np.ndarray, options: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(images, captions), from the side that selects and the side that is selected from; and back."""
        return (options, choosing) if self._captions_choose else (choosing, options)

    def _weights(self) -> dict[str, torch.Tensor]:
        """Everything that training changes, by name; the tensors are not copied."""
        added = {name: parameter.detach() for name, parameter in self._added.items()}
        return {**self._stage.adapter.state_dict(), **added}

    def _copied(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._weights().items()}

    def _load(self, weights: Mapping[str, torch.Tensor], is_resumed: bool = False) -> None:
        """Weights as `_weights` gives them; TtmbenchError if the model of a resumed run does not load them."""
        tensors = {name: tensor for name, tensor in weights.items() if name not in self._added}
        (resume_weights if is_resumed else restore)(self._stage.adapter, tensors)
        with torch.no_grad():
            for name, parameter in self._added.items():
                parameter.copy_(weights[name])


def true_captions(scores: Scores, is_global: bool) -> np.ndarray:
    """True captions by their positions in the task's order, int [units, images of a unit], as `Iteration.captions`."""
    if is_global:
        return scores.truth[:, None]
    fewer = min(scores.groups.shape[1:])
    return np.broadcast_to(np.arange(fewer), (len(scores.groups), fewer))


def in_order(scores: Scores, is_global: bool, order: np.ndarray | None = None) -> np.ndarray:
    """Scores [groups, images, captions], in the global variant [images, captions], with captions in an ``order``, int.

    With more images than captions, the result has captions as rows and images as columns.
    """
    if is_global:
        assert scores.all_pairs is not None, "the global variant scores every pair"
        return scores.all_pairs if order is None else scores.all_pairs[:, order]
    inside = fewer_first(scores.groups)
    return inside if order is None else np.take_along_axis(inside, order[:, None, :], axis=2)
