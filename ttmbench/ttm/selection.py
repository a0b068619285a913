"""Which units TTM trains on: the first threshold, and what a threshold selects (Algorithm 1, line 5; section B.1).

A `Supervision` may decide otherwise: an oracle, and the controls that show what a gain is made of. Only the oracle,
which is named so wherever its numbers appear, knows which caption is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """

    captions: np.ndarray
    confidence: np.ndarray
    tie: np.ndarray


@dataclass(frozen=True)
class Selection:
    """What an iteration trains on: ``captions`` as in `PseudoLabels`, of the ``selected`` units, bool [units]."""

    captions: np.ndarray
    selected: np.ndarray


@dataclass(frozen=True)
class SelectionProposal:
    """What TTM would train on in an iteration, for a supervision that decides otherwise (an oracle, a control)."""

    choice: Selection  # Algorithm 1's own
    in_task_order: np.ndarray  # its captions by their positions in the task's own order, int [units, images of a unit]
    tie: np.ndarray  # bool [units]
    n_captions: int  # how many captions a unit has to choose from
    is_global: bool  # units are pairs of one assignment, in which no caption is given twice
    rng: np.random.Generator  # for random draws; the same seed and iteration give the same stream


def candidates(scores: Scores, is_global: bool, order: np.ndarray | None = None) -> PseudoLabels:
    """The matching of every unit, among captions in an order, int [groups, options] or [captions]; else in their own.

    Options are captions; with more images than captions, which choose among them, they are images.
    """
    if is_global:
        assert scores.all_pairs is not None, "the global variant scores every pair"
        overall = match_global(scores.all_pairs if order is None else scores.all_pairs[:, order])
        return PseudoLabels(overall.captions[:, None], overall.scores, overall.tie)
    inside = fewer_first(scores.groups)
    matching = match_groups(inside if order is None else np.take_along_axis(inside, order[:, None, :], axis=2))
    return PseudoLabels(matching.captions, matching.margin, matching.tie)


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
    clear = labels.confidence[_eligible(labels, config.ties)]
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
    eligible = _eligible(labels, ties)
    if not by_share:
        return (labels.confidence >= threshold) & eligible
    keep = math.floor((1 - threshold) * len(labels.tie) + 1e-10)  # 0.1 of 30 is 3, whatever 1 - 0.9 rounds to
    ranked = np.argsort(np.where(eligible, labels.confidence, -np.inf), kind="stable")[::-1]
    chosen = np.zeros(len(labels.tie), dtype=bool)
    chosen[ranked[: max(0, keep)]] = True
    return chosen & eligible


def _eligible(labels: PseudoLabels, ties: Ties) -> np.ndarray:
    """Units that can be selected at all."""
    return ~labels.tie if ties == "exclude" else np.ones(len(labels.tie), dtype=bool)


def oracle(truth: np.ndarray) -> Supervision:
    """A supervision that selects exactly the units whose matching is correct and no tie (section 4.5): an upper bound.

    ``truth`` are the true captions by their positions in the task's own order, int [units, images of a unit].
    """

    def choose(proposal: SelectionProposal) -> Selection:
        right = (proposal.in_task_order == truth).all(axis=1)
        return Selection(proposal.choice.captions, right & ~proposal.tie)

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
    return Selection(captions, chosen.selected)


def shuffle(proposal: SelectionProposal) -> Selection:
    """TTM's own pseudo-labels, each moved to another selected unit: the same labels and units, combined wrongly.

    With fewer than two selected units nothing can be moved, and nothing is trained on.
    """
    chosen = proposal.choice
    units = proposal.rng.permutation(np.flatnonzero(chosen.selected))
    if len(units) < 2:
        return Selection(chosen.captions, np.zeros_like(chosen.selected))
    captions = chosen.captions.copy()
    captions[units] = chosen.captions[np.roll(units, 1)]
    return Selection(captions, chosen.selected)


CONTROLS: Mapping[str, Callable[[SelectionProposal], Selection]] = {"placebo": placebo, "shuffle": shuffle}
