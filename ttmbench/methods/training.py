"""Training over the iterations of one run, its state between two of them, its cost, and the model as it was before."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ttmbench.config import TTMConfig
from ttmbench.errors import NotRestoredError, TtmbenchError
from ttmbench.methods.parameters import NamedParameters, remove_low_rank
from ttmbench.model import Batch, DualEncoder, Model, PairScorer
from ttmbench.scoring.batches import BatchSizer, attempt
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import n_rows, subset, take
from ttmbench.types import Scores


@dataclass(frozen=True)
class TrainingPairs:
    """Training pairs, arrays [units, pairs of a unit]."""

    images: np.ndarray  # rows of distinct images, int
    captions: np.ndarray  # rows of distinct captions, int
    matched: np.ndarray | None = None  # whether each pair matches; None if there are matched pairs only
    # Soft labels, float [units, images, captions]; the rows above are then all images and captions of each unit.
    targets: np.ndarray | None = None


@dataclass(frozen=True)
class LabelledBatch:
    """A batch of groups, the input of a replaced loss; features have gradients.

    Attributes:
        images: features [groups, images, d].
        captions: features [groups, captions, d].
        targets: soft labels, float [groups, images, captions]. Rows sum to 1; with more images than captions, columns
            do. In the global variant a group is one matched pair.
    """

    images: torch.Tensor
    captions: torch.Tensor
    targets: torch.Tensor
    adapter: DualEncoder

    def logits(self, images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        """Scores of every image with every caption: features [a, d] and [b, d] -> [a, b]."""
        return self.adapter.logits(images, captions)

    def own_loss(self) -> torch.Tensor:
        """The loss that the model was trained with, on the pairs with the largest label; a scalar."""
        if self.images.shape[1] > self.captions.shape[1]:
            images = _of_each(self.images, self.targets.argmax(1))
            return self.adapter.loss_of(images.flatten(0, 1), self.captions.flatten(0, 1))
        captions = _of_each(self.captions, self.targets.argmax(2))
        return self.adapter.loss_of(self.images.flatten(0, 1), captions.flatten(0, 1))


Loss = Callable[[LabelledBatch], torch.Tensor]
"""A batch -> its loss, a scalar with a gradient."""

MakeOptimizer = Callable[[NamedParameters, TTMConfig], torch.optim.Optimizer]
"""(named parameters, TTM's settings) -> an optimiser; ``lr`` of its groups are factors on TTM's learning rate."""


def _of_each(features: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows [groups, chosen] of features [groups, rows, d]."""
    return features.gather(1, rows[:, :, None].expand(-1, -1, features.shape[2]))


def adamw(parameters: NamedParameters, settings: TTMConfig) -> torch.optim.Optimizer:
    """AdamW with ``weight_decay`` and ``betas``, fused where the device supports it."""
    every = [parameter for _, parameter in parameters]
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in every)
    return torch.optim.AdamW(every, lr=1.0, betas=settings.betas, weight_decay=settings.weight_decay, fused=fused)


def cosine_within_iteration(step: int, steps: int, floor: float) -> float:
    """Factor on the iteration's learning rate: 1 at the first step, ``floor`` after the last."""
    return floor + (1 - floor) * (1 + math.cos(math.pi * step / steps)) / 2


OfFeatures = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Features [images, d] and [captions, d] of a batch -> its loss."""


def gradient(
    adapter: Model,
    images: Batch,
    captions: Batch,
    matched: np.ndarray | None,
    optimizer: torch.optim.Optimizer,
    memory: BatchSizer,
    of_features: OfFeatures | None = None,
) -> torch.Tensor:
    """Computes a batch's gradient and returns its loss; in smaller parts once memory has run out.

    Without ``matched``, bool [pairs], every image matches its caption, and all other pairs of the batch are in-batch
    negatives. TtmbenchError if memory is too small.
    """
    size = n_rows(images)
    while True:
        optimizer.zero_grad(set_to_none=True)
        if isinstance(adapter, PairScorer) and matched is not None:
            part_size = memory.training or memory.rows
            done, loss = attempt(partial(_pairs_in_parts, adapter, images, captions, matched, part_size))
        elif not isinstance(adapter, DualEncoder):
            raise AssertionError("only a dual encoder learns from matched pairs alone")
        elif memory.training is not None and memory.training < size:
            done, loss = attempt(partial(contrastive_in_parts, adapter, images, captions, memory.training, of_features))
        elif of_features is not None:
            done, loss = attempt(
                lambda: _backward(of_features(adapter.train_images(images), adapter.train_captions(captions)))
            )
        else:
            done, loss = attempt(lambda: _backward(adapter.matching_loss(images, captions)))
        if done:
            return loss
        optimizer.zero_grad(set_to_none=True)
        if isinstance(adapter, DualEncoder) and not adapter.trains_in_parts:
            raise TtmbenchError(
                f"out of memory while training on {size} images. Their number is part of the method, so it is not "
                "changed, and this model cannot compute the gradient in parts; try --dtype bf16, or another batch "
                "with --ttm_args batch_groups=N"
            )
        memory.smaller_training_parts(size if matched is None else min(size, memory.rows))


def _backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach().float()


def loss_of_features(
    loss: Loss, targets: np.ndarray, adapter: DualEncoder, images: torch.Tensor, captions: torch.Tensor
) -> torch.Tensor:
    """A replaced loss of all features of a batch, [images, d] and [captions, d]."""
    units, m, k = targets.shape
    labels = torch.from_numpy(targets).to(images.device, images.dtype)
    return loss(LabelledBatch(images.reshape(units, m, -1), captions.reshape(units, k, -1), labels, adapter))


def _pairs_in_parts(
    adapter: PairScorer, images: Batch, captions: Batch, matched: np.ndarray, part_size: int
) -> torch.Tensor:
    """Gradient of a mean over pairs, accumulated over parts of the batch."""
    total = torch.zeros(())
    for start in range(0, len(matched), part_size):
        part = slice(start, start + part_size)
        loss = adapter.pair_loss(take(images, part), take(captions, part), matched[part])
        total = total + _backward(loss * (len(matched[part]) / len(matched)))
    return total


def contrastive_in_parts(
    adapter: DualEncoder, images: Batch, captions: Batch, part_size: int, of_features: OfFeatures | None = None
) -> torch.Tensor:
    """Gradient of a contrastive loss over a whole batch, with ``part_size`` rows in memory at a time (GradCache).

    Features of all rows are computed without gradients, then the gradient of the loss with respect to the features;
    then the encoders run again in parts and backpropagate the gradient of their features (arXiv:2101.06983). Up to
    rounding, the result is the gradient of ``matching_loss``, or of ``of_features`` if given.
    """
    features = []
    sides = ((adapter.train_images, images), (adapter.train_captions, captions))

    def parts(rows: Batch) -> list[slice]:
        return [slice(start, start + part_size) for start in range(0, n_rows(rows), part_size)]

    with torch.no_grad():
        for tower, rows in sides:
            features.append(torch.cat([tower(take(rows, part)) for part in parts(rows)]).requires_grad_())
    loss = _backward((of_features or adapter.loss_of)(*features))
    for (tower, rows), whole in zip(sides, features, strict=True):
        gradient = whole.grad
        for part in parts(rows) if gradient is not None else ():
            encoded = tower(take(rows, part))
            if gradient is not None and encoded.requires_grad:  # a tower may have no trained parameters
                encoded.backward(gradient[part])  # type: ignore[no-untyped-call]
    return loss


def snapshot(adapter: Model) -> dict[str, torch.Tensor]:
    """Copies everything that training changes to CPU memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in adapter.state_dict().items()}


def restore(adapter: Model, state: Mapping[str, torch.Tensor]) -> None:
    """Loads a snapshot, which can be loaded again."""
    adapter.load_state_dict({name: tensor.clone() for name, tensor in state.items()})


def resume_weights(adapter: Model, state: Mapping[str, torch.Tensor]) -> None:
    """Loads the weights of an interrupted run; TtmbenchError if the model differs from them afterwards."""
    restore(adapter, state)
    loaded = adapter.state_dict()
    for name, tensor in state.items():
        if name not in loaded or not torch.equal(loaded[name].cpu(), tensor.cpu()):
            raise TtmbenchError(
                f"model adapter {type(adapter).__name__} did not load the weights of a stopped run: '{name}' differs "
                "from what was saved. Its load_state_dict must load every tensor that its state_dict returns; "
                "ttmbench.testing.check_adapter tests this"
            )


def random_state(adapter: Model) -> dict[str, torch.Tensor]:
    """States of torch's random generators for the CPU and the model's device."""
    states = {"cpu": torch.get_rng_state()}
    if adapter.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(adapter.device)
    return states


def set_random_state(states: Mapping[str, torch.Tensor], adapter: Model) -> None:
    """Restores torch's random generators from `random_state`, on the model's current device."""
    torch.set_rng_state(states["cpu"])
    if adapter.device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], adapter.device)


TOLERANCE = 1e-4  # logits; what `check_adapter` allows for the same
GROUPS = 16  # in the batch that is scored before and after


@dataclass(frozen=True)
class Iteration:
    """One iteration of a method that trains the whole model, as the method sees it: no label was read."""

    iteration: int  # from 1
    threshold: float  # tau_t
    # The caption given to each image, in the task's own order (unshuffled), int [units, images of a unit]; with more
    # images than captions the image given to each caption, int [units, captions of a unit].
    captions: np.ndarray
    selected: np.ndarray  # bool [units]
    tie: np.ndarray  # bool [units]
    loss: tuple[float, ...]  # mean of each epoch
    learning_rate: float  # at the start of the iteration
    scores: Scores  # of the finetuned model (of its teacher, if there is one), in the task's own order
    seconds: float  # wall time


@dataclass(frozen=True)
class TrainingState:
    """State of training after a turn (an iteration, a batch, an epoch): enough to resume as if it had never stopped."""

    turns: int  # that are over
    model: Mapping[str, torch.Tensor]  # what training changes, by name
    optimizers: Sequence[Mapping[str, Any]] = ()  # each with its ``state`` by parameter; none where new in every turn
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)  # states of torch's generators, by device
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)  # the teacher's weights, or what a method remembers
    steps: Sequence[Iteration] = ()  # of a method that has iterations, all that are finished


def batch_units(total: int, default: int) -> int:
    """Units in a batch: the default, or slightly more where the total is just above a multiple of it (section B.1)."""
    if total <= default:
        return max(1, total)
    full, rest = divmod(total, default)
    return math.ceil(total / full) if 0 < rest <= 0.15 * default else default


Cost = Counter[str]
"""Counts of one method on one task and seed, named as in `ttmbench.results.document.MethodCost`.

Rows of images and captions are counted as they pass through a tower (forward, and those whose gradient was computed).
``shared_seconds`` is the part of ``view_seconds`` that an earlier method of the run had spent.
"""


@contextmanager
def restored(stage: PreparedTask) -> Iterator[None]:
    """Restores the model at the end; NotRestoredError if the first `GROUPS` groups then have other scores than before.

    After a Ctrl-C there is no time for this check, and nothing more is scored.
    """
    adapter, weights = stage.adapter, snapshot(stage.adapter)
    trained = [(parameter, parameter.requires_grad) for parameter in adapter.parameters()]
    first = np.arange(min(GROUPS, len(stage.prepared.rows.images)))
    few = replace(stage, prepared=subset(stage.prepared, first), is_global=False, all_pairs=False)
    before = few.score().groups
    try:
        yield
    finally:
        restore(adapter, weights)
        remove_low_rank(adapter)
        for parameter, is_trained in trained:
            parameter.requires_grad_(is_trained)
            parameter.grad = None
        if isinstance(sys.exception(), Exception | None) and not np.array_equal(before, after := few.score().groups):
            # Some models round in another way each time they are asked: by how much shows in a second look.
            noise = np.abs(after.astype(np.float64) - few.score().groups).max()
            difference = np.abs(before.astype(np.float64) - after).max()
            if not difference <= max(TOLERANCE, 2 * noise):
                raise NotRestoredError(
                    f"model adapter {type(adapter).__name__} does not give the same scores after its weights were "
                    f"restored: they differ by up to {difference:.3g}. Its load_state_dict must load every tensor that "
                    "its state_dict returns, and scores depend on nothing else (ttmbench.testing.check_adapter)"
                )
