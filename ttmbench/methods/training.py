"""Training over the iterations of one run, its state between two of them, its cost, and the model as it was before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ttmbench.config import TTMConfig
from ttmbench.errors import DivergedError, NotRestoredError, TtmbenchError
from ttmbench.methods.parameters import (
    NamedParameters,
    named_parameters,
    remove_low_rank,
)
from ttmbench.model import Batch, DualEncoder, Model, PairScorer
from ttmbench.scoring.batches import DEFAULT, BatchSizer, attempt
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Prepared, n_rows, subset, take
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


def make_optimizer(adapter: Model, config: TTMConfig) -> torch.optim.Optimizer:
    """AdamW over all parameters that the adapter trains."""
    return adamw(named_parameters(adapter), config)


def cosine_within_iteration(step: int, steps: int, floor: float) -> float:
    """Factor on the iteration's learning rate: 1 at the first step, ``floor`` after the last.

    >>> cosine_within_iteration(0, 10, 0.1), round(cosine_within_iteration(10, 10, 0.1), 6)
    (1.0, 0.1)
    """
    return floor + (1 - floor) * (1 + math.cos(math.pi * step / steps)) / 2


def finetune(
    adapter: Model,
    prepared: Prepared,
    pairs: TrainingPairs,
    optimizer: torch.optim.Optimizer,
    *,
    config: TTMConfig,
    learning_rate: float,
    batch: int,
    rng: np.random.Generator,
    crop_rng: np.random.Generator | None = None,
    epoch_done: Callable[[float], object] = lambda loss: None,
    part_size: int | BatchSizer = DEFAULT,
    factor: Callable[[int, int], float] | None = None,
    loss: Loss | None = None,
    updated: Callable[[], object] = lambda: None,
) -> tuple[float, ...]:
    """Trains on pairs for ``config.epochs`` epochs and returns the loss of every epoch.

    If only matched pairs are given, all other pairs of a batch are in-batch negatives. Pairs labelled as matched or
    unmatched are independent, so a batch is processed in parts of ``part_size`` pairs. If memory runs out, the gradient
    of the same loss over the same batch is computed in smaller parts, if the adapter supports it.

    There is at least one unit, ``batch`` of them in a batch, shuffled in every epoch by ``rng``; ``crop_rng`` places
    the crops of enlarged images. The learning rate is ``learning_rate`` times ``factor`` of (step, steps), TTM's cosine
    by default. ``loss`` takes pairs with targets, in place of the model's. ``epoch_done`` gets the loss of each epoch,
    and ``updated`` is called after every step. Losses are means over units. (Gradients are not: every batch is one
    step.)

    Raises:
        DivergedError: the loss is NaN or infinite.
        TtmbenchError: memory is too small.
    """
    memory = BatchSizer.of(part_size)
    units = len(pairs.images)
    steps_per_epoch = -(-units // batch)
    steps = steps_per_epoch * config.epochs
    losses: list[float] = []
    for epoch in range(config.epochs):
        order = rng.permutation(units)
        total = torch.zeros(())
        for step in range(steps_per_epoch):
            chosen = order[step * batch : (step + 1) * batch]
            done = epoch * steps_per_epoch + step
            now = cosine_within_iteration(done, steps, config.lr_floor) if factor is None else factor(done, steps)
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * (learning_rate * now)
            images = _images(adapter, prepared, pairs, chosen, crop_rng)
            captions = take(prepared.captions, pairs.captions[chosen].reshape(-1))
            matched = None if pairs.matched is None else pairs.matched[chosen].reshape(-1)
            of_features = None if loss is None else _loss_of_features(adapter, loss, pairs, chosen)
            value = _gradient(adapter, images, captions, matched, optimizer, memory, of_features)
            _step(optimizer)
            updated()
            total = total + value * len(chosen)  # stays on the device, to synchronise once per epoch
        losses.append(float(total) / units)
        if not math.isfinite(losses[-1]):
            raise DivergedError(f"the loss became {losses[-1]} in epoch {epoch + 1}", learning_rate)
        epoch_done(losses[-1])
    return tuple(losses)


def _step(optimizer: torch.optim.Optimizer) -> None:
    """A step of the optimizer; TtmbenchError if memory is too small for its state, which the first step makes."""
    done, _ = attempt(optimizer.step)
    if not done:
        trained = sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])
        raise TtmbenchError(
            f"out of memory in a step of the optimizer, which keeps two numbers for each of {trained:,} trained "
            "parameters; train fewer of them (--ttm_args train=norm, or for chat models --model_args lora=16)"
        )


def _gradient(
    adapter: Model,
    images: Batch,
    captions: Batch,
    matched: np.ndarray | None,
    optimizer: torch.optim.Optimizer,
    memory: BatchSizer,
    of_features: OfFeatures | None = None,
) -> torch.Tensor:
    """Computes a batch's gradient and returns its loss; in smaller parts once memory has run out."""
    size = n_rows(images)
    while True:
        optimizer.zero_grad(set_to_none=True)
        if matched is not None:
            assert isinstance(adapter, PairScorer), "only such an adapter learns from pairs that do not match"
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
        if matched is None and not (isinstance(adapter, DualEncoder) and adapter.trains_in_parts):
            raise TtmbenchError(
                f"out of memory while training on {size} images. Their number is part of the method, so it is not "
                "changed, and this model cannot compute the gradient in parts; try --dtype bf16, or another batch "
                "with --ttm_args batch_groups=N"
            )
        memory.smaller_training_parts(size if matched is None else min(size, memory.rows))


OfFeatures = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Features [images, d] and [captions, d] of a batch -> its loss."""


def _loss_of_features(adapter: Model, loss: Loss, pairs: TrainingPairs, chosen: np.ndarray) -> OfFeatures:
    """A replaced loss as a function of all features of a batch."""
    assert pairs.targets is not None and isinstance(adapter, DualEncoder), "asked before anything is scored"
    targets, parts = pairs.targets[chosen], adapter

    def of_features(images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        units, m, k = targets.shape
        labels = torch.from_numpy(targets).to(images.device, images.dtype)
        return loss(LabelledBatch(images.reshape(units, m, -1), captions.reshape(units, k, -1), labels, parts))

    return of_features


def _backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach().float()


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
    adapter: DualEncoder,
    images: Batch,
    captions: Batch,
    part_size: int,
    of_features: OfFeatures | None = None,
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


def _images(
    adapter: Model,
    prepared: Prepared,
    pairs: TrainingPairs,
    chosen: np.ndarray,
    crop_rng: np.random.Generator | None,
) -> Batch:
    """The images of a batch; with augmentation, new random crops of the enlarged images each time."""
    rows = pairs.images[chosen].reshape(-1)
    if prepared.enlarged is None or crop_rng is None or pairs.matched is not None:
        return take(prepared.images, rows)
    assert isinstance(adapter, DualEncoder), "only such an adapter's images were enlarged"
    return adapter.crop(take(prepared.enlarged, rows), crop_rng.random((len(rows), 2)))


def snapshot(adapter: Model) -> dict[str, torch.Tensor]:
    """Copies everything that training changes to CPU memory (from a GPU: pinned memory, with one synchronisation)."""
    copied, devices = dict[str, torch.Tensor](), set[torch.device]()
    for name, tensor in adapter.state_dict().items():
        pinned, tensor = None, tensor.detach()
        if tensor.device.type == "cuda":
            devices.add(tensor.device)
            with suppress(RuntimeError):  # no more pinned memory
                pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
        copied[name] = tensor.to("cpu", copy=True) if pinned is None else pinned.copy_(tensor, non_blocking=True)
    for device in devices:  # only then are copies of a GPU's tensors complete
        torch.cuda.synchronize(device)
    return copied


def restore(adapter: Model, state: Mapping[str, torch.Tensor]) -> None:
    """Loads a snapshot, which can be loaded again."""
    away = adapter.device.type == "cuda"
    adapter.load_state_dict(
        {name: tensor if away and tensor.device.type == "cpu" else tensor.clone() for name, tensor in state.items()}
    )


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
    """Counts of one method on one task and seed."""

    image_rows: int = 0  # through the tower, forward
    caption_rows: int = 0
    image_rows_backward: int = 0  # those whose gradient was computed
    caption_rows_backward: int = 0
    optimizer_steps: int = 0
    views: int = 0  # images that were made of others and encoded
    reward_rows: int = 0  # images and captions through a reward model
    view_seconds: float = 0.0  # wall time of making and encoding its views
    shared_seconds: float = 0.0  # of these, time that an earlier method of the run had spent

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

        ``encoder_passes`` are in units of encoding every image, or every caption, of the task once. A backward pass
        counts twice a forward pass.
        """
        passes = (self.image_rows + 2 * self.image_rows_backward) / images
        passes += (self.caption_rows + 2 * self.caption_rows_backward) / captions
        counts = asdict(self)
        seconds += counts.pop("shared_seconds")
        return {**counts, "encoder_passes": passes, "seconds": seconds}


class Original:
    """The model before test-time training: its weights, and its scores of the first `GROUPS` groups."""

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
        before, is_interrupted = self._scores, False
        try:
            yield
        except BaseException as error:
            is_interrupted = not isinstance(error, Exception)
            raise
        finally:
            restore(self._adapter, self._weights)
            remove_low_rank(self._adapter)
            for parameter, is_trained in self._trained:
                parameter.requires_grad_(is_trained)
                parameter.grad = None
            if not is_interrupted:  # else there is no time for the check, and nothing more is scored
                self._check(before)

    def _check(self, before: np.ndarray) -> None:
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


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    """Largest absolute difference; NaN if a score is NaN."""
    return float(np.abs(left.astype(np.float64) - right).max())
