"""Selection of the units that TTM trains on: first threshold and selection rules (Algorithm 1, line 5; section B.1).

A `Supervision` replaces the selection or the pseudo-labels: the oracle, and controls that show where a gain comes from.
Only the oracle uses labels, and its numbers are always reported under that name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ttmbench._arrays import fewer_first
from ttmbench.config import DEFAULT_SHARE, TTMConfig
from ttmbench.matching import match_global, match_groups
from ttmbench.schedules import threshold_for_coverage
from ttmbench.types import Scores

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


@dataclass(frozen=True)
class SelectionProposal:
    """The selection of Algorithm 1 in an iteration, as input of a supervision (the oracle or a control)."""

    choice: Selection  # selection of Algorithm 1
    in_task_order: np.ndarray  # its captions by position in the task's original order, int [units, images of a unit]
    tie: np.ndarray  # bool [units]
    n_captions: int  # number of captions to choose from, per unit
    is_global: bool  # global variant: units are pairs of one injective assignment
    rng: np.random.Generator  # for random draws; determined by seed and iteration


def matching(scores: np.ndarray) -> PseudoLabels:
    """The matching with the largest total and its margin (Algorithm 1, lines 4 and 5; Eq. 2 in the global variant).

    ``scores`` are logits [groups, images, captions]; in the global variant [images, captions], each image a unit.
    """
    if scores.ndim == 2:
        overall = match_global(scores)
        return PseudoLabels(overall.captions[:, None], overall.scores, overall.tie)
    inside = match_groups(scores)
    return PseudoLabels(inside.captions, inside.margin, inside.tie)


def candidates(
    scores: Scores,
    is_global: bool,
    order: np.ndarray | None = None,
    rule: Callable[[np.ndarray], PseudoLabels] = matching,
) -> PseudoLabels:
    """Pseudo-labels of every unit by a rule, with captions permuted as for `in_order`, or in the original order."""
    return rule(in_order(scores, is_global, order))


def in_order(scores: Scores, is_global: bool, order: np.ndarray | None) -> np.ndarray:
    """Permutes the captions of scores [groups, images, captions], or [images, captions] in the global variant.

    ``order`` is int [groups, captions], or [captions] in the global variant; None keeps the order. With more images
    than captions, the result has captions as rows and images as columns.
    """
    if is_global:
        assert scores.all_pairs is not None, "the global variant scores every pair"
        return scores.all_pairs if order is None else scores.all_pairs[:, order]
    inside = fewer_first(scores.groups)
    return inside if order is None else np.take_along_axis(inside, order[:, None, :], axis=2)


Supervision = Callable[[SelectionProposal], Selection]


def algorithm1_selection(proposal: SelectionProposal) -> Selection:
    """The supervision of Algorithm 1: trains on the units that the threshold selects."""
    return proposal.choice


def first_threshold(config: TTMConfig, labels: PseudoLabels, by_share: bool) -> float:
    """tau_1: as given, else the threshold that selects the fraction `TTMConfig.coverage` of all units.

    In logits; a fraction when ``by_share``.
    """
    if config.tau_start is not None:
        return config.tau_start
    if by_share:
        return DEFAULT_SHARE
    clear = labels.confidence[eligible(labels, config.ties)]
    if len(clear) == 0:
        return 0.0
    return threshold_for_coverage(clear, min(1.0, config.coverage * len(labels.tie) / len(clear)))


def select(labels: PseudoLabels, threshold: float, by_share: bool, ties: Ties = "exclude") -> np.ndarray:
    """Units to train on, bool [units]: sufficiently confident, and by default not tied.

    Args:
        labels: the candidates.
        threshold: tau_t; logits, or a fraction when ``by_share``: then the top 1 - tau_t of all units by confidence.
        by_share: the share rule (section B.1). The number of units to select is this fraction of all units, including
            tied ones, rounded down as in the authors' code; of units with equal confidence, later ones come first.
        ties: as in `TTMConfig`.
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


def oracle(truth: np.ndarray) -> Supervision:
    """A supervision that selects exactly the untied units with a correct matching (section 4.5): an upper bound.

    ``truth`` has the true captions by position in the task's original order, int [units, images of a unit].
    """

    def choose(proposal: SelectionProposal) -> Selection:
        right = (proposal.in_task_order == truth).all(axis=1)
        return replace(proposal.choice, selected=right & ~proposal.tie)

    return choose


def placebo(proposal: SelectionProposal) -> Selection:
    """Control: the units that TTM selects, each with a random matching; measures the effect of training as such.

    In the global variant the selected images get captions drawn without repetition from all captions.
    """
    chosen = proposal.choice
    captions = chosen.captions.copy()
    n_units, images = captions.shape
    if proposal.is_global:
        drawn = proposal.rng.permutation(proposal.n_captions)[:n_units, None]
    else:
        every = np.broadcast_to(np.arange(proposal.n_captions), (n_units, proposal.n_captions))
        drawn = proposal.rng.permuted(every, axis=1)[:, :images]
    captions[chosen.selected] = drawn[chosen.selected]
    return Selection(captions, chosen.selected, _renamed(chosen.soft, chosen.captions, captions))


def shuffle(proposal: SelectionProposal) -> Selection:
    """Control: TTM's units and pseudo-labels, with each label moved to another selected unit.

    With fewer than two selected units, no label can be moved and nothing is trained.
    """
    chosen = proposal.choice
    units = proposal.rng.permutation(np.flatnonzero(chosen.selected))
    if len(units) < 2:
        return replace(chosen, selected=np.zeros_like(chosen.selected))
    captions, soft = chosen.captions.copy(), None if chosen.soft is None else chosen.soft.copy()
    captions[units] = chosen.captions[np.roll(units, 1)]
    if soft is not None and chosen.soft is not None:
        soft[units] = chosen.soft[np.roll(units, 1)]
    return Selection(captions, chosen.selected, soft)


def _renamed(soft: np.ndarray | None, before: np.ndarray, after: np.ndarray) -> np.ndarray | None:
    """Permutes the captions of soft labels as the hard labels change from ``before`` to ``after``."""
    if soft is None:
        return None
    moved = np.empty_like(soft)
    old, new = (all_captions(captions, soft.shape[2])[:, None, :] for captions in (before, after))
    np.put_along_axis(moved, new, np.take_along_axis(soft, old, axis=2), axis=2)
    return moved


def all_captions(given: np.ndarray, count: int) -> np.ndarray:
    """Appends the captions that are not yet in int [units, images], each once: int [units, count].

    >>> all_captions(np.array([[2, 0]]), 4).tolist()
    [[2, 0, 1, 3]]
    """
    rows = [[*dict.fromkeys(row), *sorted(set(range(count)).difference(row))] for row in given.tolist()]
    return np.array(rows, dtype=given.dtype).reshape(len(given), count)


CONTROLS: Mapping[str, Callable[[SelectionProposal], Selection]] = {"placebo": placebo, "shuffle": shuffle}
