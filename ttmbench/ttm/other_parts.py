"""The parts of TTM that ship beside the defaults; `ttmbench.ttm.parts` says what each kind is called with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.ttm.algorithm import all_fit
from ttmbench.ttm.finetune import LabelledBatch, NamedParameters
from ttmbench.ttm.parts import Round, Weights
from ttmbench.ttm.selection import PseudoLabels, Ties, eligible, matching

CONVERGED = 1e-6  # by how much a row of a plan may differ from 1


def every(labels: PseudoLabels, threshold: float, by_share: bool, ties: Ties) -> np.ndarray:
    """Every unit that may be selected at all, whatever the threshold."""
    return eligible(labels, ties)


def argmax(scores: np.ndarray) -> PseudoLabels:
    """The best caption of every image by itself (self-training): a caption may be used twice in a group.

    The margin is again the best total minus the second-best one, of all ways to give each image a caption: the smallest
    difference of the best and the second-best score of a row. In the global variant confidence is the pair's score.
    """
    first, second = np.moveaxis(np.sort(scores.astype(np.float64), axis=-1)[..., -2:][..., ::-1], -1, 0)
    best, margins = scores.argmax(-1), first - second
    if scores.ndim == 2:
        return PseudoLabels(best[:, None], first, margins == 0)
    return PseudoLabels(best, margins.min(1), (margins == 0).any(1))


def sinkhorn(
    scores: np.ndarray,
    *,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    rounds: Annotated[int, Field(ge=1)] = 1000,
) -> PseudoLabels:
    """Soft labels: of exp(scores / temperature) in a group, the plan in which every image has 1 and no caption over 1.

    Rows and columns are normalised in turn until rows sum to 1 within 1e-6, or for so many rounds. With more captions
    than images, a row that fits all captions alike has the rest. Captions and margins are those of the matching, to
    which the plan tends for small temperatures.
    """
    if scores.ndim == 2:
        raise UsageError("pseudo_labels=sinkhorn makes plans inside groups, and the task is matched globally")
    groups, images, captions = scores.shape
    logs = scores.astype(np.float64) / temperature
    mass = np.zeros(images)  # logarithms of what rows sum to
    if captions > images:
        logs = np.concatenate([logs, np.zeros((groups, 1, captions))], axis=1)
        mass = np.append(mass, np.log(captions - images))
    for _ in range(rounds):
        logs = logs + (mass - _log_sum(logs, 2))[:, :, None]
        logs = logs - _log_sum(logs, 1)[:, None, :]
        if np.abs(np.exp(_log_sum(logs, 2) - mass) - 1).max() <= CONVERGED:
            break
    plan = np.exp(logs[:, :images] - _log_sum(logs[:, :images], 2)[:, :, None])
    return replace(matching(scores), soft=plan.astype(np.float32))


def _log_sum(logs: np.ndarray, axis: int) -> np.ndarray:
    largest = logs.max(axis, keepdims=True)
    return np.asarray(np.squeeze(largest + np.log(np.exp(logs - largest).sum(axis, keepdims=True)), axis))


def own(batch: LabelledBatch) -> torch.Tensor:
    """The model's own loss on matched pairs."""
    return batch.own_loss()


def cross_entropy(batch: LabelledBatch, *, negatives: Literal["batch", "group"] = "batch") -> torch.Tensor:
    """Cross-entropy to soft or hard labels P, -sum P (ln p + ln q) / 2, divided by the sum of P.

    p is the softmax of an image's scores over captions, q that of a caption's over images: of the whole batch, where
    labels of other groups are 0, or of the group alone. With ``batch`` and matched captions alone it is CLIP's loss.
    """
    if negatives == "batch":
        scores = batch.logits(batch.images.flatten(0, 1), batch.captions.flatten(0, 1))[None]
        targets = torch.block_diag(*batch.targets)[None]  # type: ignore[no-untyped-call]
    else:
        pairs = zip(batch.images, batch.captions, strict=True)
        scores, targets = torch.stack([batch.logits(*pair) for pair in pairs]), batch.targets
    both = scores.log_softmax(2) + scores.log_softmax(1)
    return -(targets * both).sum() / (2 * targets.sum())


def sgd(
    parameters: NamedParameters, settings: TTMConfig, *, momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum, and ``weight_decay`` as a gradient."""
    every = [parameter for _, parameter in parameters]
    return torch.optim.SGD(every, lr=1.0, momentum=momentum, weight_decay=settings.weight_decay)


def linear(step: int, steps: int, floor: float) -> float:
    """From 1 in equal steps to the floor.

    >>> linear(0, 4, 0.2), linear(4, 4, 0.2)
    (1.0, 0.2)
    """
    return floor + (1 - floor) * (1 - step / steps)


def constant(step: int, steps: int, floor: float) -> float:
    """1 at every step."""
    return 1.0


def never(rounds: Sequence[Round]) -> bool:
    """All iterations are run."""
    return False


def no_change(rounds: Sequence[Round]) -> bool:
    """Whether the last iteration trained on the same units with the same pseudo-labels as the one before."""
    if len(rounds) < 2:
        return False
    before, last = rounds[-2:]
    same = np.array_equal(before.captions[before.selected], last.captions[last.selected])
    return same and np.array_equal(before.selected, last.selected)


def overfitted(rounds: Sequence[Round]) -> bool:
    """Whether every group that was trained on satisfies the group score, with its pseudo-label as the truth."""
    last = rounds[-1]
    if last.scores.ndim == 2:
        return not last.selected.any()
    return all_fit(last.scores[last.selected], last.captions[last.selected])


def none(teacher: Weights, model: Weights) -> None:
    """The model itself."""
    ema(teacher, model, decay=0.0)


@torch.no_grad()
def ema(teacher: Weights, model: Weights, *, decay: Annotated[float, Field(ge=0, le=1)] = 0.999) -> None:
    """An exponential moving average of the weights (arXiv:2203.13591): teacher = decay teacher + (1 - decay) model."""
    for name, mean in teacher.items():
        if mean.is_floating_point():
            mean.lerp_(model[name].to(mean), 1 - decay)
        else:
            mean.copy_(model[name])
