"""Test-Time Matching: Algorithm 1 of arXiv:2510.07632, inside groups and over the whole dataset (section 3.2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from ttmbench.config import DEFAULT_SHARE, TTMConfig
from ttmbench.errors import TtmbenchError
from ttmbench.matching import match_global, match_groups
from ttmbench.methods.model_task import ModelTask, Parts, PseudoLabels, Selection, Ties, in_order
from ttmbench.methods.training import Iteration
from ttmbench.schedules import threshold_for_coverage
from ttmbench.types import ScheduleSpec, Scores

Supervision = Callable[[ModelTask, Selection, np.ndarray], Selection]
"""The task, Algorithm 1's selection and its tied units, bool [units] -> what is trained on (oracle and controls)."""


def ttm(task: ModelTask, supervise: Supervision | None = None) -> Iterator[Iteration]:
    """Test-Time Matching (section 3.2): trains on the model's own confident matchings, and matches again.

    In every iteration all groups are matched by the current model, and those whose margin is at least tau_t are its
    pseudo-labels (Algorithm 1, lines 4 and 5); the model is trained on them and scored (line 6). In the global variant
    one assignment over all images and captions takes the place of the groups' matchings.
    ``supervise`` replaces the selection or the pseudo-labels, as the oracle and the controls do.
    """
    settings, parts = task.settings, task.parts
    by_share = settings.by_share(task.is_global)
    labels = parts.pseudo_labels(task.first)
    tau = thresholds(settings, task.schedule, labels, by_share)
    stopping = parts.stopping
    for t in task.iterations(lambda: stopping is not None and bool(stopping(task.rounds))):
        labels = labels if t == 1 else parts.pseudo_labels(task.scores)
        confident = parts.selection(labels, tau[t - 1], by_share, settings.ties) & eligible(labels, settings.ties)
        choice = Selection(labels.captions, confident, labels.soft)
        yield task.train(tau[t - 1], labels, choice if supervise is None else supervise(task, choice, labels.tie))


def matching(scores: np.ndarray) -> PseudoLabels:
    """The matching with the largest total and its margin (Algorithm 1, lines 4 and 5; Eq. 2 in the global variant).

    ``scores`` are logits [groups, images, captions]; in the global variant [images, captions], each image a unit.
    """
    if scores.ndim == 2:
        overall = match_global(scores)
        return PseudoLabels(overall.captions[:, None], overall.scores, overall.tie)
    inside = match_groups(scores)
    return PseudoLabels(inside.captions, inside.margin, inside.tie)


def thresholds(settings: TTMConfig, schedule: ScheduleSpec, labels: PseudoLabels, by_share: bool) -> list[float]:
    """tau_1 to tau_T by the schedule, in logits; fractions when ``by_share``.

    tau_1 is as given, else the threshold that selects the fraction `TTMConfig.coverage` of all units. TtmbenchError
    unless the schedule gives a finite number for each iteration.
    """
    first, clear = settings.tau_start, labels.confidence[eligible(labels, settings.ties)]
    if first is None and by_share:
        first = DEFAULT_SHARE
    elif first is None:
        share = settings.coverage * len(labels.tie) / max(1, len(clear))
        first = threshold_for_coverage(clear, min(1.0, share)) if len(clear) else 0.0
    values = np.asarray(schedule.compute(first, settings.tau_end, settings.iterations))
    if values.shape != (settings.iterations,) or not np.isfinite(values).all():
        raise TtmbenchError(
            f"schedule '{schedule.name}' gave thresholds of shape {list(values.shape)} for {settings.iterations} "
            "iterations; one finite number each is expected"
        )
    return [float(value) for value in values]


def select(labels: PseudoLabels, threshold: float, by_share: bool, ties: Ties = "exclude") -> np.ndarray:
    """Units to train on, bool [units]: sufficiently confident, and by default not tied.

    ``threshold`` is tau_t: logits, or a fraction when ``by_share`` (section B.1): the top 1 - tau_t by confidence,
    counted among all units, tied ones included, and rounded down as in the authors' code. Of units with equal
    confidence, later ones come first.
    """
    allowed = eligible(labels, ties)
    if not by_share:
        return (labels.confidence >= threshold) & allowed
    # 0.1 of 30 is 3, although 1 - 0.9 is below 0.1 in floating point
    keep = math.floor((1 - threshold) * len(labels.tie) + 1e-10)
    ranked = np.argsort(np.where(allowed, labels.confidence, -np.inf), kind="stable")[::-1]
    chosen = np.zeros(len(labels.tie), dtype=bool)
    chosen[ranked[: max(0, keep)]] = True
    return chosen & allowed


def eligible(labels: PseudoLabels, ties: Ties) -> np.ndarray:
    """Eligible units, bool [units]: without a tie, unless ties are included."""
    return ~labels.tie if ties == "exclude" else np.ones(len(labels.tie), dtype=bool)


DEFAULT_PARTS = Parts(select, matching)


def candidates(scores: Scores, is_global: bool) -> PseudoLabels:
    """The matching of every unit, with captions in the task's original order."""
    return matching(in_order(scores, is_global))
