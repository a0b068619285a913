"""One run: a model meets tasks. Raw scores, and on request SimpleMatch's overfitting step and TTM."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench.errors import AssertionNotMet, DataError, UsageError
from ttmbench.finetune import restore, snapshot
from ttmbench.models import can_adapt, make_adapter
from ttmbench.progress import track
from ttmbench.protocols import DualEncoder
from ttmbench.record import RunRecord, TaskOutcome, write_artifacts
from ttmbench.registry import Registry, build_registry
from ttmbench.results import open_run_files
from ttmbench.runconfig import RunConfig, make_run_config, parse_assertion
from ttmbench.scoring import check_finite, prepare, score_with_pairs
from ttmbench.summary import RAW, SIMPLE_MATCH, TTM, metric_mean, summarise
from ttmbench.taskfile import TaskFile, TaskSpec
from ttmbench.ttm import Stage, Step, adapt, overfit
from ttmbench.ttmconfig import DEFAULT_LEARNING_RATE, TTMConfig
from ttmbench.types import Group, IterationRecord, MetricSpec, Scores


@dataclass(frozen=True, eq=False)
class EvalResults(Mapping[str, Any]):
    """A finished run: the results document as a mapping, and the score arrays behind it.

    Attributes:
        document: exactly what the results file holds.
        scores: task -> filter -> score arrays, one per seed.
        path: the results file, if one was written.
    """

    document: dict[str, Any]
    scores: dict[str, dict[str, list[Scores]]] = field(repr=False)
    path: Path | None = None

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """Task -> ``metric,filter`` -> fraction."""
        return self.document["results"]

    @property
    def failed(self) -> bool:
        """Whether a task failed."""
        return bool(self.document["errors"])

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return self.document


def simple_evaluate(
    model: Any,
    tasks: str | Sequence[str],
    *,
    ttm: bool | TTMConfig | Mapping[str, Any] | None = False,
    command: Sequence[str] = (),
    plugins: Sequence[tuple[str, Any]] = (),
    **settings: Any,
) -> EvalResults:
    """Evaluates a model on tasks; the arguments mirror the command line's options.

    Args:
        model: name of a registered model, or an adapter.
        tasks: names, tags, globs or files of tasks; a string may list several, separated by commas.
        ttm: adapt by TTM; a `TTMConfig` or a mapping also says how.
        command: the command line, for the record.
        plugins: further plugins, as (name, object).
        settings: fields of `RunConfig`: ``model_args``, ``seeds``, ``limit``, ``output_path``, ...

    Returns:
        The results. A failed task is listed under ``errors`` if ``on_error="continue"``.

    Raises:
        UsageError: a wrong name, option or file.
        DataError: data or weights out of reach, with ``on_error="raise"``.
        TtmbenchError: a task failed, with ``on_error="raise"``.
        AssertionNotMet: an assertion does not hold.
    """
    adapter = None if isinstance(model, str) else model
    given = dict(settings)
    if isinstance(ttm, TTMConfig):
        given["ttm_args"] = {**ttm.model_dump(exclude_unset=True), **given.get("ttm_args", {})}
    elif isinstance(ttm, Mapping):
        given["ttm_args"] = {**ttm, **given.get("ttm_args", {})}
    given["ttm"] = ttm not in (False, None)
    given["model"] = model if isinstance(model, str) else type(model).__name__
    given["tasks"] = [part.strip() for part in tasks.split(",")] if isinstance(tasks, str) else list(tasks)
    config = make_run_config(given)
    results = run(config, adapter=adapter, command=command, plugins=plugins)
    check_assertions(config.assertions, results.document)
    return results


def run(
    config: RunConfig,
    *,
    adapter: Any = None,
    command: Sequence[str] = (),
    plugins: Sequence[tuple[str, Any]] = (),
) -> EvalResults:
    """Runs a configuration; arguments and errors as for `simple_evaluate`, but assertions are left to the caller."""
    registry = build_registry(config.include_path, plugins)
    for broken in registry.plugins.broken:
        print(f"ttmbench: plugin '{broken.name}' could not be imported: {broken.reason}", file=sys.stderr)
    chosen = registry.select_tasks(config.tasks)
    chosen = {name: _with_task_args(task, config.task_args) for name, task in chosen.items()}
    settings = {name: _ttm_settings(registry, config, task.spec) for name, task in chosen.items()}
    samples = _read_samples(config.samples) if config.samples else None
    started, clock = datetime.now().astimezone(), time.perf_counter()
    files = open_run_files(config.output_path, config.model_name, started) if config.output_path else None
    record = RunRecord(config.model_name, config.model_dump(mode="json"), command, started)

    def save(status: str) -> dict[str, Any]:
        document = record.document(status, clock, files)
        if files is not None:
            files.write_results(document)
        return document

    save("running")
    registry.plugins.notify("ttmbench_run_started", config=record.config)
    try:
        if adapter is None:
            adapter = make_adapter(registry, config.model, config.model_args, _model_settings(config))
        record.describe_model(adapter)
    except BaseException as error:
        record.fail(None, "model", error)
        save("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    for name, task in track(chosen.items(), "tasks", total=len(chosen)):
        try:
            outcome = _run_task(registry, config, adapter, task, settings[name], samples)
        except BaseException as error:
            stopped = not isinstance(error, Exception)
            record.fail(name, "run", error)
            save("interrupted" if stopped else "failed")
            if stopped or config.on_error == "raise":
                raise
            print(f"ttmbench: task {name} failed: {error}", file=sys.stderr)
            continue
        record.outcomes[name] = outcome
        if files is not None:
            write_artifacts(files, config, outcome)
        save("running")
    document = save("failed" if record.errors else "done")
    run_dir = files.folder if files is not None else None
    registry.plugins.notify("ttmbench_run_finished", result=document, run_dir=run_dir)
    scores = {name: outcome.scores for name, outcome in record.outcomes.items()}
    return EvalResults(document, scores, files.results if files is not None else None)


def _model_settings(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("device", "dtype", "offline", "trust_remote_code")}


def plan(config: RunConfig) -> dict[str, Any]:
    """What `run` would do, checked as far as names and settings go: for ``--dry_run``."""
    registry = build_registry(config.include_path)
    registry.adapter(config.model)
    tasks = registry.select_tasks(config.tasks)
    steps: dict[str, Any] = {"model": config.model, "tasks": {}}
    for name, task in tasks.items():
        spec = _with_task_args(task, config.task_args).spec
        steps["tasks"][name] = {"source": spec.source, "group": spec.group.model_dump(), "metrics": spec.metrics}
        if config.ttm:
            steps["tasks"][name]["ttm"] = _ttm_settings(registry, config, spec).model_dump(mode="json")
    if config.ttm or config.simple_match:
        steps["seeds"] = config.run_seeds
    return steps


def _run_task(
    registry: Registry,
    config: RunConfig,
    adapter: Any,
    task: TaskFile,
    settings: TTMConfig,
    samples: set[str] | None,
) -> TaskOutcome:
    """Everything for one task; the adapter leaves as it came."""
    spec, clock = task.spec, time.perf_counter()
    metrics = [registry.metric(name) for name in spec.metrics]
    seconds: dict[str, float] = {}
    groups = _load(registry, config, task, samples)
    seconds["load"] = time.perf_counter() - clock
    all_pairs = spec.is_global or any(metric.scope == "global" for metric in metrics)
    notes: list[str] = []
    stage: Stage | None = None
    clock = time.perf_counter()
    if isinstance(adapter, DualEncoder):
        prepared, fingerprint = prepare(adapter, groups, config.batch_size)
        seconds["prepare"], clock = time.perf_counter() - clock, time.perf_counter()
        stage = Stage(adapter, prepared, config.batch_size, spec.is_global, all_pairs)  # type: ignore[arg-type]
        raw = stage.score()
    else:
        raw, fingerprint = score_with_pairs(adapter, groups, config.batch_size, all_pairs)
    seconds["score"] = time.perf_counter() - clock
    check_finite(raw.groups, groups)
    scores: dict[str, list[Scores]] = {RAW: [raw]}
    _notify_scored(registry, config, spec, metrics, RAW, scores)
    ttm: dict[str, Any] | None = None
    simple: dict[str, Any] | None = None
    if (config.ttm or config.simple_match) and not can_adapt(adapter):
        notes.append(
            f"model {config.model} cannot be adapted (it has no matching_loss), so there are raw and SimpleMatch "
            "numbers only"
        )
    elif stage is not None:
        if config.simple_match:
            clock = time.perf_counter()
            simple, scores[SIMPLE_MATCH] = _run_simple_match(config, stage, raw, settings)
            seconds[SIMPLE_MATCH] = time.perf_counter() - clock
            _notify_scored(registry, config, spec, metrics, SIMPLE_MATCH, scores)
        if config.ttm:
            clock = time.perf_counter()
            ttm, scores[TTM] = _run_ttm(registry, config, spec, stage, raw, settings, metrics)
            seconds[TTM] = time.perf_counter() - clock
            _notify_scored(registry, config, spec, metrics, TTM, scores)
    summary = summarise(scores, metrics, config.bootstrap_iters, config.seed)
    return TaskOutcome(spec, metrics, groups, spec.source, fingerprint, scores, summary, ttm, simple, notes, seconds)


def _run_ttm(
    registry: Registry,
    config: RunConfig,
    spec: TaskSpec,
    stage: Stage,
    raw: Scores,
    settings: TTMConfig,
    metrics: Sequence[MetricSpec],
) -> tuple[dict[str, Any], list[Scores]]:
    """TTM for every seed: the record for the results document, and the last iteration's scores of each seed."""
    schedule = registry.schedule(settings.schedule)
    rate = settings.lr or DEFAULT_LEARNING_RATE
    final: list[Scores] = []
    iterations: list[dict[str, Any]] = []
    before = snapshot(stage.adapter)
    for seed in config.run_seeds:
        try:
            steps = adapt(stage, raw, config=settings, schedule=schedule, learning_rate=rate, seed=seed)
            for step in steps:
                scores = step.scores
                record = _record_of(step, seed, raw, spec, metrics)
                registry.plugins.notify("ttmbench_iteration_finished", task=spec.task, record=record)
                iterations.append(_iteration_dict(record))
        finally:
            restore(stage.adapter, before)
        final.append(scores)
    hyperparameters = {**settings.model_dump(mode="json"), "lr": rate}
    notes = [] if settings.lr else [f"no learning rate is known for this model and task; {rate} is the default"]
    return {
        "hyperparameters": hyperparameters,
        "preset": config.ttm_preset,
        "variant": spec.matching,
        "seeds": config.run_seeds,
        "reported": "last iteration",
        "notes": notes,
        "iterations": iterations,
    }, final


def _run_simple_match(
    config: RunConfig, stage: Stage, raw: Scores, settings: TTMConfig
) -> tuple[dict[str, Any], list[Scores]]:
    """SimpleMatch's overfitting step for every seed: its record, and the scores that each seed ends with."""
    rate = settings.lr or DEFAULT_LEARNING_RATE
    final: list[Scores] = []
    restarts: list[int] = []
    before = snapshot(stage.adapter)
    for seed in config.run_seeds:
        try:
            steps = list(overfit(stage, raw, config=settings, learning_rate=rate, seed=seed))
        finally:
            restore(stage.adapter, before)
        final.append(steps[-1].scores)
        restarts.append(len(steps))
    hyperparameters = {**settings.model_dump(mode="json"), "lr": rate}
    return {"hyperparameters": hyperparameters, "seeds": config.run_seeds, "restarts": restarts}, final


def _record_of(step: Step, seed: int, raw: Scores, spec: TaskSpec, metrics: Sequence[MetricSpec]) -> IterationRecord:
    """The only place where TTM's choices meet the labels: for the report."""
    images = raw.groups.shape[1]
    truth = raw.truth[:, None] if spec.is_global else np.broadcast_to(np.arange(images), (len(raw.groups), images))
    right = (step.captions == truth).all(axis=1)
    count = int(step.selected.sum())
    return IterationRecord(
        seed=seed,
        iteration=step.iteration,
        threshold=step.threshold,
        selected=count,
        candidates=len(step.selected),
        coverage=count / len(step.selected),
        tied=int(step.tie.sum()),
        pseudo_label_accuracy=int(right[step.selected].sum()) / count if count else None,
        loss=step.loss,
        learning_rate=step.learning_rate,
        metrics={metric.name: metric_mean(metric, step.scores) for metric in metrics},
        seconds=step.seconds,
    )


def _iteration_dict(record: IterationRecord) -> dict[str, Any]:
    return {**vars(record), "loss": list(record.loss), "metrics": dict(record.metrics)}


def _load(registry: Registry, config: RunConfig, task: TaskFile, samples: set[str] | None) -> list[Group]:
    if samples is None:
        return registry.load_groups(task, config.limit, config.offline)
    groups = registry.load_groups(task, None, config.offline)
    kept = [group for group in groups if group.group_id in samples]
    absent = samples - {group.group_id for group in kept}
    if absent:
        raise DataError(f"task '{task.spec.task}' has no group {min(absent)} (--samples {config.samples})")
    return kept[: config.limit]


def _notify_scored(
    registry: Registry,
    config: RunConfig,
    spec: TaskSpec,
    metrics: Sequence[MetricSpec],
    name: str,
    scores: Mapping[str, list[Scores]],
) -> None:
    numbers = summarise({name: scores[name]}, metrics, 0, config.seed).results
    registry.plugins.notify("ttmbench_task_scored", task=spec.task, filter=name, results=numbers)


def _with_task_args(task: TaskFile, changes: Mapping[str, Any]) -> TaskFile:
    if not changes:
        return task
    if "kind" in changes:
        raise UsageError("--task_args cannot change the kind of a source")
    spec = task.spec.model_copy(update={"source": {**task.spec.source, **changes}})
    return TaskFile(spec, task.folder)


def _ttm_settings(registry: Registry, config: RunConfig, spec: TaskSpec) -> TTMConfig:
    """Package defaults, the model's, the task's, the paper's preset if asked for, and what the user says."""
    settings = TTMConfig()
    name = config.model
    if name in registry.adapters:
        name = registry.adapter(name).name  # an alias has the presets of its model
        settings = settings.with_changes(dict(registry.adapter(name).ttm_defaults), f"defaults of model {name}")
    settings = settings.with_changes(spec.ttm.get("defaults", {}), f"task {spec.task}: ttm.defaults")
    if (config.ttm or config.simple_match) and config.ttm_preset == "paper":
        preset = spec.ttm.get(name)
        if preset is None:
            known = ", ".join(model for model in spec.ttm if model != "defaults") or "none"
            raise UsageError(
                f"task '{spec.task}' has no paper preset for model '{name}' (it has: {known}); use --ttm_preset auto"
            )
        settings = settings.with_changes(preset, f"task {spec.task}: ttm.{name}")
    settings = settings.with_changes(dict(config.ttm_args), "--ttm_args")
    registry.schedule(settings.schedule)
    return settings


def _read_samples(path: str) -> set[str]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--samples {path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise UsageError(f"--samples {path}: is not JSON ({error})") from None
    if not isinstance(content, list) or not content:
        raise UsageError(f"--samples {path}: is no JSON list of group ids")
    return {str(entry) for entry in content}


def check_assertions(assertions: Sequence[str], document: Mapping[str, Any]) -> None:
    """Raises AssertionNotMet, naming each assertion that a results document does not meet."""
    compare = {
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
        "==": lambda a, b: a == b,
    }
    failures = []
    for text in assertions:
        task, key, sign, wanted = parse_assertion(text)
        value = document["results"].get(task, {}).get(key)
        if value is None:
            failures.append(f"{text}: the run has no such number")
        elif not compare[sign](value, wanted):
            failures.append(f"{text}: it is {value:.6g}")
    if failures:
        raise AssertionNotMet("; ".join(failures))
