"""Which units TTM trains on: the first threshold, and what a threshold keeps (Algorithm 1, line 5; section B.1).

Nothing in this file knows which caption is true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ttmbench.config import DEFAULT_SHARE, TTMConfig
from ttmbench.schedules import threshold_for_coverage


@dataclass(frozen=True)
class PseudoLabels:
    """A candidate matching of every unit (a group; a pair in the global variant) and how sure the model is of it.

    Attributes:
        captions: position of the caption given to each image, among the shuffled ones, int [units, images of a unit].
        confidence: what tau_t is compared with, logits [units]: the margin; the pair's score in the global variant.
        tie: bool [units]; a tied unit is never selected.
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
    clear = labels.confidence[~labels.tie]
    if len(clear) == 0:
        return 0.0
    return threshold_for_coverage(clear, min(1.0, config.coverage * len(labels.tie) / len(clear)))


def select(labels: PseudoLabels, threshold: float, by_share: bool) -> np.ndarray:
    """Which units become pseudo-labels: confident enough, and never a tied one.

    Args:
        labels: the candidates.
        threshold: tau_t; logits, or a share when ``by_share``: then the top 1 - tau_t of all units by confidence.
        by_share: the share rule (section B.1). The number to keep is that share of all units, tied ones included,
            rounded down as the authors do; of units with equal confidence at the end of it, the later ones are kept.

    Returns:
        bool [units].
    """
    if not by_share:
        return (labels.confidence >= threshold) & ~labels.tie
    keep = math.floor((1 - threshold) * len(labels.tie) + 1e-10)  # 0.1 of 30 is 3, whatever 1 - 0.9 rounds to
    ranked = np.argsort(np.where(labels.tie, -np.inf, labels.confidence), kind="stable")[::-1]
    chosen = np.zeros(len(labels.tie), dtype=bool)
    chosen[ranked[: max(0, keep)]] = True
    return chosen & ~labels.tie
