"""What ``ttmbench analyze`` does, as functions: the paper's analyses (arXiv:2510.07632, Fig. 2 and 4) for any model.

Each uses labels to report precision or a metric; only the oracle, and the alpha of each half, are found with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util import machine
from ttmbench._util.console import warn
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DivergedError, UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, model_settings, remarks
from ttmbench.evaluator.determinism import arithmetic_of, naming_what_cannot
from ttmbench.evaluator.run import run
from ttmbench.evaluator.score_task import Run, plan_task, score_task
from ttmbench.evaluator.settings import cache_of, resolve, task_settings, tasks_named
from ttmbench.evaluator.task import adaptation
from ttmbench.evaluator.task_result import Scored
from ttmbench.methods.variants import Adaptation
from ttmbench.model import DualEncoder, PairScorer
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import RAW, TTM
from ttmbench.results.summary import (
    metric_chance,
    metric_mean,
    metric_units,
    metric_values,
    seed_interval,
    seed_values,
)
from ttmbench.schedules import threshold_for_coverage
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.debiasing import sweep
from ttmbench.ttm.selection import PseudoLabels, Supervision, algorithm1_selection, candidates, oracle
from ttmbench.ttm.trainer import restored
from ttmbench.types import IterationRecord, MetricSpec, Record, Scores

SCHEMA_VERSION = "1.0"
TRAINS = ("schedules", "oracle", "tau", "lr")
BAND = (0.15, 0.30)  # fractions of groups that tau_1 should select (section 3.2)
TAU_COVERAGES = (0.15, 0.20, 0.25, 0.30)
POINTS = 201
FACTORS = (0.06, 0.2, 0.4, 1.0, 2.0, 4.0)  # factors on the default learning rate; from 1e-5 they reach 4e-5
# fraction of the units, those with the largest raw margins, whose matchings a good run should not change
CONFIDENT = 0.25
BINS = 20  # of confidence, for the calibration error
FLIPS = 9_999  # of the permutation test
_READS = {
    "lr": "to report 'baseline', 'metric' and 'final'; the rest of the data reads none",
    "alpha": "to report; and one half's labels choose the alpha of the other half",
}
_SUPERVISION = ("group_score", "individual_match", "global_assignment_accuracy", "group_match")


def documents(
    analysis: str,
    config: RunConfig,
    started: datetime,
    command: Sequence[str] = (),
    grid: Sequence[float] | None = None,
) -> Iterator[Record]:
    """Runs one analysis and yields its document for each task, of ``transfer`` one for all.

    ``grid`` are the thresholds of ``tau`` or the learning rates of ``lr``. UsageError if the analysis does not apply to
    the model or task, DataError for unreachable data or weights.
    """
    how = {"transfer": _transfer, "methods": _methods}.get(analysis)
    found = _analysed(analysis, config, grid) if how is None else how(config, command)
    for content in found:
        yield {
            "schema_version": SCHEMA_VERSION,
            "analysis": analysis,
            "model_name": config.model_name,
            **content,
            "date": started.timestamp(),
            "deterministic": config.deterministic,
            "packages": content.get("packages") or machine.packages(),
            "command": " ".join(command),
        }


def _analysed(analysis: str, config: RunConfig, grid: Sequence[float] | None) -> Iterator[Record]:
    """What an analysis of one model and one task at a time finds."""
    with arithmetic_of(config), naming_what_cannot():
        registry = build_registry(config.include_path)
        tasks = tasks_named(registry, config, config.tasks)
        model = make_adapter(registry, config.model, config.model_args, model_settings(config))
        if analysis == "alpha" and not (isinstance(model, PairScorer) and model.debiases):
            raise UsageError(f"model {config.model} has no log P(t) to subtract, so 'alpha' does not apply to it")
        if analysis != "alpha" and not model.trainable and (not isinstance(model, DualEncoder) or analysis in TRAINS):
            raise UsageError(f"model {config.model} cannot be adapted, so '{analysis}' does not apply to it")
        for remark in remarks(model):
            warn(remark)
        run, info = (
            Run(
                registry,
                config,
                model,
                BatchSizer.for_run(config.batch_size, model.device, config.deterministic),
                cache_of(config),
            ),
            model_info(model),
        )
        for task in tasks.values():
            yield {**_of_task(analysis, run, task, grid), "model_info": info}


def _of_task(analysis: str, run: Run, task: TaskFile, grid: Sequence[float] | None) -> Record:
    registry, config, spec, is_alpha = run.registry, run.config, task.spec, analysis == "alpha"
    if not is_alpha and spec.shape.true_captions > 1:
        raise UsageError(
            f"task '{spec.task}' has several true captions for each image, for which no adaptation is "
            f"defined, so '{analysis}' does not apply to it"
        )
    settings, run = task_settings(registry, config, spec), run.on(spec)
    plan = plan_task(
        run,
        task,
        settings if analysis in TRAINS else None,
        extra_metrics=_SUPERVISION if analysis == "supervision" else (),
        with_inputs=not is_alpha,
        with_parts=is_alpha,
    )
    scored = score_task(plan, run)
    by_name = {metric.name: metric for metric in plan.metrics}
    metric = registry.metrics["global_assignment_accuracy" if spec.is_global else "group_match"]
    hyperparameters: Record = {}
    seeds: Sequence[int] = []
    if is_alpha:
        assert scored.parts is not None, "parts were asked for"
        metric, seeds = metric_for(registry.metrics["group_score"], spec.shape), [config.seed]
        data = sweep(scored.parts, list({**by_name, metric.name: metric}.values()), metric.name, config.seed)
    else:
        shown = [by_name[name] for name in _SUPERVISION] if analysis == "supervision" else None
        stage = adaptation(scored, run, settings, shown)
        hyperparameters = {**settings.model_dump(mode="json"), "lr": stage.learning_rate}
        seeds = list(stage.seeds) if analysis in TRAINS else []
        data = _ANALYSES[analysis](stage, metric, config, grid)
    return {
        "task": spec.task,
        "task_version": spec.version,
        "matching": spec.matching,
        "n_groups": scored.n_groups,
        "source": scored.data.source,
        "data_sha256": scored.data.fingerprint,
        "metric": metric.name,
        "reads_labels": _READS.get(analysis, "to report; the curve 'oracle' also to select"),
        "hyperparameters": hyperparameters,
        "seeds": seeds,
        "data": data,
    }


# --- one task: each takes the model on a task, the metric of its curves, the configuration and a grid ----------------


def thresholds(stage: Adaptation, *_: object) -> Record:
    """Number of units that a threshold selects, and the fraction of them that is correct (Fig. 2 left and middle).

    Nothing is trained. Returns ``threshold``, ``selected`` and ``accuracy`` (null where nothing is selected) as lists
    of equal length, and ``band``: the thresholds that select 30 % and 15 %.
    """
    labels = candidates(stage.raw, stage.spec.is_global)
    clear, total = _clear(labels), len(labels.tie)
    low = min(0.0, float(clear.min())) if stage.spec.is_global else 0.0
    levels = np.linspace(low, float(clear.max()), POINTS)
    mask = (labels.confidence[None, :] >= levels[:, None]) & ~labels.tie[None, :]
    right = (labels.captions == stage.truth).all(axis=1) & ~labels.tie
    selected, correct = mask.sum(axis=1), (mask & right[None, :]).sum(axis=1)
    return {
        "candidates": total,
        "tied": int(labels.tie.sum()),
        "threshold": levels.tolist(),
        "selected": selected.tolist(),
        "accuracy": [int(c) / int(s) if s else None for c, s in zip(correct, selected, strict=True)],
        "band": {str(share): _threshold_of(clear, total, share) for share in BAND},
    }


def _clear(labels: PseudoLabels) -> np.ndarray:
    """The confidence of units that do not tie; UsageError if all do."""
    if labels.tie.all():
        raise UsageError("every matching of this task ties, so no threshold keeps any")
    return labels.confidence[~labels.tie]


def _threshold_of(clear: np.ndarray, total: int, share: float) -> float:
    """The threshold that selects a share of all units, some of which tie."""
    return threshold_for_coverage(clear, min(1.0, share * (total / len(clear))))


def supervision(stage: Adaptation, _: MetricSpec, config: RunConfig, *__: object) -> Record:
    """Accuracy of the raw model under each way of assigning captions (Fig. 4 left): the quality of pseudo-labels.

    Nothing is trained. Returns metric -> value, 95 % interval and chance; null where a metric is undefined.
    """
    bars = {}
    for metric in stage.metrics:
        values = metric_values(metric, stage.raw)
        ends = None if values is None else stats.interval(values, config.interval, config.bootstrap_iters, 0)
        bars[metric.name] = {
            "value": None if values is None else stats.mean(values),
            "ci": None if ends is None else list(ends),
            "chance": metric_chance(metric, stage.raw),
        }
    return {"metrics": bars}


def _schedules(stage: Adaptation, metric: MetricSpec, *_: object) -> Record:
    """TTM under every registered threshold schedule, from one tau_1 to one tau_T (Fig. 2 right)."""
    return _curves(stage, metric, {name: {"schedule": name} for name in stage.registry.schedules})


def _oracle(stage: Adaptation, metric: MetricSpec, *_: object) -> Record:
    """TTM and its oracle variant, which trains on exactly the correct matchings (Fig. 4 middle): an upper bound."""
    curves = _curves(stage, metric, {"ttm": {}})
    curves["curves"]["oracle"] = _curve(stage, metric, oracle(stage.truth))
    return curves


def _tau(stage: Adaptation, metric: MetricSpec, _: RunConfig, grid: Sequence[float] | None) -> Record:
    """TTM with several values of tau_1 (Fig. 4 right), largest first: sensitivity to the first threshold."""
    values = sorted(set(first_thresholds(stage) if grid is None else grid), reverse=True)
    return _curves(stage, metric, {f"{value:.4g}": {"tau_start": float(value)} for value in values})


def first_thresholds(stage: Adaptation) -> list[float]:
    """Values of tau_1 (fractions under the share rule) that select 15 to 30 % of the groups in the first iteration."""
    if stage.settings.by_share(stage.spec.is_global):
        return [1 - share for share in (0.3, 0.4, 0.5, 0.6)]
    labels = candidates(stage.raw, stage.spec.is_global)
    return [_threshold_of(_clear(labels), len(labels.tie), share) for share in TAU_COVERAGES]


def _curves(stage: Adaptation, metric: MetricSpec, variants: Mapping[str, Record]) -> Record:
    """Name -> settings to ``baseline``, the metric without training, and ``curves`` by name."""
    curves = {}
    for name, changes in variants.items():
        settings = stage.settings.with_changes(changes, "analyze")
        curves[name] = _curve(replace(stage, settings=settings), metric)
    return {"baseline": metric_mean(metric, stage.raw), "curves": curves}


def _curve(stage: Adaptation, metric: MetricSpec, supervision: Supervision = algorithm1_selection) -> Record:
    """One TTM run per seed: values of every iteration, lists [seeds][iterations]."""
    runs = _seeds(stage, metric, supervision)
    for of_seed in runs:
        if of_seed.diverged is not None:
            raise of_seed.diverged
    names = ("threshold", "coverage", "pseudo_label_accuracy")
    rows = {name: [[getattr(step, name) for step in of_seed.steps] for of_seed in runs] for name in names}
    return {**rows, "metric": [of_seed.metric for of_seed in runs], **_final([of_seed.metric[-1] for of_seed in runs])}


def _final(ends: Sequence[float | None]) -> Record:
    """The mean over seeds and its deviation; None where a seed diverged."""
    array = np.array(ends, dtype=np.float64)
    if np.isnan(array).any():
        return {"final": None, "final_seed_std": None}
    return {"final": float(array.mean()), "final_seed_std": stats.seed_std(array)}


@dataclass(frozen=True)
class _Seed:
    """One run of TTM."""

    steps: list[IterationRecord]
    metric: list[float | None]  # after each of them
    scores: Scores | None  # of the adapted model; None if training diverged
    diverged: DivergedError | None


def _seeds(stage: Adaptation, metric: MetricSpec, supervision: Supervision = algorithm1_selection) -> list[_Seed]:
    runs = []
    for seed in stage.seeds:
        steps, values = list[IterationRecord](), list[float | None]()
        scores, diverged = None, None
        with restored(stage.stage):
            try:
                for step in stage.steps(seed, supervision):
                    steps.append(stage.record_of(step, seed))
                    values.append(metric_mean(metric, step.scores))
                    scores = step.scores
            except DivergedError as error:
                scores, diverged = None, error
        runs.append(_Seed(steps, values, scores, diverged))
    return runs


def _lr(stage: Adaptation, metric: MetricSpec, _: RunConfig, grid: Sequence[float] | None) -> Record:
    """TTM at several learning rates: the final metric, and statistics that need no labels (docs/finetune.md).

    Returns ``baseline``, the default learning rate (``default``) and one entry per rate (by default rates around the
    default), with lists by seed. Only ``metric`` and ``final`` use labels.
    """
    rates = sorted({float(rate) for rate in grid or rates_around(stage.learning_rate)})
    before = candidates(stage.raw, stage.spec.is_global)
    return {
        "baseline": metric_mean(metric, stage.raw),
        "default": stage.learning_rate,
        "candidates": len(before.tie),
        "rates": [_at_rate(stage, metric, before, rate) for rate in rates],
    }


def _at_rate(stage: Adaptation, metric: MetricSpec, before: PseudoLabels, rate: float) -> Record:
    """Every seed at one learning rate."""
    runs = _seeds(replace(stage, settings=stage.settings.with_changes({"lr": rate}, "analyze")), metric)
    ends = [None if of_seed.scores is None else of_seed.metric[-1] for of_seed in runs]
    after = [None if of.scores is None else candidates(of.scores, stage.spec.is_global) for of in runs]
    losses = [[step.loss[-1] if step.loss else None for step in of_seed.steps] for of_seed in runs]
    last = [[loss for loss in of_seed if loss is not None][-1:] for of_seed in losses]
    return {
        "lr": rate,
        "metric": ends,
        **_final(ends),
        "selected": [[step.selected for step in of_seed.steps] for of_seed in runs],
        "loss": losses,
        "final_loss": [
            of_seed[0] if of_seed and known is not None else None for of_seed, known in zip(last, after, strict=True)
        ],
        "confident_kept": [None if labels is None else confident_kept(before, labels) for labels in after],
        "agreement": agreement(after),
        "diverged": [None if of_seed.diverged is None else str(of_seed.diverged) for of_seed in runs],
    }


def rates_around(rate: float) -> list[float]:
    """Learning rates to compare, around the default.

    >>> rates_around(1e-5)
    [6e-07, 2e-06, 4e-06, 1e-05, 2e-05, 4e-05]
    """
    return [float(f"{rate * factor:.3g}") for factor in FACTORS]


def _same(one: PseudoLabels, other: PseudoLabels) -> np.ndarray:
    """Units for which two models have the same matching, bool [units]; False for ties."""
    return (one.captions == other.captions).all(axis=1) & ~one.tie & ~other.tie


def agreement(matchings: Sequence[PseudoLabels | None]) -> float | None:
    """Fraction of units with the same matching for two seeds, averaged over pairs of seeds.

    None for one seed, or where one diverged (None).
    """
    known = [labels for labels in matchings if labels is not None]
    if len(known) < 2 or len(known) < len(matchings):
        return None
    return fmean(float(_same(left, right).mean()) for left, right in itertools.combinations(known, 2))


def confident_kept(before: PseudoLabels, after: PseudoLabels) -> float | None:
    """Fraction of the most confident quarter of units whose matching did not change; None if all tie."""
    clear = np.flatnonzero(~before.tie)
    if len(clear) == 0:
        return None
    count = max(1, round(CONFIDENT * len(clear)))
    most_confident = clear[np.argsort(-before.confidence[clear], kind="stable")[:count]]
    return float(_same(before, after)[most_confident].mean())


_ANALYSES: Mapping[str, Callable[..., Record]] = {
    **{"thresholds": thresholds, "supervision": supervision},
    **{"schedules": _schedules, "oracle": _oracle, "tau": _tau, "lr": _lr},
}


# --- several tasks: what adapting to each does to the others ---------------------------------------------------------


def _transfer(config: RunConfig, command: Sequence[str]) -> Iterator[Record]:
    """Adapts a model to each task and measures the adapted model on all of them.

    The data are a matrix, rows adapted on and columns measured on; each cell has the value and its difference to raw.
    UsageError for fewer than two tasks or a model that cannot be adapted; errors of a task as for `run`.
    """
    registry = build_registry(config.include_path)
    tasks = list(tasks_named(registry, config, config.tasks))
    if len(tasks) < 2:
        raise UsageError(f"'transfer' needs at least two tasks (--tasks A,B), got {', '.join(tasks)}")
    adapter = make_adapter(registry, config.model, config.model_args, model_settings(config))
    if not adapter.trainable:
        raise UsageError(f"model {config.model} cannot be adapted, so 'transfer' does not apply to it")
    whole = config.model_copy(update={"methods": ["ttm"], "also": tasks, "output_path": None, "on_error": "raise"})
    document = run(whole, resolve(whole), adapter=adapter, command=command).typed
    places = {
        (str(row.number.adapted_to), row.measured_on): row
        for row in reversed(document.transfers)
        if row.shown and row.number.method == TTM
    }
    cells = {}
    for (task, other), row in places.items():
        gain = row.gain
        cells[task, other] = {
            "value": row.number.value,
            "seed_std": row.number.seed_std,
            "difference": None if gain is None else gain.value,
            **{name: None if gain is None else getattr(gain, name) for name in ("ci", "by_seed", "seed_ci")},
        }
    yield {
        "tasks": tasks,
        "task_versions": document.versions,
        "n_groups": {task: document.n_samples[task].effective for task in tasks},
        "sources": {task: document.datasets[task].source for task in tasks},
        "data_sha256": document.task_hashes,
        "model_info": document.model_info,
        "reads_labels": "to report",
        "hyperparameters": {task: document.methods[task][TTM].settings for task in tasks},
        "seeds": config.run_seeds,
        "data": {
            "adapted_on": tasks,
            "measured_on": tasks,
            "metrics": {task: places[task, task].number.metric for task in tasks},
            "raw": {task: places[task, task].raw for task in tasks},
            "cells": [[cells[row, column] for column in tasks] for row in tasks],
        },
        "packages": document.packages,
    }


# --- test-time methods, each against its fair baseline, with intervals and costs -------------------------------------


def _methods(config: RunConfig, command: Sequence[str]) -> Iterator[Record]:
    """Runs the methods and yields the comparison of each task.

    Each method is compared with the model as it is: its group score with the raw group score, its group match with
    SimpleMatch's. Scores that assume that each caption belongs to one image have to beat SimpleMatch in both.
    """
    whole = config.model_copy(update={"output_path": None, "on_error": "continue"})
    chosen = resolve(whole)
    evaluated = run(whole, chosen, command=command)
    document = evaluated.typed
    for task, scored in evaluated.tasks.items():
        if not isinstance(scored, Scored):
            raise UsageError(f"task '{task}' has no groups with scores, so there is nothing that methods could change")
        yield {
            "task": task,
            "task_version": scored.spec.version,
            "matching": scored.spec.matching,
            "n_groups": scored.n_groups,
            "source": scored.data.source,
            "data_sha256": scored.data.fingerprint,
            "seeds": config.run_seeds,
            "model_info": document.model_info,
            "errors": [error.message for error in document.errors if error.task == task],
            "notes": list(scored.notes),
            "metric": "group_match",
            "reads_labels": "to report",
            "hyperparameters": {name: method.settings for name, method in document.methods.get(task, {}).items()},
            "data": _compared(chosen.registry, config, scored, document),
        }


def _compared(registry: Registry, config: RunConfig, scored: Scored, document: ResultsDocument) -> Record:
    """The rows of one task: for each metric the model as it is, then every method."""
    metrics = {metric.name: metric for metric in scored.metrics if metric.name in ("group_score", "group_match")}
    columns = scored.scores
    rows: list[Record] = []
    for metric in metrics.values():
        compared = []
        for name, per_seed in columns.items():
            values = seed_values(metric, per_seed)
            assert values is not None, "the metric is defined for the task"
            means = values.mean(axis=1)
            row: Record = {"method": name, "metric": metric.name}
            row |= {"value": float(means.mean()), "seed_std": stats.seed_std(means)}
            if name == RAW:
                rows.append(row)
                continue
            knows = name in registry.methods and registry.methods[name].uses_matching and "group_match" in metrics
            baseline = metrics["group_match"] if knows else metric
            compared.append({**row, **_gain(config, scored, baseline, metric, values)})
        adjusted = stats.holm([row["p"] for row in compared])
        rows += [{**row, "p_holm": p} for row, p in zip(compared, adjusted, strict=True)]
    methods = {name: _about(registry, document, scored, name, of) for name, of in columns.items()}
    return {"rows": rows, "methods": methods, "chance": dict(document.chance[scored.spec.task])}


def _gain(config: RunConfig, scored: Scored, baseline: MetricSpec, metric: MetricSpec, after: np.ndarray) -> Record:
    """The gain of values [seeds, groups]: with intervals over groups and over seeds, and the test's p-value."""
    before, mean = metric_values(baseline, scored.raw), after.mean(axis=0)
    assert before is not None, "the metric is defined for the task"
    clusters = metric_units(metric, scored.data.clusters)
    gain, ends = stats.paired_difference(before, mean, config.bootstrap_iters, config.seed, clusters=clusters)
    by_seed = [float(np.mean(values)) - float(np.mean(before)) for values in after]
    return {
        "baseline": baseline.name,
        "gain": gain,
        "ci": None if ends is None else list(ends),
        "by_seed": by_seed,
        "seed_ci": seed_interval(by_seed),
        "p": stats.sign_flip(before, mean, FLIPS, config.seed, clusters),
    }


def _about(
    registry: Registry, document: ResultsDocument, scored: Scored, name: str, per_seed: Sequence[Scores]
) -> Record:
    """What a method is, what it cost, how calibrated it is and whether it prefers a position.

    Passes through the towers are in units of scoring the task once, seconds of one seed.
    """
    spec = registry.methods[name] if name in registry.methods else None
    record = document.methods.get(scored.spec.task, {}).get(name)
    gives_logits = name == RAW or (spec is not None and spec.gives_logits)
    errors = [error for scores in per_seed if (error := calibration_error(scores.groups)) is not None]
    costs: Sequence[Any] = getattr(document.training(scored.spec.task, name), "cost", None) or []
    passes = float(np.mean([cost.tower_passes for cost in costs])) if costs else None
    return {
        "trains": spec is not None and spec.trains,
        "scope": None if spec is None else spec.scope,
        "order": None if spec is None else "depends on the order" if spec.order_dependent else "independent of it",
        "assumes_matching": spec is not None and spec.assumes_matching,
        "calibration_error": float(np.mean(errors)) if gives_logits and errors else None,
        "positions": None if record is None else record.positions,
        "tower_passes": 2.0 if name == RAW else passes,
        "seconds": float(np.mean([cost.seconds for cost in costs])) if costs else None,
    }


def calibration_error(scores: np.ndarray, bins: int = BINS) -> float | None:
    """Expected calibration error of each image's answer among the captions of its group (caption i for image i).

    The mean over bins of confidence of |accuracy - confidence|, weighted by the images in each; confidence is the
    largest probability of a softmax over the captions. None for one caption.

    Args:
        scores: logits [groups, images, captions].
        bins: of equal width between 0 and 1.

    >>> round(calibration_error(np.array([[[2.0, 0.0], [0.0, 2.0]]])), 4)
    0.1192
    """
    if scores.shape[2] < 2:
        return None
    images = min(scores.shape[1:])
    logits = scores[:, :images].astype(np.float64)
    chances = np.exp(logits - logits.max(axis=2, keepdims=True))
    chances /= chances.sum(axis=2, keepdims=True)
    confidence = chances.max(axis=2).reshape(-1)
    correct = (chances.argmax(axis=2) == np.arange(images)).reshape(-1)
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(float(np.mean(correct[which == bin_]) - np.mean(confidence[which == bin_]))) for bin_ in set(which)]
    return float(np.sum(np.array(gaps) * np.array([np.mean(which == bin_) for bin_ in set(which)])))
