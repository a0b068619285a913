"""``analyze methods``: test-time methods on one task, each against its fair baseline, with intervals and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ttmbench import stats
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError
from ttmbench.evaluator.run import run
from ttmbench.evaluator.task_result import Scored
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, RAW
from ttmbench.results.summary import metric_units, metric_values, seed_interval, seed_values
from ttmbench.types import MethodSpec, MetricSpec, Record, Scores

BINS = 20  # of confidence, for the calibration error
FLIPS = 9_999  # of the permutation test


def comparisons(config: RunConfig, command: Sequence[str] = ()) -> Iterator[Record]:
    """Runs the methods and yields for each task the fields of its document, the comparison under ``data``.

    Each method is compared with the model as it is: its group score with the raw group score, its group match with
    SimpleMatch's. Scores that assume that each caption belongs to one image have to beat SimpleMatch in both.
    """
    registry = build_registry(config.include_path)
    evaluated = run(config.model_copy(update={"output_path": None, "on_error": "continue"}), command=command)
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
            "data": _compared(registry, config, scored, document),
        }


def _compared(registry: Registry, config: RunConfig, scored: Scored, document: ResultsDocument) -> Record:
    """The rows of one task: for each metric the model as it is, then every method."""
    metrics = {metric.name: metric for metric in scored.metrics if metric.name in ("group_score", "group_match")}
    columns = {column.name: column for column in scored.columns if column.name not in (HOLDOUT, HOLDOUT_RAW)}
    raw, rows = scored.raw, []
    for metric in metrics.values():
        rows.append({"method": RAW, "metric": metric.name, **_value(metric, [raw])})
        compared = []
        for name, column in columns.items():
            if name == RAW:
                continue
            spec = registry.methods[name][0] if name in registry.methods else None
            knows = spec is not None and spec.uses_matching and "group_match" in metrics
            baseline = metrics["group_match"] if knows else metric
            row = _against(config, scored, baseline, metric, column.scores)
            compared.append({"method": name, "metric": metric.name, **row})
        adjusted = stats.holm([row["p"] for row in compared])
        rows += [{**row, "p_holm": p} for row, p in zip(compared, adjusted, strict=True)]
    methods = {name: _about(registry, document, scored, name, column.scores) for name, column in columns.items()}
    return {"rows": rows, "methods": methods, "chance": dict(document.chance[scored.spec.task])}


def _against(
    config: RunConfig, scored: Scored, baseline: MetricSpec, metric: MetricSpec, per_seed: Sequence[Scores]
) -> Record:
    """A method's value and its gain: with intervals over groups and over seeds, and the test's p-value."""
    before, after = metric_values(baseline, scored.raw), seed_values(metric, per_seed)
    assert before is not None and after is not None, "both metrics are defined for the task"
    clusters = metric_units(metric, scored.data.clusters, None)
    mean = after.mean(axis=0)
    gain, ends = stats.paired_difference(before, mean, config.bootstrap_iters, config.seed, clusters=clusters)
    by_seed = [float(np.mean(values)) - float(np.mean(before)) for values in after]
    return {
        **_value(metric, per_seed),
        "baseline": baseline.name,
        "gain": gain,
        "ci": None if ends is None else list(ends),
        "by_seed": by_seed,
        "seed_ci": seed_interval(by_seed),
        "p": stats.sign_flip(before, mean, FLIPS, config.seed, clusters),
    }


def _value(metric: MetricSpec, per_seed: Sequence[Scores]) -> Record:
    values = seed_values(metric, per_seed)
    assert values is not None, "the metric is defined for the task"
    means = values.mean(axis=1)
    return {"value": float(means.mean()), "seed_std": stats.seed_std(means)}


def _about(
    registry: Registry, document: ResultsDocument, scored: Scored, name: str, per_seed: Sequence[Scores]
) -> Record:
    """What a method is, what it cost, how calibrated it is and whether it prefers a position."""
    spec: MethodSpec | None = registry.methods[name][0] if name in registry.methods else None
    record = document.methods.get(scored.spec.task, {}).get(name)
    gives_logits = name == RAW or (spec is not None and spec.gives_logits)
    errors = [calibration_error(scores.groups) for scores in per_seed]
    known = [error for error in errors if error is not None]
    return {
        "trains": spec is not None and spec.trains,
        "scope": None if spec is None else spec.scope,
        "order": None if spec is None else "depends on the order" if spec.order_dependent else "independent of it",
        "assumes_matching": spec is not None and spec.assumes_matching,
        "calibration_error": float(np.mean(known)) if gives_logits and known else None,
        "positions": None if record is None else record.positions,
        **_cost(document, scored.spec.task, name),
    }


def _cost(document: ResultsDocument, task: str, name: str) -> Record:
    """Passes through the towers in units of scoring the task once, and seconds for one seed."""
    if name == RAW:
        return {"tower_passes": 2.0, "seconds": None}
    costs = getattr(document.training(task, name), "cost", None) or []
    return {
        "tower_passes": float(np.mean([cost.tower_passes for cost in costs])) if costs else None,
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
