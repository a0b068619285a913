"""One run: a model meets tasks, and the results document is kept up to date after each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.console import each_note_once, warn
from ttmbench._util.progress import progress_iter as progress_of
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.cache.scores import ScoreCache
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.memory import Task
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, TtmbenchError, carry, phase, phase_of
from ttmbench.evaluator.adapters import (
    make_adapter,
    remarks,
    trained_on,
)
from ttmbench.evaluator.artifacts import write_artifacts
from ttmbench.evaluator.baseline import Baseline
from ttmbench.evaluator.determinism import deterministic as fixed_bits
from ttmbench.evaluator.determinism import naming_what_cannot
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.finetuned import finetuned
from ttmbench.evaluator.plan import RunContext, TaskMemory
from ttmbench.evaluator.record import RunRecord
from ttmbench.evaluator.remote_output import UnsentError, run_place
from ttmbench.evaluator.resume import RunDirectory
from ttmbench.evaluator.score_task import data_fingerprint
from ttmbench.evaluator.settings import (
    Chosen,
    cache_of,
    choose,
    datasets_of,
    filters_of,
    metrics_by_task,
    model_settings,
    read_samples,
)
from ttmbench.evaluator.task import run_task, with_others
from ttmbench.evaluator.transfer_eval import check_model
from ttmbench.plugins.registry import Registry
from ttmbench.results.assertions import check_names
from ttmbench.results.document import ResultsDocument
from ttmbench.results.stored_runs import TaskGroups, stored_groups
from ttmbench.scoring.capabilities import Capabilities, Model, capabilities_of
from ttmbench.scoring.data_identity import DataNow
from ttmbench.ttm.variants import adapted_folders

if TYPE_CHECKING:
    from ttmbench.evaluator.devices import Devices


def run(
    config: RunConfig,
    *,
    adapter: Model | None = None,
    command: Sequence[str] = (),
    plugins: Sequence[tuple[str, Any]] = (),
    in_memory: Sequence[Task] = (),
    chosen: Chosen | None = None,
    memory: TaskMemory | None = None,
) -> EvalResults:
    """Runs a configuration; arguments and errors as for `simple_evaluate`, but assertions are left to the caller.

    ``in_memory`` are the tasks among those of the configuration that are no files; ``chosen`` is what its names stand
    for, where they have been looked up; ``memory`` is that of the adapter, for who gives it several runs.
    """
    with each_note_once(), fixed_bits(config.deterministic, config.seed):
        if chosen is None:  # a wrong name is an error before anything is written
            chosen = choose(config, plugins=plugins, in_memory=in_memory, is_registered=adapter is None)
        return _run(config, adapter, command, chosen, memory)


def _run(
    config: RunConfig, adapter: Model | None, command: Sequence[str], looked_up: Chosen, memory: TaskMemory | None
) -> EvalResults:
    registry, chosen, settings = looked_up.registry, looked_up.tasks, looked_up.settings
    also = looked_up.also
    samples = read_samples(config.samples) if config.samples else None
    baseline = None if config.baseline is None else Baseline.read(Path(config.baseline))
    if baseline is not None:
        baseline.check_tasks({name: task.spec.version for name, task in chosen.items()})
    started = datetime.now().astimezone()
    run_key, datasets = looked_up.key(config, adapter), datasets_of(registry, chosen)
    key = run_key.sha256
    dumped = config.model_dump(mode="json")
    record = RunRecord(config.model_name, dumped, command, started, datasets, list(chosen), run_key)
    results = None
    try:
        cache = cache_of(config)
        with _further_devices(config, adapter, looked_up, cache) as devices:
            cache = cache if devices is None else devices.cache
            work = _Work(
                registry, config, chosen, settings, samples, record, cache, baseline, key, also, memory, devices
            )
            with nullcontext() if config.output_path is None else run_place(config, run_key, started) as place:
                results = work.do(adapter, place)
    except UnsentError as error:
        carry(error, results)
        raise
    return results


def _further_devices(
    config: RunConfig, adapter: Model | None, looked_up: Chosen, cache: ScoreCache | None
) -> AbstractContextManager[Devices | None]:
    """The devices of a run on several; None for a run on one."""
    if "," not in config.device:
        return nullcontext()
    from ttmbench.evaluator.devices import several_devices

    return several_devices(config, adapter, looked_up.in_memory, looked_up.plugins, cache)


@dataclass
class _Work:
    """A run under way: its tasks, one after the other, and the document after each."""

    registry: Registry
    config: RunConfig
    chosen: Mapping[str, TaskFile]
    settings: Mapping[str, TTMConfig]
    samples: set[str] | None
    record: RunRecord
    cache: ScoreCache | None
    baseline: Baseline | None
    key: str
    also: Mapping[str, TaskFile]
    memory: TaskMemory | None
    devices: Devices | None
    clock: float = field(default_factory=time.perf_counter)
    took_over: bool = False
    unsaved: float = 0.0
    saving: float = 0.0
    states: list[Path] = field(default_factory=list)

    def do(self, adapter: Model | None, place: RunDirectory | None) -> EvalResults:
        config, record = self.config, self.record
        resumes = place is not None and place.previous is not None
        if not resumes:
            self._save("running", place)
        folders = adapted_folders(config, list(self.chosen), new=not resumes)
        self.registry.plugins.notify("ttmbench_run_started", config=deepcopy(record.config))
        name: str | None = None
        try:
            with phase("model"):
                if self.devices is not None:
                    self.devices.executor.start()
                if adapter is None:
                    adapter = make_adapter(self.registry, config.model, config.model_args, model_settings(config, True))
                seen = trained_on(self.registry, config.model, config.model_args, adapter)
                model = capabilities_of(adapter)
                record.describe_model(model, seen, finetuned(adapter))
                metrics = metrics_by_task(self.chosen)
                check_names(config.assertions, metrics, filters_of(config, model))
            check_model(config, model)
            for remark in remarks(adapter):
                warn(remark)
            context = RunContext.of_model(
                self.registry, config, model, self.samples, self.cache, self.key, folders=folders, memory=self.memory
            )
            context = with_others(context, self.also)
            kept = self._take_over(place, model)
            if self.devices is not None:
                context = self.devices.joined(context, None if place is None else place.files.results)
            self._save("running", place)
            for name in progress_of(self.chosen, "tasks", "tasks", total=len(self.chosen)):
                if name not in kept:
                    self._task(name, place, context)
            if self.baseline is not None:
                record.baseline = self._compared(self.baseline, place)
            document = self._save("failed" if record.errors else "done", place)
        except BaseException as error:
            if not any(one["task"] == name for one in record.errors):
                record.fail(None if name in record.results else name, phase_of(error, "run"), error)
            document = self._save_after(error, place)
            self._tell_finished(document, place)
            if document["results"]:  # tasks that were finished before
                path, address = (None, None) if place is None else place.results
                carry(error, EvalResults(document, dict(record.results), path, address=address))
            raise
        self._tell_finished(document, place)
        return self._results(document, place)

    def _results(self, document: dict[str, Any], place: RunDirectory | None) -> EvalResults:
        path, address = (None, None) if place is None else place.results
        earlier: dict[str, TaskGroups] = {}
        if place is not None and any(task not in self.record.results for task in document["results"]):
            earlier = stored_groups(place.files.folder, ResultsDocument.of(document))
        return EvalResults(document, dict(self.record.results), path, earlier, address)

    def _take_over(self, place: RunDirectory | None, model: Capabilities) -> list[str]:
        """Tasks that an earlier run of the same command has done, on the data that are there now."""
        if place is None or place.previous is None:
            return []
        kept = place.keep_completed(self.record.model_info["fingerprint"], lambda task: self._data_now(task, model))
        if place.previous is not None:
            self.record.restore_completed(place.previous, kept)
        self.took_over = True
        return kept

    def _data_now(self, name: str, model: Capabilities) -> DataNow | None:
        """A task's data as they are now; None, which is said, if they cannot be read."""
        try:
            return data_fingerprint(self.registry, self.config, model, self.chosen[name], self.samples, self.cache)
        except DataError as error:
            warn(f"the numbers of task {name} stay, but its data cannot be looked at: {error}")
            return None

    def _task(self, name: str, place: RunDirectory | None, context: RunContext) -> None:
        """Runs a task and writes what it gives; a failure ends the run only if that is asked for."""
        record, config = self.record, self.config
        state = None if place is None else place.files.state_of(name)
        if place is None and self.devices is not None:
            state = self.devices.state(name)
        began = time.perf_counter()
        try:
            with foreign_errors(f"task '{name}' with model '{config.model}'"), naming_what_cannot():
                outcome = run_task(context, self.chosen[name], self.settings[name], state)
                record.results[name] = outcome
                if outcome.failure is not None:
                    raise outcome.failure
            if place is not None:
                with phase("save"):
                    write_artifacts(place.files, config, outcome)
        except Exception as error:
            record.fail(name, phase_of(error, "run"), error)
            if config.on_error == "raise":
                raise
            warn(f"task {name} failed: {record.errors[-1]['message']}")
            state = None  # kept for the next attempt
        self.unsaved += time.perf_counter() - began
        if state is not None:
            self.states.append(state)
        # A document takes longer to write the more tasks it has: work that took less than that can wait for the next.
        if self.unsaved >= self.saving or record.errors:
            self._save("running", place)

    def _compared(self, baseline: Baseline, place: RunDirectory | None) -> dict[str, Any]:
        """The comparison with the baseline."""
        document = self.record.document("done", self.clock, None if place is None else place.files)
        groups = self._results(document, place).task_groups
        return baseline.entry(document, groups, self.config.bootstrap_iters, self.config.seed)

    def _save(self, status: str, place: RunDirectory | None) -> dict[str, Any]:
        """The document as it stands, written; an earlier run's is left alone until what it has is taken over.

        Of a run that writes nothing there is one when it ends.
        """
        if place is None and status == "running":
            return {}
        files, began = None if place is None else place.files, time.perf_counter()
        document = self.record.document(status, self.clock, files)
        if place is not None and place.previous is not None and not self.took_over:
            return document
        if place is not None:
            with phase("save"):
                place.files.write_results(document)
                place.publish(place.files)
            while self.states:  # what these tasks would have gone on from
                shutil.rmtree(self.states.pop(), ignore_errors=True)
        self.unsaved, self.saving = 0.0, time.perf_counter() - began
        return document

    def _save_after(self, error: BaseException, place: RunDirectory | None) -> dict[str, Any]:
        """Saves what there is; if that fails too, the error that came first is the one to raise."""
        status = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            return self._save(status, place)
        except TtmbenchError as second:
            if phase_of(error, "run") != "save":
                warn(str(second))
            return self.record.document(status, self.clock, None if place is None else place.files)

    def _tell_finished(self, document: Mapping[str, Any], place: RunDirectory | None) -> None:
        run_dir = None if place is None else place.files.folder
        self.registry.plugins.notify("ttmbench_run_finished", result=document, run_dir=run_dir)
