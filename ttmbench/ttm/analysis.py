"""The paper's analyses for any model and task (arXiv:2510.07632, Fig. 2 and 4): numbers as JSON, no figures.

Each reads labels to report precision or a metric; only the oracle is steered by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench.errors import UsageError
from ttmbench.results.summary import metric_chance, metric_mean, metric_values
from ttmbench.schedules import threshold_for_coverage
from ttmbench.ttm import learning_rates as learningrates
from ttmbench.ttm.algorithm import Step
from ttmbench.ttm.learning_rates import agreement, matchings, observe
from ttmbench.ttm.selection import Supervision, algorithm1_selection
from ttmbench.ttm.selection import oracle as oracle_supervision
from ttmbench.ttm.trainer import restored
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import MetricSpec

BAND = (0.15, 0.30)  # share of groups that tau_1 should keep (section 3.2)
TAU_COVERAGES = (0.15, 0.20, 0.25, 0.30)
POINTS = 201


@dataclass(frozen=True)
class Question:
    """What is to be analysed.

    Attributes:
        stage: the model on a task; its ``seeds`` are run one by one.
        metric: the metric that the curves show.
        taus: values of tau_1 to compare, logits (fractions under the share rule); None chooses by coverage.
        lrs: learning rates to compare; None takes `ttmbench.ttm.learning_rates.grid`.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: kind of interval.
    """

    stage: Adaptation
    metric: MetricSpec
    taus: Sequence[float] | None = None
    lrs: Sequence[float] | None = None
    bootstrap_iters: int = 1000
    interval: stats.IntervalMethod = "wilson"


def thresholds(question: Question) -> dict[str, Any]:
    """Number of units that a threshold selects, and the fraction of correct ones among them (Fig. 2 left and middle).

    Nothing is trained. Returns ``threshold``, ``selected`` and ``accuracy`` (null where nothing is selected) as lists
    of equal length, and ``band``: the thresholds that select 30 % and 15 %.
    """
    confidence, tie, right = _confidence(question.stage)
    clear = confidence[~tie]
    if len(clear) == 0:
        raise UsageError("every matching of this task ties, so no threshold keeps any")
    low = min(0.0, float(clear.min())) if question.stage.spec.is_global else 0.0
    grid = np.linspace(low, float(clear.max()), POINTS)
    kept = (confidence[None, :] >= grid[:, None]) & ~tie[None, :]
    selected, correct = kept.sum(axis=1), (kept & right[None, :]).sum(axis=1)
    total = len(confidence)
    return {
        "candidates": total,
        "tied": int(tie.sum()),
        "threshold": grid.tolist(),
        "selected": selected.tolist(),
        "accuracy": [int(c) / int(s) if s else None for c, s in zip(correct, selected, strict=True)],
        "band": {str(share): threshold_for_coverage(clear, min(1.0, share * total / len(clear))) for share in BAND},
    }


def supervision(question: Question) -> dict[str, Any]:
    """What the raw model scores by each way of assigning captions (Fig. 4 left): how good a teacher each would be.

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


def schedules(question: Question) -> dict[str, Any]:
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


def oracle(question: Question) -> dict[str, Any]:
    """TTM beside its oracle variant, which trains on exactly the correct matchings (Fig. 4 middle): an upper bound.

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


def tau(question: Question) -> dict[str, Any]:
    """TTM from several values of tau_1 (Fig. 4 right): how much does the first threshold matter?

    Returns ``baseline`` and a curve for each tau_1, largest first; by default those that select 15, 20, 25 and 30 % of
    the groups at first.
    """
    stage = question.stage
    taus = question.taus if question.taus is not None else _taus(stage)
    curves = {}
    for value in sorted(set(taus), reverse=True):
        settings = stage.settings.with_changes({"tau_start": float(value)}, "analyze")
        curves[f"{value:.4g}"] = _curve(question, replace(stage, settings=settings))
    return {"baseline": metric_mean(question.metric, stage.raw), "curves": curves}


def lr(question: Question) -> dict[str, Any]:
    """TTM at several learning rates: what each gives beside what can be seen of it without labels.

    Returns ``baseline``, the rate that would be used (``default``) and one entry a rate (by default rates around that
    one), lists by seed. ``metric`` and ``final`` read labels; nothing else does.
    """
    stage = question.stage
    rates = sorted(set(question.lrs or learningrates.grid(stage.learning_rate)))
    baseline = metric_mean(question.metric, stage.raw)
    return {
        "baseline": baseline,
        "default": stage.learning_rate,
        "candidates": len(_confidence(stage)[0]),
        "rates": [_at_rate(question, float(rate)) for rate in rates],
    }


ANALYSES: Mapping[str, Callable[[Question], dict[str, Any]]] = {
    "thresholds": thresholds,
    "schedules": schedules,
    "supervision": supervision,
    "oracle": oracle,
    "tau": tau,
    "lr": lr,
}
TRAINS = ("schedules", "oracle", "tau", "lr")
ALPHA = "alpha"  # of generative scores, in `ttmbench.scoring.debiasing`


def _curve(question: Question, stage: Adaptation, supervision: Supervision = algorithm1_selection) -> dict[str, Any]:
    """One TTM run a seed: what happens in every iteration, lists [seeds][iterations]."""
    rows: dict[str, list[list[Any]]] = {"threshold": [], "coverage": [], "pseudo_label_accuracy": [], "metric": []}
    for seed in stage.seeds:
        records = list(_records(question, stage, seed, supervision))
        for name, row in rows.items():
            row.append([record[name] for record in records])
    ends = np.array([row[-1] for row in rows["metric"]], dtype=np.float64)
    return {**rows, "final": float(ends.mean()), "final_seed_std": stats.seed_std(ends)}


def _records(question: Question, stage: Adaptation, seed: int, supervision: Supervision) -> Iterator[dict[str, Any]]:
    with restored(stage.stage):
        for step in stage.steps(seed, supervision):
            record = stage.record_of(step, seed)
            yield {
                "threshold": record.threshold,
                "coverage": record.coverage,
                "pseudo_label_accuracy": record.pseudo_label_accuracy,
                "metric": metric_mean(question.metric, step.scores),
            }


def _at_rate(question: Question, rate: float) -> dict[str, Any]:
    """Every seed at one learning rate."""
    stage = question.stage
    stage = replace(stage, settings=stage.settings.with_changes({"lr": rate}, "analyze"))
    metric: list[float | None] = []
    runs = []
    for seed in stage.seeds:
        ended: list[Step] = []
        with restored(stage.stage):
            runs.append(observe(stage.steps(seed), stage.raw, seed, stage.spec.is_global, ended.append))
        metric.append(metric_mean(question.metric, ended[0].scores) if ended else None)
    whole = [value for value in metric if value is not None]
    ends = np.array(whole if len(whole) == len(metric) else [], dtype=np.float64)
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
    """Confidence, tie and whether the matching is correct, of every unit, for the model as it is."""
    labels = matchings(stage.raw, stage.spec.is_global)
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
