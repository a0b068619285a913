"""The paper's analyses of a model and its tasks: each is a plan of ordinary runs, and a document of what they show."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import fmean
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util import machine
from ttmbench._util.console import warn
from ttmbench.config import DEFAULT_LEARNING_RATE, RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DivergedError, UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, remarks
from ttmbench.evaluator.determinism import arithmetic_of, naming_what_cannot
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.evaluate import evaluate, resolve
from ttmbench.evaluator.score_task import Run, plan_task, score_task
from ttmbench.evaluator.task_result import Scored
from ttmbench.methods.model_task import true_captions
from ttmbench.methods.parts import PseudoLabels, candidates
from ttmbench.model import DualEncoder, PairScorer
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import RAW, TTM
from ttmbench.results.summary import (
    metric_mean,
    metric_units,
    metric_values,
    seed_interval,
    seed_values,
)
from ttmbench.schedules import threshold_for_coverage
from ttmbench.scoring.debiasing import sweep
from ttmbench.types import MetricSpec, Record, Scores

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
    "oracle": "to report; the curve 'oracle' also to select",
}
_SUPERVISION = ("group_score", "individual_match", "global_assignment_accuracy", "group_match")
_ALONE: Record = {
    **dict.fromkeys(("output_path", "save_adapted", "baseline")),
    **{"track": [], "track_args": {}, "assertions": []},
}


class Runs:
    """Ordinary runs of one model, which is loaded once; nothing of them is written."""

    def __init__(self, config: RunConfig, command: Sequence[str]) -> None:
        self.config, self._command = config.model_copy(update=_ALONE), command
        self.chosen = resolve(self.config)
        self.model = make_adapter(self.chosen.registry, config.model, config.model_args, config)
        self.info = model_info(self.model)
        for remark in remarks(self.model):
            warn(remark)

    def of(self, task: TaskFile | None = None, ttm: TTMConfig | None = None, **options: object) -> EvalResults:
        """One task with these settings of TTM, or all with their own; with other options."""
        chosen = replace(self.chosen, also=self.chosen.tasks if "also" in options else {})
        if task is not None:
            name = task.spec.task
            chosen = replace(chosen, tasks={name: task}, settings={name: ttm or TTMConfig()})
        config = self.config.model_copy(update={"on_error": "raise", **options})
        return evaluate(config, chosen, adapter=self.model, command=self._command)


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
    with arithmetic_of(config), naming_what_cannot():
        runs = Runs(config, command)
        found = {"transfer": _transfer, "methods": _methods}.get(analysis)
        for content in found(runs) if found else _each_task(analysis, runs, grid):
            yield {
                "schema_version": SCHEMA_VERSION,
                "analysis": analysis,
                "model_name": config.model_name,
                "model_info": runs.info,
                "reads_labels": _READS.get(analysis, "to report"),
                **content,
                "date": started.timestamp(),
                "deterministic": config.deterministic,
                "packages": machine.packages(),
                "command": " ".join(command),
            }


def _of_task(scored: Scored, metric: str, hyperparameters: Record, seeds: Sequence[int], data: Record) -> Record:
    return {
        "task": scored.spec.task,
        "task_version": scored.spec.version,
        "matching": scored.spec.matching,
        "n_groups": scored.n_groups,
        "source": scored.data.source,
        "data_sha256": scored.data.fingerprint,
        "metric": metric,
        "hyperparameters": hyperparameters,
        "seeds": list(seeds),
        "data": data,
    }


def _each_task(analysis: str, runs: Runs, grid: Sequence[float] | None) -> Iterator[Record]:
    """What an analysis of one task at a time finds."""
    config, model, trains = runs.config, runs.model, analysis in TRAINS
    if analysis == "alpha" and not (isinstance(model, PairScorer) and model.debiases):
        raise UsageError(f"model {config.model} has no log P(t) to subtract, so 'alpha' does not apply to it")
    if analysis != "alpha" and not model.trainable and (trains or not isinstance(model, DualEncoder)):
        raise UsageError(f"model {config.model} cannot be adapted, so '{analysis}' does not apply to it")
    for name, task in runs.chosen.tasks.items():
        spec, settings = task.spec, runs.chosen.settings[name]
        if analysis == "alpha":
            scored, data = _alpha(runs, task)
            yield _of_task(scored, "group_score", {}, [config.seed], data)
            continue
        if spec.shape.true_captions > 1:
            raise UsageError(
                f"task '{name}' has several true captions for each image, for which no adaptation is defined, so "
                f"'{analysis}' does not apply to it"
            )
        headline = "global_assignment_accuracy" if spec.is_global else "group_match"
        asked = [*spec.metrics, headline, *(_SUPERVISION if analysis == "supervision" else ())]
        task = replace(task, spec=spec.model_copy(update={"metrics": list(dict.fromkeys(asked))}))
        result = runs.of(task, methods=[]).tasks[name]
        assert isinstance(result, Scored), "the task has groups"
        metric = runs.chosen.registry.metrics[headline]
        if analysis == "thresholds":
            data = thresholds(result.raw, spec)
        elif analysis == "supervision":  # the quality of pseudo-labels under each way of assigning (Fig. 4 left)
            raw = {number.metric: number for number in result.numbers}
            bars = {metric: raw[metric] for metric in _SUPERVISION}
            data = {
                "metrics": {key: {"value": n.value, "ci": n.interval, "chance": n.chance} for key, n in bars.items()}
            }
        elif analysis == "lr":
            data = _lr(runs, task, settings, result.raw, metric, grid)
        else:
            data = {"baseline": metric_mean(metric, result.raw)}
            data["curves"] = _curves(analysis, runs, task, settings, result.raw, headline, grid)
        used = {**settings.model_dump(mode="json"), "lr": settings.lr or DEFAULT_LEARNING_RATE}
        yield _of_task(result, headline, used, config.run_seeds if trains else [], data)


# --- one task: its raw scores, or TTM with several settings -----------------------------------------------------------


def thresholds(raw: Scores, spec: TaskSpec) -> Record:
    """Number of units that a threshold selects, and the fraction of them that is correct (Fig. 2 left and middle).

    Nothing is trained. Returns ``threshold``, ``selected`` and ``accuracy`` (null where nothing is selected) as lists
    of equal length, and ``band``: the thresholds that select 30 % and 15 %.
    """
    labels = candidates(raw, spec.is_global)
    clear, total = _clear(labels), len(labels.tie)
    low = min(0.0, float(clear.min())) if spec.is_global else 0.0
    levels = np.linspace(low, float(clear.max()), POINTS)
    mask = (labels.confidence[None, :] >= levels[:, None]) & ~labels.tie[None, :]
    right = (labels.captions == true_captions(raw, spec.is_global)).all(axis=1) & ~labels.tie
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


def _alpha(runs: Runs, task: TaskFile) -> tuple[Scored, Record]:
    """The metrics as functions of alpha, from log P(t|i) and log P(t), which an ordinary run does not keep apart."""
    config, registry, spec = runs.config, runs.chosen.registry, task.spec
    of_run = Run.of(registry, config, runs.model).on(spec)
    plan = plan_task(of_run, task, with_parts=True)
    scored = score_task(plan, of_run)
    assert scored.parts is not None, "parts were asked for"
    metric = metric_for(registry.metrics["group_score"], spec.shape)
    metrics = {**{each.name: each for each in plan.metrics}, metric.name: metric}
    return scored, sweep(scored.parts, list(metrics.values()), metric.name, config.seed)


def _curves(
    analysis: str,
    runs: Runs,
    task: TaskFile,
    settings: TTMConfig,
    raw: Scores,
    metric: str,
    grid: Sequence[float] | None,
) -> Record:
    """Name -> values of every iteration of TTM, lists [seeds][iterations].

    ``schedules``: every registered threshold schedule, from one tau_1 to one tau_T (Fig. 2 right). ``oracle``: TTM, and
    its variant that trains on exactly the correct matchings (Fig. 4 middle). ``tau``: several values of tau_1 (Fig. 4
    right), largest first.
    """
    variants: dict[str, Record] = {TTM: {}}
    if analysis == "schedules":
        variants = {name: {"schedule": name} for name in runs.chosen.registry.schedules}
    elif analysis == "tau":
        values = sorted(set(first_thresholds(raw, task.spec, settings) if grid is None else grid), reverse=True)
        variants = {f"{value:.4g}": {"tau_start": float(value)} for value in values}
    curves = {}
    for name, changes in variants.items():
        methods = [TTM, "oracle"] if analysis == "oracle" else [TTM]
        found = runs.of(task, settings.with_changes(changes, "analyze"), methods=methods).typed
        for method in methods:
            iterations = found.methods[task.spec.task][method].iterations or []
            by_seed = [[step for step in iterations if step.seed == seed] for seed in runs.config.run_seeds]
            curve: Record = {"metric": [[step.metrics[metric] for step in steps] for steps in by_seed]}
            for key in ("threshold", "coverage", "pseudo_label_accuracy"):
                curve[key] = [[getattr(step, key) for step in steps] for steps in by_seed]
            curves[name if method == TTM else method] = curve | _final([row[-1] for row in curve["metric"]])
    return curves


def first_thresholds(raw: Scores, spec: TaskSpec, settings: TTMConfig) -> list[float]:
    """Values of tau_1 (fractions under the share rule) that select 15 to 30 % of the groups in the first iteration."""
    if settings.by_share(spec.is_global):
        return [1 - share for share in (0.3, 0.4, 0.5, 0.6)]
    labels = candidates(raw, spec.is_global)
    return [_threshold_of(_clear(labels), len(labels.tie), share) for share in TAU_COVERAGES]


def _final(ends: Sequence[float | None]) -> Record:
    """The mean over seeds and its deviation; None where a seed diverged."""
    array = np.array(ends, dtype=np.float64)
    if np.isnan(array).any():
        return {"final": None, "final_seed_std": None}
    return {"final": float(array.mean()), "final_seed_std": stats.seed_std(array)}


def _lr(
    runs: Runs, task: TaskFile, settings: TTMConfig, raw: Scores, metric: MetricSpec, grid: Sequence[float] | None
) -> Record:
    """TTM at several learning rates: the final metric, and statistics that need no labels (docs/finetune.md).

    Returns ``baseline``, the default learning rate (``default``) and one entry per rate (by default rates around the
    default), with lists by seed; those of a seed that diverged are empty. Only ``metric`` and ``final`` use labels.
    """
    default, before, rates = settings.lr or DEFAULT_LEARNING_RATE, candidates(raw, task.spec.is_global), list[Record]()
    for rate in sorted({float(rate) for rate in grid or rates_around(default)}):
        changed, after = settings.with_changes({"lr": rate}, "analyze"), list[Scores | None]()
        steps, diverged = list[list[Any]](), list[str | None]()
        for seed in runs.config.run_seeds:
            try:
                found = runs.of(task, changed, methods=[TTM], seeds=[seed])
            except DivergedError as error:
                after, steps, diverged = [*after, None], [*steps, []], [*diverged, str(error)]
                continue
            after += found.scores[task.spec.task][TTM]
            steps.append(found.typed.methods[task.spec.task][TTM].iterations or [])
            diverged.append(None)
        ends = [None if scores is None else metric_mean(metric, scores) for scores in after]
        matchings = [None if scores is None else candidates(scores, task.spec.is_global) for scores in after]
        losses = [[step.loss[-1] if step.loss else None for step in of_seed] for of_seed in steps]
        last = [[loss for loss in of_seed if loss is not None][-1:] for of_seed in losses]
        rates.append(
            {
                "lr": rate,
                "metric": ends,
                **_final(ends),
                "selected": [[step.selected for step in of_seed] for of_seed in steps],
                "loss": losses,
                "final_loss": [of_seed[0] if of_seed else None for of_seed in last],
                "confident_kept": [None if labels is None else confident_kept(before, labels) for labels in matchings],
                "agreement": agreement(matchings),
                "diverged": diverged,
            }
        )
    baseline = metric_mean(metric, raw)
    return {"baseline": baseline, "default": default, "candidates": len(before.tie), "rates": rates}


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


# --- several tasks: what adapting to each does to the others ---------------------------------------------------------


def _transfer(runs: Runs) -> Iterator[Record]:
    """Adapts a model to each task and measures the adapted model on all of them.

    The data are a matrix, rows adapted on and columns measured on; each cell has the value and its difference to raw.
    UsageError for fewer than two tasks or a model that cannot be adapted; errors of a task as for `run`.
    """
    tasks = list(runs.chosen.tasks)
    if len(tasks) < 2:
        raise UsageError(f"'transfer' needs at least two tasks (--tasks A,B), got {', '.join(tasks)}")
    if not runs.model.trainable:
        raise UsageError(f"model {runs.config.model} cannot be adapted, so 'transfer' does not apply to it")
    document = runs.of(methods=[TTM], also=tasks).typed
    places = {
        (str(row.number.adapted_to), row.measured_on): row
        for row in reversed(document.transfers)
        if row.shown and row.number.method == TTM
    }
    cells = {}
    for place, row in places.items():
        gain = None if row.gain is None else vars(row.gain)
        cell = {"value": row.number.value, "seed_std": row.number.seed_std, "difference": gain and gain["value"]}
        cells[place] = {**cell, **{name: gain and gain[name] for name in ("ci", "by_seed", "seed_ci")}}
    yield {
        "tasks": tasks,
        "task_versions": document.versions,
        "n_groups": {task: document.n_samples[task].effective for task in tasks},
        "sources": {task: document.datasets[task].source for task in tasks},
        "data_sha256": document.task_hashes,
        "hyperparameters": {task: document.methods[task][TTM].settings for task in tasks},
        "seeds": runs.config.run_seeds,
        "data": {
            "adapted_on": tasks,
            "measured_on": tasks,
            "metrics": {task: places[task, task].number.metric for task in tasks},
            "raw": {task: places[task, task].raw for task in tasks},
            "cells": [[cells[row, column] for column in tasks] for row in tasks],
        },
    }


# --- test-time methods, each against its fair baseline, with intervals and costs -------------------------------------


def _methods(runs: Runs) -> Iterator[Record]:
    """Runs the methods and yields the comparison of each task.

    Each method is compared with the model as it is: its group score with the raw group score, its group match with
    SimpleMatch's. Scores that assume that each caption belongs to one image have to beat SimpleMatch in both.
    """
    config, registry = runs.config, runs.chosen.registry
    evaluated = runs.of(on_error="continue")
    document = evaluated.typed
    for task, scored in evaluated.tasks.items():
        if not isinstance(scored, Scored):
            raise UsageError(f"task '{task}' has no groups with scores, so there is nothing that methods could change")
        metrics = {metric.name: metric for metric in scored.metrics if metric.name in ("group_score", "group_match")}
        rows: list[Record] = []
        for metric in metrics.values():
            compared = []
            for name, per_seed in scored.scores.items():
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
        methods = {name: _cost(registry, document, scored, name, of) for name, of in scored.scores.items()}
        data = {"rows": rows, "methods": methods, "chance": dict(document.chance[task])}
        settings = {name: method.settings for name, method in document.methods.get(task, {}).items()}
        errors = [error.message for error in document.errors if error.task == task]
        yield {
            **_of_task(scored, "group_match", settings, config.run_seeds, data),
            **{"errors": errors, "notes": list(scored.notes)},
        }


def _gain(config: RunConfig, scored: Scored, baseline: MetricSpec, metric: MetricSpec, after: np.ndarray) -> Record:
    """The gain of values [seeds, groups]: with intervals over groups and over seeds, and the test's p-value."""
    before, mean = metric_values(baseline, scored.raw), after.mean(axis=0)
    assert before is not None, "the metric is defined for the task"
    clusters = metric_units(metric, scored.data.clusters)
    gain, ends = stats.paired_difference(before, mean, config.bootstrap_iters, config.seed, clusters=clusters)
    by_seed = [float(np.mean(values)) - float(np.mean(before)) for values in after]
    p = stats.sign_flip(before, mean, FLIPS, config.seed, clusters)
    over_seeds = {"by_seed": by_seed, "seed_ci": seed_interval(by_seed)}
    return {"baseline": baseline.name, "gain": gain, "ci": None if ends is None else list(ends), **over_seeds, "p": p}


def _cost(
    registry: Registry, document: ResultsDocument, scored: Scored, name: str, per_seed: Sequence[Scores]
) -> Record:
    """What a method cost, how calibrated it is and whether it prefers a position.

    Passes through the towers are in units of scoring the task once, seconds of one seed.
    """
    record = document.training(scored.spec.task, name)
    gives_logits = name == RAW or (name in registry.methods and registry.methods[name].gives_logits)
    errors = [error for scores in per_seed if (error := calibration_error(scores.groups)) is not None]
    costs = [] if record is None else record.cost
    passes = float(np.mean([cost.tower_passes for cost in costs])) if costs else None
    return {
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
