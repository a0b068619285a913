"""The paper's analyses of a model and its tasks: each is a plan of ordinary runs, and a document of what they show."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from ttmbench import stats
from ttmbench._util import machine
from ttmbench.config import DEFAULT_LEARNING_RATE, RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DivergedError, UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info
from ttmbench.evaluator.eval_results import EvalResults, Scored, TaskResult
from ttmbench.evaluator.evaluate import evaluate, resolve
from ttmbench.evaluator.score_task import Run, plan_task, score
from ttmbench.methods.model_task import PseudoLabels, true_captions
from ttmbench.methods.ttm import candidates
from ttmbench.metrics import reliability
from ttmbench.model import DualEncoder, PairScorer
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.results.document import IterationRecord, ResultsDocument
from ttmbench.results.numbers import RAW, TTM
from ttmbench.results.summary import metric_mean, metric_units, metric_values, over_seeds, seed_interval, seed_values
from ttmbench.schedules import threshold_for_coverage
from ttmbench.scoring.debiasing import prior_for, sweep
from ttmbench.types import MetricSpec, Record, Scores

SCHEMA_VERSION = "1.0"
TRAINS = ("schedules", "oracle", "tau", "lr")
BAND = (0.15, 0.30)  # fractions of groups that tau_1 should select (section 3.2)
TAU_COVERAGES = (0.15, 0.20, 0.25, 0.30)
POINTS = 201
FACTORS = (0.06, 0.2, 0.4, 1.0, 2.0, 4.0)  # factors on the default learning rate; from 1e-5 they reach 4e-5
# fraction of the units, those with the largest raw margins, whose matchings a good run should not change
CONFIDENT = 0.25
CALIBRATION = ["text_ece", "image_ece"]
FLIPS = 9_999  # of the permutation test
INTERVAL = "95 % interval"
LEVEL = 0.05  # of tests, after Holm's correction
_METHODS = {"name": "method", "value": "value", "gain": "gain", "ci": INTERVAL, "p_holm": "p"}
_METHODS |= {"passes": "passes", "seconds": "s", "text_ece": "ECE"}
_LEGEND = (
    "gain over the raw metric, or over SimpleMatch for methods that output a matching (sinkhorn, dual_softmax); * "
    f"differs at {LEVEL:g} after Holm's correction over the methods (paired permutation test)",
    "passes: encoder passes over the data (scoring the task once is 2)",
    "ECE: text_ece, for scores that are logits",
)
Variant = tuple[str, str, Record]
_SUPERVISION = ("group_score", "individual_match", "global_assignment_accuracy", "group_match")
_ALONE: Record = {"output_path": None, "save_adapted": None, "baseline": None, "track": [], "assertions": []}


class Trials:
    """Ordinary runs of one model, which is loaded once; nothing of them is written."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config.model_copy(update={**_ALONE, "track_args": {}})
        self.chosen = resolve(self.config)
        self.model = make_adapter(self.chosen.registry, config.model, config.model_args, config)

    def of(self, task: TaskFile | None = None, ttm: TTMConfig | None = None, **options: object) -> EvalResults:
        """One task with these settings of TTM, or all with their own; with other options."""
        chosen = replace(self.chosen, also=self.chosen.tasks if "also" in options else {})
        if task is not None:
            name = task.spec.task
            chosen = replace(chosen, tasks={name: task}, settings={name: ttm or TTMConfig()})
        return evaluate(self.config.model_copy(update={"on_error": "raise", **options}), chosen, adapter=self.model)


def documents(
    analysis: str, config: RunConfig, command: Sequence[str], grid: Sequence[float] | None
) -> Iterator[Record]:
    """Runs one analysis and yields its document for each task; of ``transfer`` one for all.

    ``rows`` are what the table shows: its ``columns`` are key of the rows -> head. Lists in a row are of its seeds and
    their iterations. ``grid`` are the thresholds of ``tau`` or the learning rates of ``lr``. UsageError if the analysis
    does not apply to the model or task, DataError for unreachable data or weights.
    """
    several = {"alpha": _alpha, "transfer": _transfer, "methods": _methods, "calibration": _calibration}.get(analysis)
    started = time.time()
    with config.arithmetic():
        runs = Trials(config.model_copy(update={"metrics": CALIBRATION if analysis == "calibration" else []}))
        for content in several(runs) if several else _each_task(analysis, runs, grid):
            yield {
                "schema_version": SCHEMA_VERSION,
                "analysis": analysis,
                "model_name": config.model_name,
                "model_info": model_info(runs.model),
                **content,
                "date": started,
                "deterministic": config.deterministic,
                "packages": machine.packages(),
                "command": " ".join(command),
            }


def _about(result: TaskResult) -> Record:
    """What was analysed of a task."""
    return {
        "task": result.spec.task,
        "task_version": result.spec.version,
        "matching": result.spec.matching,
        "n_groups": result.counts()["effective"],
        "source": result.data.source,
        "data_sha256": result.data.fingerprint,
    }


def _each_task(analysis: str, runs: Trials, grid: Sequence[float] | None) -> Iterator[Record]:
    """What an analysis finds that starts from the raw scores of one task."""
    model, trains = runs.model, analysis in TRAINS
    if not model.trainable and (trains or not isinstance(model, DualEncoder)):
        raise UsageError(f"model {runs.config.model} cannot be adapted, so '{analysis}' does not apply to it")
    for name, task in runs.chosen.tasks.items():
        spec, settings = task.spec, runs.chosen.settings[name]
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
        if analysis == "thresholds":
            found = thresholds(result.raw, spec)
        elif analysis == "supervision":  # the quality of pseudo-labels under each way of assigning (Fig. 4 left)
            raw = {number.metric: number for number in result.numbers}
            bars = [(name, raw[name]) for name in _SUPERVISION]
            rows = [{"name": name, "value": n.value, "ci": n.interval, "chance": n.chance} for name, n in bars]
            found = {"columns": {"name": "metric", "value": "percent", "chance": "chance"}, "rows": rows}
        else:
            chosen = variants(analysis, runs.chosen.registry, spec, settings, result.raw, grid)
            found = _grid(runs, task, result.raw, runs.chosen.registry.metrics[headline], chosen)
        used = {**settings.model_dump(mode="json"), "lr": settings.lr or DEFAULT_LEARNING_RATE}
        seeds = runs.config.run_seeds if trains else []
        yield {**_about(result), "metric": headline, "hyperparameters": used, "seeds": seeds, **found}


def thresholds(raw: Scores, spec: TaskSpec) -> Record:
    """Number of units that a threshold selects, and the fraction of them that is correct (Fig. 2 left and middle).

    Nothing is trained. ``levels`` have ``threshold``, ``selected`` and ``value``, the accuracy (None where nothing is
    selected); the rows are of the thresholds that select 15 % and 30 %, and of the lowest.
    """
    labels = candidates(raw, spec.is_global)
    band = [(share, _threshold_of(labels, share)) for share in BAND]
    clear = labels.confidence[~labels.tie]
    levels = np.linspace(min(0.0, float(clear.min())) if spec.is_global else 0.0, float(clear.max()), POINTS)
    mask = (labels.confidence[None, :] >= levels[:, None]) & ~labels.tie[None, :]
    right = (labels.captions == true_captions(raw, spec.is_global)).all(axis=1) & ~labels.tie
    counts = zip(levels.tolist(), mask.sum(axis=1).tolist(), (mask & right[None, :]).sum(axis=1).tolist(), strict=True)
    points = [{"threshold": level, "selected": n, "value": correct / n if n else None} for level, n, correct in counts]
    rows: list[Record] = [
        {"name": f"{100 * share:.0f} %", "band": at, "value": points[int(np.argmin(np.abs(levels - at)))]["value"]}
        for share, at in band
    ]
    return {
        "columns": {"name": "selected", "band": "threshold", "value": "accuracy of selected"},
        "rows": [*rows, {"name": "all", "value": points[0]["value"]}],
        "levels": points,
        "candidates": len(labels.tie),
        "notes": [f"{int(labels.tie.sum())} tied"],
    }


def _threshold_of(labels: PseudoLabels, share: float) -> float:
    """The threshold that selects a share of all units, some of which tie; UsageError if all do."""
    if labels.tie.all():
        raise UsageError("every matching of this task ties, so no threshold keeps any")
    clear = labels.confidence[~labels.tie]
    return threshold_for_coverage(clear, min(1.0, share * (len(labels.tie) / len(clear))))


def _alpha(runs: Trials) -> Iterator[Record]:
    """The metrics as functions of alpha, from log P(t|i) and log P(t), which an ordinary run does not keep apart."""
    config, registry, model = runs.config, runs.chosen.registry, runs.model
    if not (isinstance(model, PairScorer) and model.debiases):
        raise UsageError(f"model {config.model} has no log P(t) to subtract, so 'alpha' does not apply to it")
    for task in runs.chosen.tasks.values():
        of_run = Run.of(registry, config, model).on(task.spec)
        plan = replace(plan_task(of_run, task.spec), prior=prior_for(model, task.spec.noise_images, always=True))
        scored = score(plan, of_run, of_run.load(task))
        assert scored.parts is not None, "parts were asked for"
        metric = metric_for(registry.metrics["group_score"], task.spec.shape)
        metrics = {**{each.name: each for each in plan.metrics}, metric.name: metric}
        found = sweep(scored.parts, list(metrics.values()), metric.name, config.seed)
        constant = [row["name"] for row in found["rows"] if not row["depends_on_alpha"]]
        notes = [f"independent of alpha: {', '.join(constant)}"] if constant else []
        if (held := found["held_out"]) is not None:
            value, (first, second) = f"{100 * held['value']:.2f}", held["alphas"]
            notes.append(f"{metric.name}, alpha tuned on the other half: {value} (alpha {first:g} and {second:g})")
        columns = {"name": "metric", "value": "alpha 0", "value_1": "alpha 1"}
        found |= {"metric": "group_score", "seeds": [config.seed], "columns": columns, "notes": notes}
        yield {**_about(scored), **found}


def variants(
    analysis: str, registry: Registry, spec: TaskSpec, settings: TTMConfig, raw: Scores, grid: Sequence[float] | None
) -> list[Variant]:
    """Name, method and changed settings of each variant of TTM.

    ``schedules``: every registered threshold schedule, from one tau_1 to one tau_T (Fig. 2 right). ``oracle``: TTM, and
    its variant that trains on exactly the correct matchings (Fig. 4 middle). ``tau``: several tau_1 (Fig. 4 right),
    largest first, by default those that select 15 to 30 %. ``lr``: learning rates, by default around the usual one.
    """
    if analysis == "schedules":
        return [(name, TTM, {"schedule": name}) for name in registry.schedules]
    if analysis == "oracle":
        return [("TTM", TTM, {}), ("oracle (uses labels)", "oracle", {})]
    if analysis == "lr":
        usual = settings.lr or DEFAULT_LEARNING_RATE
        rates = sorted({float(rate) for rate in grid or [float(f"{usual * factor:.3g}") for factor in FACTORS]})
        return [(f"lr = {rate:g}" + " (default)" * (rate == usual), TTM, {"lr": rate}) for rate in rates]
    if grid is None and settings.by_share(spec.is_global):
        grid = [1 - share for share in (0.3, 0.4, 0.5, 0.6)]
    elif grid is None:
        grid = [_threshold_of(candidates(raw, spec.is_global), share) for share in TAU_COVERAGES]
    return [(f"tau_1 = {tau:.4g}", TTM, {"tau_start": float(tau)}) for tau in sorted(set(grid), reverse=True)]


def _grid(runs: Trials, task: TaskFile, raw: Scores, metric: MetricSpec, chosen: Sequence[Variant]) -> Record:
    """A row for each variant, with the iterations of every seed that did not diverge."""
    name, seeds = task.spec.task, runs.config.run_seeds
    settings, before = runs.chosen.settings[name], candidates(raw, task.spec.is_global)
    rows: list[Record] = [{"name": "no adaptation", "value": metric_mean(metric, raw)}]
    notes = [f"{metric.name} uses labels; the last three columns do not"]
    for variant, method, changes in chosen:
        changed, diverged = settings.with_changes(changes, "analyze"), dict[str, str]()
        steps, after = list[Sequence[IterationRecord]](), list[PseudoLabels]()
        for seed in seeds:
            try:
                found = runs.of(task, changed, methods=[method], seeds=[seed])
            except DivergedError as error:
                diverged[str(seed)] = str(error)
                continue
            steps.append(found.typed.methods[name][method].iterations or [])
            after.append(candidates(found.scores[name][method][0], task.spec.is_global))
        iterations = [[one.model_dump(mode="json") for one in of] for of in steps]
        row: Record = {"name": variant, **changes, "iterations": iterations, "diverged": diverged}
        if diverged:
            notes.append(
                f"{variant}: diverged with {len(diverged)} of {len(seeds)} seeds ({next(iter(diverged.values()))})"
            )
        else:
            ends = np.array([of[-1].metrics[metric.name] for of in steps], dtype=np.float64)
            row["value"], row["seed_std"] = over_seeds(ends)
            row["first_selected"] = fmean(of[0].coverage for of in steps)
            row["final_loss"] = [next((one.loss[-1] for one in reversed(of) if one.loss), None) for of in steps]
            row |= {"confident_kept": [confident_kept(before, of) for of in after], "agreement": agreement(after)}
        rows.append(row)
    columns = {"name": "TTM", "value": metric.name, "first_selected": "first selected", "final_loss": "last loss"}
    columns |= {"confident_kept": "most confident unchanged", "agreement": "seeds agree"}
    default = settings.lr or DEFAULT_LEARNING_RATE
    return {"columns": columns, "rows": rows, "default": default, "candidates": len(before.tie), "notes": notes}


def _same(one: PseudoLabels, other: PseudoLabels) -> np.ndarray:
    """Units for which two models have the same matching, bool [units]; False for ties."""
    return (one.captions == other.captions).all(axis=1) & ~one.tie & ~other.tie


def agreement(matchings: Sequence[PseudoLabels]) -> float | None:
    """Fraction of units with the same matching for two seeds, averaged over pairs of seeds; None for one seed."""
    pairs = itertools.combinations(matchings, 2)
    return fmean(float(_same(*pair).mean()) for pair in pairs) if len(matchings) > 1 else None


def confident_kept(before: PseudoLabels, after: PseudoLabels) -> float | None:
    """Fraction of the most confident quarter of units whose matching did not change; None if all tie."""
    clear = np.flatnonzero(~before.tie)
    if len(clear) == 0:
        return None
    count = max(1, round(CONFIDENT * len(clear)))
    most_confident = clear[np.argsort(-before.confidence[clear], kind="stable")[:count]]
    return float(_same(before, after)[most_confident].mean())


def _transfer(runs: Trials) -> Iterator[Record]:
    """Adapts a model to each task and measures the adapted model on all of them: a row for each pair."""
    tasks = list(runs.chosen.tasks)
    if len(tasks) < 2:
        raise UsageError(f"'transfer' needs at least two tasks (--tasks A,B), got {', '.join(tasks)}")
    if not runs.model.trainable:
        raise UsageError(f"model {runs.config.model} cannot be adapted, so 'transfer' does not apply to it")
    evaluated = runs.of(methods=[TTM], also=tasks)
    places = {
        (str(row.number.adapted_to), row.measured_on): row
        for row in reversed(evaluated.typed.transfers)
        if row.shown and row.number.method == TTM
    }
    rows: list[Record] = []
    for adapted, measured in itertools.product(tasks, tasks):
        cell = places[adapted, measured]
        row: Record = {"adapted_to": adapted, "name": measured, "metric": cell.number.metric, "raw": cell.raw}
        row |= {"value": cell.number.value, "seed_std": cell.number.seed_std}
        gain = {} if cell.gain is None else vars(cell.gain)
        row |= {"gain": gain.get("value"), **{key: gain.get(key) for key in ("ci", "by_seed", "seed_ci")}}
        rows.append(row)
    yield {
        "tasks": [_about(evaluated.tasks[task]) for task in tasks],
        "hyperparameters": {task: evaluated.typed.methods[task][TTM].settings for task in tasks},
        "seeds": runs.config.run_seeds,
        "by": "adapted_to",
        "columns": {"name": "measured on", "raw": "raw", "value": "adapted", "gain": "change", "ci": INTERVAL},
        "rows": rows,
        "notes": ["percent; changes are in points, with intervals over groups, and use labels"],
    }


def _methods(runs: Trials) -> Iterator[Record]:
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
        costs = {name: _cost(registry, document, scored, name) for name in scored.scores}
        rows: list[Record] = []
        for metric in metrics.values():
            of_metric = list[Record]()
            for name, per_seed in scored.scores.items():
                values = seed_values(metric, per_seed)
                assert values is not None, "the metric is defined for the task"
                means = values.mean(axis=1)
                row: Record = {"metric": metric.name, "name": "raw" if name == RAW else name}
                row["value"], row["seed_std"] = over_seeds(means)
                row |= costs[name]
                if name != RAW:
                    knows = registry.methods[name].track == "matching" and "group_match" in metrics
                    row |= _gain(config, scored, metrics["group_match"] if knows else metric, metric, values)
                of_metric.append(row)
            compared = [row for row in of_metric if "p" in row]
            for row, p in zip(compared, stats.holm([row["p"] for row in compared]), strict=True):
                row |= {"p_holm": p, "differs": p < LEVEL}
            rows += of_metric
        yield {
            **_about(scored),
            "hyperparameters": {name: method.settings for name, method in document.methods.get(task, {}).items()},
            "seeds": config.run_seeds,
            "by": "metric",
            "columns": _METHODS,
            "rows": rows,
            "notes": [*_LEGEND, *(f"failed: {error.message}" for error in document.errors if error.task == task)],
        }


def _gain(config: RunConfig, scored: Scored, baseline: MetricSpec, metric: MetricSpec, after: np.ndarray) -> Record:
    """The gain of values [seeds, groups]: with intervals over groups and over seeds, and the test's p-value."""
    before, mean = metric_values(baseline, scored.raw), after.mean(axis=0)
    assert before is not None, "the metric is defined for the task"
    clusters = metric_units(metric, scored.data.clusters)
    gain, ci = stats.paired_difference(before, mean, config.bootstrap_iters, config.seed, clusters=clusters)
    by_seed = [float(np.mean(values)) - float(np.mean(before)) for values in after]
    p = stats.sign_flip(before, mean, FLIPS, config.seed, clusters)
    found = {"gain": gain, "ci": ci, "by_seed": by_seed, "seed_ci": seed_interval(by_seed), "p": p}
    return {"baseline": baseline.name, **found}


def _cost(registry: Registry, document: ResultsDocument, scored: Scored, name: str) -> Record:
    """What a method cost (passes through each tower, and seconds of one seed), and its calibration."""
    record = document.methods.get(scored.spec.task, {}).get(name)
    errors = seed_values(registry.metrics["text_ece"], scored.scores[name])
    costs = [] if record is None else record.cost
    passes = float(np.mean([cost.encoder_passes for cost in costs])) if costs else None
    return {
        "text_ece": None if errors is None else float(np.mean(errors)),
        "passes": 2.0 if name == RAW else passes,
        "seconds": float(np.mean([cost.seconds for cost in costs])) if costs else None,
    }


def _calibration(runs: Trials) -> Iterator[Record]:
    """Calibration errors and the points of reliability curves, of the choices of all seeds together."""
    columns = {"name": "method", "value": "ECE", "right": "accuracy", "mean": "confidence"}
    notes = ["percent of single choices; methods whose scores are no logits are left out"]
    for scored in runs.of().tasks.values():
        assert isinstance(scored, Scored), "what has no scores does not have the metrics"
        rows: list[Record] = []
        for one in (one for one in scored.numbers if one.metric in CALIBRATION and one.value is not None):
            groups = np.concatenate([scores.groups for scores in scored.scores[one.method]])
            bins = reliability(groups, "text" if one.metric == "text_ece" else "image")
            share, right, confidence = bins[bins[:, 0] > 0].T.tolist()
            row: Record = {"metric": one.metric, "name": one.column, "value": one.value, "seed_std": one.seed_std}
            row |= {"bins": {"share": share, "accuracy": right, "confidence": confidence}}
            rows.append({**row, "right": np.dot(share, right), "mean": np.dot(share, confidence)})
        about: Record = {**_about(scored), "seeds": runs.config.run_seeds, "by": "metric"}
        yield {**about, "columns": columns, "notes": notes, "rows": rows}
