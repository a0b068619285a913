"""Which units TTM trains on: the first threshold, and what a threshold selects (Algorithm 1, line 5; section B.1).

A `Supervision` may decide otherwise: an oracle, and the controls that show what a gain is made of. Only the oracle,
which is named so wherever its numbers appear, knows which caption is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ttmbench._arrays.scores import fewer_first
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
        confidence: what tau_t is compared with, logits [units]: the margin; the pair's score in the global variant.
        tie: bool [units]; a tied unit is selected only where ties are included.
        soft: soft labels, float [units, images of a unit, captions to choose from], rows sum to 1; None for hard ones.
    """

    captions: np.ndarray
    confidence: np.ndarray
    tie: np.ndarray
    soft: np.ndarray | None = None


@dataclass(frozen=True)
class Selection:
    """What an iteration trains on: captions and soft labels as in `PseudoLabels`, of the ``selected``, bool [units]."""

    captions: np.ndarray
    selected: np.ndarray
    soft: np.ndarray | None = None


@dataclass(frozen=True)
class SelectionProposal:
    """What TTM would train on in an iteration, for a supervision that decides otherwise (an oracle, a control)."""

    choice: Selection  # Algorithm 1's own
    in_task_order: np.ndarray  # its captions by their positions in the task's own order, int [units, images of a unit]
    tie: np.ndarray  # bool [units]
    n_captions: int  # how many captions a unit has to choose from
    is_global: bool  # units are pairs of one assignment, in which no caption is given twice
    rng: np.random.Generator  # for random draws; the same seed and iteration give the same stream


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
    """The pseudo-label of every unit by a rule, among captions in an order as for `in_order`; else in their own."""
    return rule(in_order(scores, is_global, order))


def in_order(scores: Scores, is_global: bool, order: np.ndarray | None) -> np.ndarray:
    """Scores [groups, images, captions], globally [images, captions], with captions in an order, or None for their own.

    ``order`` is int [groups, captions], globally [captions]. With more images than captions, which choose among them,
    rows are captions and columns images.
    """
    if is_global:
        assert scores.all_pairs is not None, "the global variant scores every pair"
        return scores.all_pairs if order is None else scores.all_pairs[:, order]
    inside = fewer_first(scores.groups)
    return inside if order is None else np.take_along_axis(inside, order[:, None, :], axis=2)


Supervision = Callable[[SelectionProposal], Selection]


def algorithm1_selection(proposal: SelectionProposal) -> Selection:
    """The supervision of Algorithm 1: train on what the threshold selects."""
    return proposal.choice


def first_threshold(config: TTMConfig, labels: PseudoLabels, by_share: bool) -> float:
    """tau_1: as given, else the one that selects the fraction `TTMConfig.coverage` of all units of the raw model.

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
    """Which units become pseudo-labels, bool [units]: confident enough, and by default never a tied one.

    Args:
        labels: the candidates.
        threshold: tau_t; logits, or a fraction when ``by_share``: then the top 1 - tau_t of all units by confidence.
        by_share: the share rule (section B.1). The number to select is that fraction of all units, tied ones included,
            rounded down as the authors do; of units with equal confidence at the end of it, the later ones count.
        ties: as in `TTMConfig`.
    """
    allowed = eligible(labels, ties)
    if not by_share:
        return (labels.confidence >= threshold) & allowed
    keep = math.floor((1 - threshold) * len(labels.tie) + 1e-10)  # 0.1 of 30 is 3, whatever 1 - 0.9 rounds to
    ranked = np.argsort(np.where(allowed, labels.confidence, -np.inf), kind="stable")[::-1]
    chosen = np.zeros(len(labels.tie), dtype=bool)
    chosen[ranked[: max(0, keep)]] = True
    return chosen & allowed


def eligible(labels: PseudoLabels, ties: Ties) -> np.ndarray:
    """Units that can be selected at all, bool [units]."""
    return ~labels.tie if ties == "exclude" else np.ones(len(labels.tie), dtype=bool)


def oracle(truth: np.ndarray) -> Supervision:
    """A supervision that selects exactly the units whose matching is correct and no tie (section 4.5): an upper bound.

    ``truth`` are the true captions by their positions in the task's own order, int [units, images of a unit].
    """

    def choose(proposal: SelectionProposal) -> Selection:
        right = (proposal.in_task_order == truth).all(axis=1)
        return replace(proposal.choice, selected=right & ~proposal.tie)

    return choose


def placebo(proposal: SelectionProposal) -> Selection:
    """The units that TTM selects, each with a matching drawn at random: what training as such does to a model.

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
    """TTM's own pseudo-labels, each moved to another selected unit: the same labels and units, combined wrongly.

    With fewer than two selected units nothing can be moved, and nothing is trained on.
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
    """Soft labels whose captions change places, so that what ``before`` was given is what ``after`` is given."""
    if soft is None:
        return None
    moved = np.empty_like(soft)
    old, new = (all_captions(captions, soft.shape[2])[:, None, :] for captions in (before, after))
    np.put_along_axis(moved, new, np.take_along_axis(soft, old, axis=2), axis=2)
    return moved


def all_captions(given: np.ndarray, count: int) -> np.ndarray:
    """The captions that are given, int [units, images], each once, and behind them the others; int [units, count].

    >>> all_captions(np.array([[2, 0]]), 4).tolist()
    [[2, 0, 1, 3]]
    """
    rows = [[*dict.fromkeys(row), *sorted(set(range(count)).difference(row))] for row in given.tolist()]
    return np.array(rows, dtype=given.dtype).reshape(len(given), count)


CONTROLS: Mapping[str, Callable[[SelectionProposal], Selection]] = {"placebo": placebo, "shuffle": shuffle}
