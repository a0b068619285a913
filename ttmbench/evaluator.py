"""One run: a model meets tasks, and the results document is kept up to date after each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench.assertions import check_assertions
from ttmbench.atonce import AtOnce
from ttmbench.baseline import Baseline, check_baseline, group_values
from ttmbench.blame import blaming
from ttmbench.comparison import stored_values
from ttmbench.determinism import conditions, deterministic, naming_what_cannot
from ttmbench.errors import DataError, TtmbenchError, UsageError, during, stage_of
from ttmbench.models import make_adapter, remark_on_files
from ttmbench.opening import data_fingerprint
from ttmbench.progress import track
from ttmbench.record import RunRecord, write_artifacts
from ttmbench.registry import Registry, build_registry
from ttmbench.resume import Place, open_place, run_key
from ttmbench.runconfig import RunConfig, make_run_config, split_names
from ttmbench.store.scores import ScoreStore, open_store
from ttmbench.taskfile import TaskFile, TaskSpec
from ttmbench.taskrun import Shared, run_task
from ttmbench.terminal import complain
from ttmbench.testtime import adapted_folders
from ttmbench.textfile import Unreadable, read_json
from ttmbench.trackers.choosing import make_trackers
from ttmbench.ttmconfig import TTMConfig, with_rate_note
from ttmbench.types import Scores


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
        UsageError: a wrong name, option or file, or a baseline that is of other data.
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
    given["tasks"] = split_names(tasks) if isinstance(tasks, str) else list(tasks)
    config = make_run_config(given)
    results = run(config, adapter=adapter, command=command, plugins=plugins)
    check_baseline(results.document)
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
    with deterministic(config.deterministic, config.seed):
        return _run(config, adapter, command, plugins)


def _run(config: RunConfig, adapter: Any, command: Sequence[str], plugins: Sequence[tuple[str, Any]]) -> EvalResults:
    registry = build_registry(config.include_path, [*plugins, *make_trackers(config)])
    for broken in registry.plugins.broken:
        complain(f"plugin '{broken.name}' could not be imported: {broken.reason}")
    if adapter is None:
        registry.adapter(config.model)  # a wrong name is an error before anything is written
    chosen = tasks_of(registry, config)
    settings = {name: task_settings(registry, config, task.spec) for name, task in chosen.items()}
    samples = read_samples(config.samples) if config.samples else None
    baseline = None if config.baseline is None else Baseline.read(Path(config.baseline))
    if baseline is not None:
        baseline.check_tasks({name: task.spec.version for name, task in chosen.items()})
    started = datetime.now().astimezone()
    key = run_key(config, chosen, settings)
    record = RunRecord(
        config.model_name,
        config.model_dump(mode="json"),
        command,
        started,
        datasets_of(registry, chosen),
        list(chosen),
        key,
    )
    work = _Work(registry, config, chosen, settings, samples, record, store_of(config), baseline)
    if config.output_path is None:
        return work.do(adapter, None)
    with open_place(config, key, started) as place:
        return work.do(adapter, place)


@dataclass
class _Work:
    """A run under way: its tasks, one after the other, and the document after each."""

    registry: Registry
    config: RunConfig
    chosen: Mapping[str, TaskFile]
    settings: Mapping[str, TTMConfig]
    samples: set[str] | None
    record: RunRecord
    store: ScoreStore | None
    baseline: Baseline | None
    clock: float = field(default_factory=time.perf_counter)
    took_over: bool = False

    def do(self, adapter: Any, place: Place | None) -> EvalResults:
        config, record = self.config, self.record
        resumes = place is not None and place.previous is not None
        if not resumes:
            self._save("running", place)
        folders = adapted_folders(config, list(self.chosen), new=not resumes)
        self.registry.plugins.notify("ttmbench_run_started", config=record.config)
        name: str | None = None
        try:
            with during("model"):
                if adapter is None:
                    adapter = make_adapter(self.registry, config.model, config.model_args, model_settings(config))
                record.describe_model(adapter)
            remark = remark_on_files(adapter)
            if remark is not None:
                complain(remark)
            shared = Shared(
                self.samples, folders, self.store, AtOnce.for_run(config.batch_size, adapter, config.deterministic)
            )
            kept = self._take_over(place, adapter)
            self._save("running", place)
            for name in track(self.chosen, "tasks", "tasks", total=len(self.chosen)):
                if name not in kept:
                    self._task(name, adapter, place, shared)
        except BaseException as error:
            if not any(one["task"] == name for one in record.errors):
                record.fail(None if name in record.outcomes else name, stage_of(error, "run"), error)
            self._tell_finished(self._save_after(error, place), place)
            raise
        if self.baseline is not None:
            record.baseline = self._compared(self.baseline, place)
        document = self._save("failed" if record.errors else "done", place)
        self._tell_finished(document, place)
        scores = {name: outcome.scores for name, outcome in record.outcomes.items()}
        return EvalResults(document, scores, None if place is None else place.files.results)

    def _take_over(self, place: Place | None, adapter: Any) -> list[str]:
        """Tasks that an earlier run of the same command has done, on the data that are there now."""
        if place is None or place.previous is None:
            return []
        kept = place.settle(self.record.model_info["fingerprint"], lambda task: self._data_now(task, adapter))
        if place.previous is not None:
            self.record.take_over(place.previous, kept)
        self.took_over = True
        return kept

    def _data_now(self, name: str, adapter: Any) -> str | None:
        """Fingerprint of a task's data as they are now; None, which is said, if they cannot be read."""
        try:
            return data_fingerprint(self.registry, self.config, adapter, self.chosen[name], self.samples, self.store)
        except DataError as error:
            complain(f"the numbers of task {name} stay, but its data cannot be looked at: {error}")
            return None

    def _task(self, name: str, adapter: Any, place: Place | None, shared: Shared) -> None:
        """Runs a task and writes what it gives; a failure ends the run only if that is asked for."""
        record, config = self.record, self.config
        state = None if place is None else place.files.state_of(name)
        try:
            with blaming(f"task '{name}' with model '{config.model}'"), naming_what_cannot():
                outcome = run_task(
                    self.registry, config, adapter, self.chosen[name], self.settings[name], shared, state
                )
                record.outcomes[name] = outcome
                if outcome.failure is not None:
                    raise outcome.failure
            if place is not None:
                with during("save"):
                    write_artifacts(place.files, config, outcome)
        except Exception as error:
            record.fail(name, stage_of(error, "run"), error)
            if config.on_error == "raise":
                raise
            complain(f"task {name} failed: {record.errors[-1]['message']}")
            state = None  # kept for the next attempt
        self._save("running", place)
        if state is not None:
            shutil.rmtree(state, ignore_errors=True)

    def _compared(self, baseline: Baseline, place: Place | None) -> dict[str, Any]:
        """The comparison with the baseline; values of tasks that were taken over come from their samples."""
        config, values = self.config, {name: group_values(outcome) for name, outcome in self.record.outcomes.items()}
        document = self.record.document("done", self.clock, None if place is None else place.files)
        if place is not None:
            values = {**stored_values(place.files.folder, document), **values}
        return baseline.entry(document, values, config.bootstrap_iters, config.seed)

    def _save(self, status: str, place: Place | None) -> dict[str, Any]:
        """The document as it stands, written; an earlier run's is left alone until what it has is taken over."""
        files = None if place is None else place.files
        document = self.record.document(status, self.clock, files)
        if place is not None and place.previous is not None and not self.took_over:
            return document
        if files is not None:
            with during("save"):
                files.write_results(document)
        return document

    def _save_after(self, error: BaseException, place: Place | None) -> dict[str, Any]:
        """Saves what there is; if that fails too, the error that came first is the one to raise."""
        status = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            return self._save(status, place)
        except TtmbenchError as second:
            if stage_of(error, "run") != "save":
                complain(str(second))
            return self.record.document(status, self.clock, None if place is None else place.files)

    def _tell_finished(self, document: Mapping[str, Any], place: Place | None) -> None:
        run_dir = None if place is None else place.files.folder
        self.registry.plugins.notify("ttmbench_run_finished", result=document, run_dir=run_dir)


def store_of(config: RunConfig) -> ScoreStore | None:
    """Where a run's raw scores are kept; what bits depend on is part of their keys where bits count."""
    return open_store(config.use_cache, conditions(config.batch_size) if config.deterministic else None)


def model_settings(config: RunConfig) -> dict[str, Any]:
    """What adapters are given where they take it; ``compile`` only if asked for, so that one that cannot says so."""
    names = ["device", "dtype", "offline", "trust_remote_code"]
    return {name: getattr(config, name) for name in names} | ({"compile": True} if config.compile else {})


def plan(config: RunConfig) -> dict[str, Any]:
    """What `run` would do, checked as far as names and settings go: for ``--dry_run``."""
    registry = build_registry(config.include_path, make_trackers(config))
    registry.adapter(config.model)
    tasks = tasks_of(registry, config)
    if config.baseline is not None:
        Baseline.read(Path(config.baseline)).check_tasks({name: task.spec.version for name, task in tasks.items()})
    steps: dict[str, Any] = {"model": config.model, "tasks": {}}
    for name, task in tasks.items():
        spec = task.spec
        steps["tasks"][name] = {"source": spec.source, "group": spec.group.model_dump(), "metrics": spec.metrics}
        if config.adapts:
            steps["tasks"][name]["ttm"] = task_settings(registry, config, spec).model_dump(mode="json")
    if config.adapts:
        steps["seeds"] = config.run_seeds
    return steps


def datasets_of(registry: Registry, chosen: Mapping[str, TaskFile]) -> dict[str, list[str]]:
    """Every registered subset of the datasets that chosen tasks are subsets of."""
    names = {task.spec.aggregate for task in chosen.values() if task.spec.aggregate}
    if not names:
        return {}
    found: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for name, task in registry.all_tasks().items():
        if task.spec.aggregate in found:
            found[task.spec.aggregate].append(name)
    return found


def tasks_of(registry: Registry, config: RunConfig) -> dict[str, TaskFile]:
    """The tasks that a configuration names, with its changes to their sources."""
    chosen = registry.select_tasks(config.tasks)
    return {name: task.with_source(config.task_args) for name, task in chosen.items()}


def task_settings(registry: Registry, config: RunConfig, spec: TaskSpec) -> TTMConfig:
    """Package defaults, the model's, the task's, the paper's preset if asked for, and what the user says."""
    settings = TTMConfig()
    name = config.model
    if name in registry.adapters:
        name = registry.adapter(name).name  # an alias has the presets of its model
        settings = settings.with_changes(dict(registry.adapter(name).ttm_defaults), f"defaults of model {name}")
    settings = settings.with_changes(spec.ttm.get("defaults", {}), f"task {spec.task}: ttm.defaults")
    if config.adapts and config.ttm_preset == "paper":
        preset = spec.ttm.get(name)
        if preset is None:
            known = ", ".join(model for model in spec.ttm if model != "defaults") or "none"
            raise UsageError(
                f"task '{spec.task}' has no paper preset for model '{name}' (it has: {known}); use --ttm_preset auto"
            )
        settings = settings.with_changes(with_rate_note(preset), f"task {spec.task}: ttm.{name}")
    settings = settings.with_changes(dict(config.ttm_args), "--ttm_args")
    registry.schedule(settings.schedule)
    if config.adapts:
        settings.by_share(spec.is_global)
    return settings


def read_samples(path: str) -> set[str]:
    """The group ids of a ``--samples`` file; UsageError if it holds no list of them."""
    try:
        content = read_json(Path(path))
    except Unreadable as error:
        raise UsageError(f"--samples {path}: {error}") from None
    if not isinstance(content, list) or not content:
        raise UsageError(f"--samples {path}: is no JSON list of group ids")
    strange = [one for one in content if isinstance(one, bool) or not isinstance(one, str | int)]
    if strange:
        raise UsageError(f"--samples {path}: {strange[0]!r:.80} is no group id")
    return {str(entry) for entry in content}
