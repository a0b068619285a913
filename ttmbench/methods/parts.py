"""Replaceable parts of TTM: the signature of each kind, and loading of the parts that settings name.

Every part is one function. The types below list its positional arguments; its keyword arguments are settings
(``--ttm_args KIND.KEY=VALUE``), validated against their annotations. No part has access to labels: captions are
shuffled by seed inside each group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from pydantic import Field

from ttmbench._arrays import fewer_first
from ttmbench._util.third_party import foreign_errors
from ttmbench.config import PART_KINDS, TTMConfig
from ttmbench.errors import UsageError
from ttmbench.methods.model_task import Parts, PseudoLabels, Round, Ties, Weights
from ttmbench.methods.parameters import NamedParameters
from ttmbench.methods.training import LabelledBatch
from ttmbench.methods.ttm import eligible, matching
from ttmbench.metrics import group_score
from ttmbench.plugins.arguments import arguments_of, checked_arguments
from ttmbench.plugins.registry import load_target
from ttmbench.types import GroupShape, MethodPart, PartKind


def all_captions(given: np.ndarray, count: int) -> np.ndarray:
    """Appends the captions that are not yet in int [units, images], each once: int [units, count].

    >>> all_captions(np.array([[2, 0]]), 4).tolist()
    [[2, 0, 1, 3]]
    """
    rows = [[*dict.fromkeys(row), *sorted(set(range(count)).difference(row))] for row in given.tolist()]
    return np.array(rows, dtype=given.dtype).reshape(len(given), count)


def all_fit(scores: np.ndarray, captions: np.ndarray) -> bool:
    """Whether every group [groups, images, captions] satisfies the group score for its pseudo-label."""
    scores = fewer_first(scores)
    order = all_captions(captions, scores.shape[2])
    # a caption that is used twice cannot satisfy the group score
    is_matching = np.array_equal(order[:, : captions.shape[1]], captions)
    return is_matching and bool(group_score(np.take_along_axis(scores, order[:, None, :], axis=2)).all())


def check_parts(parts: Parts, settings: TTMConfig, shape: GroupShape, is_global: bool) -> None:
    """Raises a UsageError unless the parts can be combined and used on groups of this shape."""
    fewer, more = sorted((shape.images, shape.captions))
    size = (2 * shape.images, 2 * shape.captions) if is_global else (2, fewer, more)
    labels = parts.pseudo_labels(np.random.default_rng(0).normal(size=size))
    parts.selection(labels, 0.0, settings.by_share(is_global), settings.ties)
    if labels.soft is not None and parts.loss is None:
        raise UsageError(
            f"pseudo_labels={settings.pseudo_labels} gives soft labels, and loss={settings.loss} takes one caption for "
            "an image; add a loss for soft labels, such as loss=cross_entropy (--ttm_args)"
        )


def load_part(spec: MethodPart, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Loads the function of a part, bound to its settings; UsageError for invalid settings."""
    function, whose = load_target(spec.target), f"{spec.kind} '{spec.name}'"
    named = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    known = arguments_of(function, named, spec.target)
    arguments = checked_arguments(known, given, f"--ttm_args {spec.kind}={spec.name},{spec.kind}.", whose)
    return _checked(partial(function, **arguments), spec.kind, f"{whose} ({spec.target})")


def _checked(function: Callable[..., Any], kind: PartKind, whose: str) -> Callable[..., Any]:
    """Wraps the function of a part: its result is validated, and errors name the part."""

    @wraps(function.func if isinstance(function, partial) else function)
    def call(*arguments: Any) -> Any:
        with foreign_errors(whose, function=function):
            result = function(*arguments)
            problem = _PROBLEMS[kind](result, *arguments)
        if problem:
            raise UsageError(f"{whose} {problem}")
        return result

    return call


def _labels_problem(labels: object, scores: np.ndarray) -> str | None:
    if not isinstance(labels, PseudoLabels):
        return f"must give PseudoLabels, got {type(labels).__name__}"
    units, chosen = len(scores), (len(scores), 1) if scores.ndim == 2 else scores.shape[:2]
    captions = labels.captions
    if captions.shape != chosen or captions.dtype.kind != "i" or not np.isin(captions, range(scores.shape[-1])).all():
        return f"must give captions, int {list(chosen)} from 0 to {scores.shape[-1] - 1}"
    if labels.confidence.shape != (units,) or not np.isfinite(labels.confidence).all():
        return f"must give confidence, finite [{units}]"
    if labels.tie.shape != (units,) or labels.tie.dtype != bool:
        return f"must give tie, bool [{units}]"
    soft = labels.soft
    if soft is not None and (
        soft.shape != scores.shape or not np.allclose(soft.sum(-1), 1, atol=1e-3) or soft.min() < 0
    ):
        return f"must give soft labels {list(scores.shape)} whose rows sum to 1"
    return None


def _selection_problem(selected: object, labels: PseudoLabels, *_: object) -> str | None:
    units = len(labels.tie)
    is_mask = isinstance(selected, np.ndarray) and selected.shape == (units,) and selected.dtype == bool
    return None if is_mask else f"must give a bool array [{units}]"


def _loss_problem(loss: object, *_: object) -> str | None:
    is_loss = isinstance(loss, torch.Tensor) and loss.ndim == 0 and loss.requires_grad
    return None if is_loss else "must give a scalar tensor with a gradient"


def _rate_problem(factor: object, *_: object) -> str | None:
    is_factor = isinstance(factor, int | float) and np.isfinite(factor) and factor >= 0
    return None if is_factor else f"must give a finite number of at least 0, got {factor!r:.80}"


_PROBLEMS: Mapping[str, Callable[..., str | None]] = {
    "pseudo_labels": _labels_problem,
    "selection": _selection_problem,
    "loss": _loss_problem,
    "optimizer": lambda value, *_: None if isinstance(value, torch.optim.Optimizer) else "must give a torch optimizer",
    "lr_schedule": _rate_problem,
    "stopping": lambda value, *_: None if isinstance(value, bool | np.bool_) else "must give True or False",
    "teacher": lambda *_: None,
}
assert set(_PROBLEMS) == set(get_args(PartKind)) == set(PART_KINDS)


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
