"""Analyses of a run's configuration: what ``ttmbench analyze`` does, as functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ttmbench._util import machine
from ttmbench._util.console import warn
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, model_settings, remarks
from ttmbench.evaluator.determinism import arithmetic_of, naming_what_cannot
from ttmbench.evaluator.run import run
from ttmbench.evaluator.score_task import Run, plan_task, score_task
from ttmbench.evaluator.settings import cache_of, check_config, task_settings, tasks_of
from ttmbench.evaluator.task import adaptation
from ttmbench.plugins.registry import build_registry, metric_for
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import TTM
from ttmbench.results.transfer_deltas import Transfer, transfers_of
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.debiasing import sweep
from ttmbench.ttm.analysis import ALPHA, ANALYSES, TRAINS, Question
from ttmbench.types import Record

SCHEMA_VERSION = "1.0"
TRANSFER, METHODS = "transfer", "methods"
_READS = {"lr": "to report 'baseline', 'metric' and 'final'; the rest of the data reads none"}
_SUPERVISION = ("group_score", "individual_match", "global_assignment_accuracy", "group_match")


def analyze_tasks(
    analysis: str,
    config: RunConfig,
    started: datetime,
    command: Sequence[str] = (),
    *,
    taus: Sequence[float] | None = None,
    lrs: Sequence[float] | None = None,
) -> Iterator[Record]:
    """Runs one analysis (`ttmbench.ttm.analysis.ANALYSES`, or ``alpha``) and yields the document of each task.

    ``taus`` and ``lrs`` are the thresholds and learning rates to compare. UsageError if the analysis does not apply to
    the model, DataError for unreachable data or weights.
    """
    check_config(config)
    with arithmetic_of(config), naming_what_cannot():
        registry = build_registry(config.include_path)
        tasks = tasks_of(registry, config)
        model = Capabilities(make_adapter(registry, config.model, config.model_args, model_settings(config)))
        _check(analysis, config, model)
        for remark in remarks(model.adapter):
            warn(remark)
        run, info = Run(registry, config, model, cache_of(config)), model_info(model)
        for task in tasks.values():
            numbers = _analysis(analysis, run, task, {"taus": taus, "lrs": lrs})
            yield _document(analysis, config, started, command, {**numbers, "model_info": info})


def methods_documents(config: RunConfig, started: datetime, command: Sequence[str] = ()) -> Iterator[Record]:
    """The comparison of test-time methods on each task (`ttmbench.evaluator.methods_analysis`)."""
    from ttmbench.evaluator.methods_analysis import comparisons

    for compared in comparisons(config, command):
        yield _document(METHODS, config, started, command, compared)


def _analysis(analysis: str, run: Run, task: TaskFile, grids: Record) -> Record:
    """The result of an analysis on one task."""
    registry, config, spec = run.registry, run.config, task.spec
    if analysis != ALPHA and spec.shape.true_captions > 1:
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
        with_inputs=analysis != ALPHA,
        with_parts=analysis == ALPHA,
    )
    scored = score_task(plan, run)
    by_name = {metric.name: metric for metric in plan.metrics}
    detail: Record
    if analysis == ALPHA:
        assert scored.parts is not None, "parts were asked for"
        tuned = metric_for(registry.metric("group_score"), spec.shape)
        metrics = list({**by_name, tuned.name: tuned}.values())
        detail = {
            "metric": tuned.name,
            "reads_labels": "to report; and one half's labels choose the alpha of the other half",
            "hyperparameters": {},
            "seeds": [config.seed],
            "data": sweep(scored.parts, metrics, tuned.name, config.seed),
        }
    else:
        metric = registry.metric("global_assignment_accuracy" if spec.is_global else "group_match")
        shown = [by_name[name] for name in _SUPERVISION] if analysis == "supervision" else None
        stage = adaptation(scored, run, settings, shown)
        iters, interval = config.bootstrap_iters, config.interval
        question = Question(stage, metric, **grids, bootstrap_iters=iters, interval=interval)
        detail = {
            "metric": metric.name,
            "reads_labels": _READS.get(analysis, "to report; the curve 'oracle' also to select"),
            "hyperparameters": {**settings.model_dump(mode="json"), "lr": stage.learning_rate},
            "seeds": list(stage.seeds) if analysis in TRAINS else [],
            "data": ANALYSES[analysis](question),
        }
    return {
        "task": spec.task,
        "task_version": spec.version,
        "matching": spec.matching,
        "n_groups": scored.n_groups,
        "source": scored.data.source,
        "data_sha256": scored.data.fingerprint,
        **detail,
    }


def _document(
    analysis: str,
    config: RunConfig,
    started: datetime,
    command: Sequence[str],
    content: Mapping[str, object],
    packages: Mapping[str, str] | None = None,
) -> Record:
    """The document of an analysis."""
    return {
        "schema_version": SCHEMA_VERSION,
        "analysis": analysis,
        "model_name": config.model_name,
        **content,
        "date": started.timestamp(),
        "deterministic": config.deterministic,
        "packages": machine.packages() if packages is None else packages,
        "command": " ".join(command),
    }


def _check(analysis: str, config: RunConfig, model: Capabilities) -> None:
    """UsageError if an analysis does not apply to a model."""
    if analysis == ALPHA:
        if model.debiasable is None:
            raise UsageError(f"model {config.model} has no log P(t) to subtract, so '{ALPHA}' does not apply to it")
    elif model.loss is None and (model.scores != "embeddings" or analysis in TRAINS):
        raise UsageError(f"model {config.model} cannot be adapted, so '{analysis}' does not apply to it")


def transfer_document(config: RunConfig, started: datetime, command: Sequence[str] = ()) -> Record:
    """Adapts a model to each task and measures the adapted model on all of them.

    UsageError for fewer than two tasks or a model that cannot be adapted; errors of a task as for `run`.
    """
    registry = build_registry(config.include_path)
    tasks = list(tasks_of(registry, config))
    if len(tasks) < 2:
        raise UsageError(f"'{TRANSFER}' needs at least two tasks (--tasks A,B), got {', '.join(tasks)}")
    adapter = make_adapter(registry, config.model, config.model_args, model_settings(config))
    if Capabilities(adapter).loss is None:
        raise UsageError(f"model {config.model} cannot be adapted, so '{TRANSFER}' does not apply to it")
    whole = config.model_copy(update={"ttm": True, "ttm_also": tasks, "output_path": None, "on_error": "raise"})
    document = run(whole, adapter=adapter, command=command).typed
    about = {
        "tasks": tasks,
        "task_versions": document.versions,
        "n_groups": {task: document.n_samples[task].effective for task in tasks},
        "sources": {task: document.datasets[task].source for task in tasks},
        "data_sha256": document.task_hashes,
    }
    detail = {
        "reads_labels": "to report",
        "hyperparameters": {task: document.ttm[task].hyperparameters for task in tasks},
        "seeds": config.run_seeds,
        "data": matrix(tasks, transfers_of(document), document),
    }
    content = {**about, "model_info": document.model_info, **detail}
    return _document(TRANSFER, config, started, command, content, document.packages)


def matrix(tasks: Sequence[str], transfers: Sequence[Transfer], document: ResultsDocument) -> Record:
    """The transfer matrix: rows adapted on, columns measured on; each cell has the value and its difference to raw."""
    by_place: dict[tuple[str, str], Transfer] = {}
    for transfer in transfers:
        if transfer.shown and transfer.method == TTM:
            by_place.setdefault((transfer.adapted_on, transfer.measured_on), transfer)
    cells = {pair: _cell(document, transfer) for pair, transfer in by_place.items()}
    return {
        "adapted_on": list(tasks),
        "measured_on": list(tasks),
        "metrics": {task: by_place[task, task].metric for task in tasks},
        "raw": {task: by_place[task, task].raw for task in tasks},
        "cells": [[cells[row, column] for column in tasks] for row in tasks],
    }


def _cell(document: ResultsDocument, transfer: Transfer) -> Record:
    is_own = transfer.adapted_on == transfer.measured_on
    record = (
        document.ttm[transfer.adapted_on] if is_own else document.ttm_also[transfer.adapted_on][transfer.measured_on]
    )
    gain = (record.differences or {}).get(transfer.metric)
    of_gain = {name: None if gain is None else getattr(gain, name) for name in ("ci", "by_seed", "seed_ci")}
    difference = None if gain is None else gain.value
    return {"value": transfer.value, "seed_std": transfer.seed_std, "difference": difference, **of_gain}
