"""Replaceable parts of TTM: the signature of each kind, and loading of the parts that settings name.

Every part is one function. The types below list its positional arguments; its keyword arguments are settings
(``--ttm_args KIND.KEY=VALUE``), validated against their annotations. No part has access to labels: captions are
shuffled by seed inside each group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, get_args

import numpy as np
import torch

from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.plugins.arguments import arguments_of, checked_arguments
from ttmbench.plugins.registry import Registry, load_target
from ttmbench.ttm.finetune import Loss, MakeOptimizer, adamw, cosine_within_iteration
from ttmbench.ttm.selection import PseudoLabels, Ties, matching, select
from ttmbench.types import GroupShape, MethodPart, PartKind

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
    """The parts of a run of TTM; by default those of the paper."""

    selection: SelectionRule = select
    pseudo_labels: PseudoLabelRule = matching
    loss: Loss | None = None  # None: the model's loss, on matched pairs
    optimizer: MakeOptimizer = adamw
    lr_schedule: LearningRateSchedule = cosine_within_iteration
    stopping: StoppingRule | None = None  # None: no early stopping
    teacher: Teacher | None = None  # None: no separate teacher


DEFAULT_PARTS = Parts()


def load_parts(registry: Registry, settings: TTMConfig) -> Parts:
    """Loads the parts that settings name, with their arguments; UsageError for an unknown part or argument."""
    named = {kind: registry.part(kind, getattr(settings, kind)) for kind in settings.other_parts}
    return Parts(**{kind: load_part(spec, settings.part_args.get(kind, {})) for kind, spec in named.items()})


def check_parts(registry: Registry, settings: TTMConfig, shape: GroupShape, is_global: bool) -> None:
    """Raises a UsageError unless the parts can be combined and used on groups of this shape."""
    parts = load_parts(registry, settings)
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
    arguments = checked_arguments(known, given, f"--ttm_args {spec.kind}={spec.name},{spec.kind}", whose)
    return _checked(partial(function, **arguments), spec.kind, f"{whose} ({spec.target})")


def _checked(function: Callable[..., Any], kind: PartKind, whose: str) -> Callable[..., Any]:
    """Wraps the function of a part: its result is validated, and errors name the part."""

    @wraps(function.func if isinstance(function, partial) else function)
    def call(*arguments: Any) -> Any:
        with foreign_errors(whose):
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
assert set(_PROBLEMS) == set(get_args(PartKind))
