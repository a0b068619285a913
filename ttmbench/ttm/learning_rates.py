"""Runs of TTM at several learning rates, and what can be seen of them without labels (docs/learning-rate.md)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ttmbench._arrays.scores import fewer_first
from ttmbench.errors import DivergedError
from ttmbench.matching import match_global, match_groups
from ttmbench.ttm.algorithm import Step
from ttmbench.ttm.selection import PseudoLabels
from ttmbench.types import Scores

FACTORS = (0.06, 0.2, 0.4, 1.0, 2.0, 4.0)  # on the learning rate that would be used; from 1e-5 they reach 4e-5
CONFIDENT = 0.25  # share of the units, those with the largest raw margins, that a good run should leave alone


@dataclass(frozen=True)
class Seen:
    """One run of TTM at one learning rate, as it looks without labels.

    Attributes:
        seed: of the run.
        matching: of the adapted model, or None if the run diverged.
        selected: units that each iteration trained on.
        loss: mean loss of the last epoch of every iteration; None where an iteration trained on nothing.
        confident_kept: fraction of the initially most confident units whose matching is unchanged; None if it diverged.
        diverged: the error, if training diverged.
    """

    seed: int
    matching: PseudoLabels | None
    selected: tuple[int, ...]
    loss: tuple[float | None, ...]
    confident_kept: float | None
    diverged: str | None = None

    @property
    def final_loss(self) -> float | None:
        """Of the last iteration that trained; None if none did, or the run diverged."""
        losses = [loss for loss in self.loss if loss is not None]
        return losses[-1] if losses and self.diverged is None else None


def grid(rate: float) -> tuple[float, ...]:
    """Learning rates to compare, around the one that would be used.

    >>> grid(1e-5)
    (6e-07, 2e-06, 4e-06, 1e-05, 2e-05, 4e-05)
    """
    return tuple(float(f"{rate * factor:.3g}") for factor in FACTORS)


def matchings(scores: Scores, is_global: bool) -> PseudoLabels:
    """The matching of every unit, its confidence, and ties."""
    if is_global:
        assert scores.all_pairs is not None, "the global variant scores every pair"
        overall = match_global(scores.all_pairs)
        return PseudoLabels(overall.captions[:, None], overall.scores, overall.tie)
    found = match_groups(fewer_first(scores.groups))
    return PseudoLabels(found.captions, found.margin, found.tie)


def observe(steps: Iterable[Step], raw: Scores, seed: int, is_global: bool, ended: Callable[[Step], object]) -> Seen:
    """Goes through the iterations of a run of `ttmbench.ttm.algorithm.adapt`, which may diverge without an error here.

    ``raw`` are the scores that the run starts from; ``ended`` is called with the last iteration.
    """
    selected: list[int] = []
    loss: list[float | None] = []
    last: Step | None = None
    try:
        for last in steps:
            selected.append(int(last.selected.sum()))
            loss.append(last.loss[-1] if last.loss else None)
    except DivergedError as error:
        return Seen(seed, None, tuple(selected), tuple(loss), None, str(error))
    assert last is not None, "TTM has at least one iteration"
    ended(last)
    after = matchings(last.scores, is_global)
    return Seen(seed, after, tuple(selected), tuple(loss), confident_kept(matchings(raw, is_global), after))


def same(one: PseudoLabels, other: PseudoLabels) -> np.ndarray:
    """Which units two models match alike, bool [units]; a tie is like nothing."""
    return (one.captions == other.captions).all(axis=1) & ~one.tie & ~other.tie


def agreement(runs: Sequence[Seen]) -> float | None:
    """Fraction of units that two seeds match alike, mean over pairs; None for fewer than two, or if one diverged."""
    found = [run.matching for run in runs]
    whole = [one for one in found if one is not None]
    if len(whole) < 2 or len(whole) < len(found):
        return None
    return fmean(float(same(one, other).mean()) for one, other in itertools.combinations(whole, 2))


def confident_kept(before: PseudoLabels, after: PseudoLabels) -> float | None:
    """Fraction of the quarter of units with the largest raw confidence that are matched as before; None if all tie."""
    clear = np.flatnonzero(~before.tie)
    if len(clear) == 0:
        return None
    count = max(1, round(CONFIDENT * len(clear)))
    surest = clear[np.argsort(-before.confidence[clear], kind="stable")[:count]]
    return float(same(before, after)[surest].mean())
