"""The paper's analyses for any model and task (arXiv:2510.07632, Fig. 2 and 4), as JSON values.

Each uses labels to report precision or a metric; only the oracle trains with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench.errors import DivergedError, UsageError
from ttmbench.results.summary import metric_chance, metric_mean, metric_values
from ttmbench.schedules import threshold_for_coverage
from ttmbench.ttm.selection import PseudoLabels, Supervision, algorithm1_selection, candidates
from ttmbench.ttm.selection import oracle as oracle_supervision
from ttmbench.ttm.trainer import Step, restored
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import MetricSpec, Scores

BAND = (0.15, 0.30)  # fractions of groups that tau_1 should select (section 3.2)
TAU_COVERAGES = (0.15, 0.20, 0.25, 0.30)
POINTS = 201
FACTORS = (0.06, 0.2, 0.4, 1.0, 2.0, 4.0)  # factors on the default learning rate; from 1e-5 they reach 4e-5
# fraction of the units, those with the largest raw margins, whose matchings a good run should not change
CONFIDENT = 0.25

Analysis = dict[str, Any]
"""JSON values by name."""


@dataclass(frozen=True)
class Question:
    """An analysis: the model on a task, and the settings of the analysis."""

    stage: Adaptation  # the model on a task, with its ``seeds``
    metric: MetricSpec  # metric of the curves
    taus: Sequence[float] | None = None  # tau_1, logits (fractions under the share rule); None: by coverage
    lrs: Sequence[float] | None = None  # learning rates to compare; None takes those of `grid`
    bootstrap_iters: int = 1000  # resamples of bootstrap intervals; 0 for no interval of any kind
    interval: stats.IntervalMethod = "wilson"  # kind of interval


def thresholds(question: Question) -> Analysis:
    """Number of units that a threshold selects, and the fraction of them that is correct (Fig. 2 left and middle).

    Nothing is trained. Returns ``threshold``, ``selected`` and ``accuracy`` (null where nothing is selected) as lists
    of equal length, and ``band``: the thresholds that select 30 % and 15 %.
    """
    confidence, tie, right = _confidence(question.stage)
    clear = confidence[~tie]
    if len(clear) == 0:
        raise UsageError("every matching of this task ties, so no threshold keeps any")
    low = min(0.0, float(clear.min())) if question.stage.spec.is_global else 0.0
    levels = np.linspace(low, float(clear.max()), POINTS)
    mask = (confidence[None, :] >= levels[:, None]) & ~tie[None, :]
    selected, correct = mask.sum(axis=1), (mask & right[None, :]).sum(axis=1)
    total = len(confidence)
    return {
        "candidates": total,
        "tied": int(tie.sum()),
        "threshold": levels.tolist(),
        "selected": selected.tolist(),
        "accuracy": [int(c) / int(s) if s else None for c, s in zip(correct, selected, strict=True)],
        "band": {str(share): threshold_for_coverage(clear, min(1.0, share * total / len(clear))) for share in BAND},
    }


def supervision(question: Question) -> Analysis:
    """Accuracy of the raw model under each way of assigning captions (Fig. 4 left): the quality of pseudo-labels.

    Nothing is trained. Returns metric -> value, 95 % interval and chance; null where a metric is undefined.
    """
    bars = {}
    for metric in question.stage.metrics:
        values = metric_values(metric, question.stage.raw)
        interval = None if values is None else stats.interval(values, question.interval, question.bootstrap_iters, 0)
        bars[metric.name] = {
            "value": None if values is None else stats.mean(values),
            "ci": None if interval is None else list(interval),
            "chance": metric_chance(metric, question.stage.raw),
        }
    return {"metrics": bars}


def schedules(question: Question) -> Analysis:
    """TTM under every registered threshold schedule, from one tau_1 to one tau_T (Fig. 2 right).

    Returns ``baseline`` and, for each schedule, thresholds and the metric after every iteration.
    """
    stage = question.stage
    names = list(stage.registry.schedules)
    runs = {
        name: _curve(question, replace(stage, settings=stage.settings.with_changes({"schedule": name}, "analyze")))
        for name in names
    }
    return {"baseline": metric_mean(question.metric, stage.raw), "curves": runs}


def oracle(question: Question) -> Analysis:
    """TTM and its oracle variant, which trains on exactly the correct matchings (Fig. 4 middle): an upper bound.

    Returns ``baseline`` and the curves ``ttm`` and ``oracle``; the latter reads labels.
    """
    stage = question.stage
    return {
        "baseline": metric_mean(question.metric, stage.raw),
        "curves": {
            "ttm": _curve(question, stage),
            "oracle": _curve(question, stage, oracle_supervision(stage.truth)),
        },
    }


def tau(question: Question) -> Analysis:
    """TTM with several values of tau_1 (Fig. 4 right): sensitivity to the first threshold.

    Returns ``baseline`` and a curve for each tau_1, largest first; by default the values that select 15, 20, 25 and 30
    % of the groups in the first iteration.
    """
    stage = question.stage
    taus = question.taus if question.taus is not None else _taus(stage)
    curves = {}
    for value in sorted(set(taus), reverse=True):
        settings = stage.settings.with_changes({"tau_start": float(value)}, "analyze")
        curves[f"{value:.4g}"] = _curve(question, replace(stage, settings=settings))
    return {"baseline": metric_mean(question.metric, stage.raw), "curves": curves}


def lr(question: Question) -> Analysis:
    """TTM at several learning rates: the final metric, and statistics that need no labels.

    Returns ``baseline``, the default learning rate (``default``) and one entry per rate (by default rates around the
    default), with lists by seed. Only ``metric`` and ``final`` use labels.
    """
    stage = question.stage
    rates = sorted(set(question.lrs or grid(stage.learning_rate)))
    baseline = metric_mean(question.metric, stage.raw)
    return {
        "baseline": baseline,
        "default": stage.learning_rate,
        "candidates": len(_confidence(stage)[0]),
        "rates": [_at_rate(question, float(rate)) for rate in rates],
    }


ANALYSES: Mapping[str, Callable[[Question], Analysis]] = {
    "thresholds": thresholds,
    "schedules": schedules,
    "supervision": supervision,
    "oracle": oracle,
    "tau": tau,
    "lr": lr,
}
TRAINS = ("schedules", "oracle", "tau", "lr")
ALPHA = "alpha"  # of generative scores, in `ttmbench.scoring.debiasing`


def _curve(question: Question, stage: Adaptation, supervision: Supervision = algorithm1_selection) -> Analysis:
    """One TTM run per seed: values of every iteration, lists [seeds][iterations]."""
    names = ("threshold", "coverage", "pseudo_label_accuracy")
    rows: dict[str, list[list[float | None]]] = {name: [] for name in (*names, "metric")}
    for seed in stage.seeds:
        for row in rows.values():
            row.append([])
        with restored(stage.stage):
            for step in stage.steps(seed, supervision):
                record = stage.record_of(step, seed)
                for name in names:
                    rows[name][-1].append(getattr(record, name))
                rows["metric"][-1].append(metric_mean(question.metric, step.scores))
    ends = np.array([row[-1] for row in rows["metric"]], dtype=np.float64)
    return {**rows, "final": float(ends.mean()), "final_seed_std": stats.seed_std(ends)}


def _at_rate(question: Question, rate: float) -> Analysis:
    """Every seed at one learning rate."""
    stage = question.stage
    stage = replace(stage, settings=stage.settings.with_changes({"lr": rate}, "analyze"))
    runs = []
    for seed in stage.seeds:
        with restored(stage.stage):
            runs.append(observe(stage.steps(seed), stage.raw, stage.spec.is_global))
    metric = [None if run.scores is None else metric_mean(question.metric, run.scores) for run in runs]
    known = [value for value in metric if value is not None]
    ends = np.array(known if len(known) == len(metric) else [], dtype=np.float64)
    return {
        "lr": rate,
        "metric": metric,
        "final": float(ends.mean()) if len(ends) else None,
        "final_seed_std": stats.seed_std(ends) if len(ends) else None,
        "selected": [list(run.selected) for run in runs],
        "loss": [list(run.loss) for run in runs],
        "final_loss": [run.final_loss for run in runs],
        "confident_kept": [run.confident_kept for run in runs],
        "agreement": agreement(runs),
        "diverged": [run.diverged for run in runs],
    }


def _confidence(stage: Adaptation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidence, tie and correctness of the matching of every unit, for the current model."""
    labels = candidates(stage.raw, stage.spec.is_global)
    return labels.confidence, labels.tie, (labels.captions == stage.truth).all(axis=1) & ~labels.tie


def _taus(stage: Adaptation) -> list[float]:
    if stage.settings.by_share(stage.spec.is_global):
        return [1 - share for share in (0.3, 0.4, 0.5, 0.6)]
    confidence, tie, _ = _confidence(stage)
    clear = confidence[~tie]
    if len(clear) == 0:
        raise UsageError("every matching of this task ties, so no threshold keeps any")
    scale = len(tie) / len(clear)
    return [threshold_for_coverage(clear, min(1.0, share * scale)) for share in TAU_COVERAGES]


# --- learning rates, and statistics of them that need no labels (docs/finetune.md) -----------------------------------


@dataclass(frozen=True)
class Seen:
    """Statistics of one run of TTM at one learning rate that need no labels."""

    matching: PseudoLabels | None  # of the adapted model, or None if the run diverged
    selected: tuple[int, ...]  # units that each iteration trained on
    loss: tuple[float | None, ...]  # of the last epoch of every iteration; None where it trained on nothing
    confident_kept: float | None  # see `confident_kept`; None if it diverged
    scores: Scores | None = None  # of the adapted model, or None if the run diverged
    diverged: str | None = None  # the error, if training diverged

    @property
    def final_loss(self) -> float | None:
        """Loss of the last iteration that trained; None if none did, or if the run diverged."""
        losses = [loss for loss in self.loss if loss is not None]
        return losses[-1] if losses and self.diverged is None else None


def grid(rate: float) -> tuple[float, ...]:
    """Learning rates to compare, around the default.

    >>> grid(1e-5)
    (6e-07, 2e-06, 4e-06, 1e-05, 2e-05, 4e-05)
    """
    return tuple(float(f"{rate * factor:.3g}") for factor in FACTORS)


def observe(steps: Iterable[Step], raw: Scores, is_global: bool) -> Seen:
    """Runs all iterations from the raw scores; divergence is recorded and not raised."""
    selected: list[int] = []
    loss: list[float | None] = []
    last: Step | None = None
    try:
        for last in steps:
            selected.append(int(last.selected.sum()))
            loss.append(last.loss[-1] if last.loss else None)
    except DivergedError as error:
        return Seen(None, tuple(selected), tuple(loss), None, diverged=str(error))
    assert last is not None, "TTM has at least one iteration"
    after = candidates(last.scores, is_global)
    fraction = confident_kept(candidates(raw, is_global), after)
    return Seen(after, tuple(selected), tuple(loss), fraction, last.scores)


def same(one: PseudoLabels, other: PseudoLabels) -> np.ndarray:
    """Units for which two models have the same matching, bool [units]; False for ties."""
    return (one.captions == other.captions).all(axis=1) & ~one.tie & ~other.tie


def agreement(runs: Sequence[Seen]) -> float | None:
    """Fraction of units with the same matching for two seeds, averaged over pairs of seeds; None if undefined."""
    matchings = [run.matching for run in runs if run.matching is not None]
    if len(matchings) < 2 or len(matchings) < len(runs):
        return None
    return fmean(float(same(left, right).mean()) for left, right in itertools.combinations(matchings, 2))


def confident_kept(before: PseudoLabels, after: PseudoLabels) -> float | None:
    """Fraction of the most confident quarter of units whose matching did not change; None if all tie."""
    clear = np.flatnonzero(~before.tie)
    if len(clear) == 0:
        return None
    count = max(1, round(CONFIDENT * len(clear)))
    most_confident = clear[np.argsort(-before.confidence[clear], kind="stable")[:count]]
    return float(same(before, after)[most_confident].mean())
