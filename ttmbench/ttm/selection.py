"""Which units TTM trains on: the first threshold, and what a threshold keeps (Algorithm 1, line 5; section B.1).

Nothing in this file knows which caption is true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ttmbench.config import DEFAULT_SHARE, TTMConfig
from ttmbench.schedules import threshold_for_coverage

Ties = Literal["exclude", "include"]


@dataclass(frozen=True)
class PseudoLabels:
    """A candidate matching of every unit (a group; a pair in the global variant) and how sure the model is of it.

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
    """What an iteration trains on.

    Attributes:
        captions: as in `PseudoLabels`.
        selected: bool [units].
    """

    captions: np.ndarray
    selected: np.ndarray


def first_threshold(config: TTMConfig, labels: PseudoLabels, by_share: bool) -> float:
    """tau_1: the one that is stated, else one that keeps the share `TTMConfig.coverage` of all units.

    Args:
        config: hyperparameters.
        labels: of the raw model.
        by_share: as for `select`.

    Returns:
        Logits; a share when ``by_share``.
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
    """Which units become pseudo-labels: confident enough, and by default never a tied one.

    Args:
        labels: the candidates.
        threshold: tau_t; logits, or a share when ``by_share``: then the top 1 - tau_t of all units by confidence.
        by_share: the share rule (section B.1). The number to keep is that share of all units, tied ones included,
            rounded down as the authors do; of units with equal confidence at the end of it, the later ones are kept.
        ties: as in `TTMConfig`.

    Returns:
        bool [units].
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
