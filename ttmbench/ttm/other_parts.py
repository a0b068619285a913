"""Built-in alternatives to the default parts of TTM; `ttmbench.ttm.parts` defines the arguments of each kind."""

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

CONVERGED = 1e-6  # tolerance of the row sums of a plan


def every(labels: PseudoLabels, threshold: float, by_share: bool, ties: Ties) -> np.ndarray:
    """Selects every eligible unit, regardless of the threshold."""
    return eligible(labels, ties)


def argmax(scores: np.ndarray) -> PseudoLabels:
    """Self-training: the best caption of every image; a caption may be used twice in a group.

    The margin is the best minus the second-best total over all ways to give each image a caption, which is the smallest
    difference of the best and the second-best score of a row. In the global variant, confidence is the score of the
    pair.
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
    """Soft labels: exp(scores / temperature) of a group, scaled so that rows sum to 1 and columns to at most 1.

    Rows and columns are normalised in turn until rows sum to 1 within 1e-6, or for the given number of rounds. With
    more captions than images, an extra row of constants takes up the remaining captions. The hard captions and margins
    are those of the matching, which is the limit of the plan for small temperatures.
    """
    if scores.ndim == 2:
        raise UsageError("pseudo_labels=sinkhorn makes plans inside groups, and the task is matched globally")
    groups, images, captions = scores.shape
    logs = scores.astype(np.float64) / temperature
    mass = np.zeros(images)  # logarithms of the row sums
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
    """The loss that the model was trained with, on matched pairs."""
    return batch.own_loss()


def cross_entropy(batch: LabelledBatch, *, negatives: Literal["batch", "group"] = "batch") -> torch.Tensor:
    """Cross-entropy to soft or hard labels P, -sum P (ln p + ln q) / 2, divided by the sum of P.

    p is the softmax of an image's scores over captions, and q the softmax of a caption's scores over images. They range
    over the whole batch, where labels between groups are 0, or over the group. With ``batch`` and hard labels of
    matched captions only, it is CLIP's loss.
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
    """Stochastic gradient descent with momentum; ``weight_decay`` is added to the gradient."""
    every = [parameter for _, parameter in parameters]
    return torch.optim.SGD(every, lr=1.0, momentum=momentum, weight_decay=settings.weight_decay)


def linear(step: int, steps: int, floor: float) -> float:
    """Linear decrease from 1 to the floor.

    >>> linear(0, 4, 0.2), linear(4, 4, 0.2)
    (1.0, 0.2)
    """
    return floor + (1 - floor) * (1 - step / steps)


def constant(step: int, steps: int, floor: float) -> float:
    """1 at every step."""
    return 1.0


def never(rounds: Sequence[Round]) -> bool:
    """Never stops early."""
    return False


def no_change(rounds: Sequence[Round]) -> bool:
    """Whether the last iteration trained on the same units with the same pseudo-labels as the one before."""
    if len(rounds) < 2:
        return False
    before, last = rounds[-2:]
    same = np.array_equal(before.captions[before.selected], last.captions[last.selected])
    return same and np.array_equal(before.selected, last.selected)


def overfit(rounds: Sequence[Round]) -> bool:
    """Whether every group trained on satisfies the group score, with its pseudo-label as ground truth."""
    last = rounds[-1]
    if last.scores.ndim == 2:
        return not last.selected.any()
    return all_fit(last.scores[last.selected], last.captions[last.selected])


def none(teacher: Weights, model: Weights) -> None:
    """Leaves the teacher unchanged; the model is its own teacher."""
    ema(teacher, model, decay=0.0)


@torch.no_grad()
def ema(teacher: Weights, model: Weights, *, decay: Annotated[float, Field(ge=0, le=1)] = 0.999) -> None:
    """An exponential moving average of the weights (arXiv:2203.13591): teacher = decay teacher + (1 - decay) model."""
    for name, mean in teacher.items():
        if mean.is_floating_point():
            mean.lerp_(model[name].to(mean), 1 - decay)
        else:
            mean.copy_(model[name])
