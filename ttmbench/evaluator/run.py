"""One run: a model meets tasks, and the results document is kept up to date after each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.console import each_note_once, warn
from ttmbench._util.console import progress_iter as progress_of
from ttmbench._util.option_values import is_address
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.cache.scores import ScoreCache
from ttmbench.config import RunConfig
from ttmbench.data.memory import Task
from ttmbench.errors import DataError, TtmbenchError, carry, phase, phase_of
from ttmbench.evaluator.adapters import check_model, finetuned, make_adapter, remarks, trained_on
from ttmbench.evaluator.baseline import Baseline
from ttmbench.evaluator.determinism import deterministic as fixed_bits
from ttmbench.evaluator.determinism import naming_what_cannot
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.plan import Run, ScoredTask, TaskPlan
from ttmbench.evaluator.record import RunRecord, write_artifacts
from ttmbench.evaluator.remote_output import UnsentError, run_at_address
from ttmbench.evaluator.resume import RunDirectory, open_place
from ttmbench.evaluator.run_key import DataNow, RunKey
from ttmbench.evaluator.score_task import TaskMemory, data_now, score_task
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
from ttmbench.results.assertions import check_names
from ttmbench.results.document import ResultsDocument
from ttmbench.results.stored_runs import TaskGroups, stored_groups
from ttmbench.scoring.capabilities import Capabilities, Model
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

    Args:
        config: the run.
        adapter: a model that was given as an object.
        command: the command line, for the record.
        plugins: further plugins, as (name, object).
        in_memory: the tasks among those of the configuration that are no files.
        chosen: what the configuration's names stand for, where they have been looked up.
        memory: of the adapter, for who gives it several runs.

    Returns:
        The results.
    """
    results = None
    with each_note_once(), fixed_bits(config.seed) if config.deterministic else nullcontext():
        if chosen is None:  # a wrong name is an error before anything is written
            chosen = choose(config, plugins=plugins, in_memory=in_memory, is_registered=adapter is None)
        baseline = None if config.baseline is None else Baseline.read(Path(config.baseline))
        if baseline is not None:
            baseline.check_tasks({name: task.spec.version for name, task in chosen.tasks.items()})
        samples = read_samples(config.samples) if config.samples else None
        started, key, cache = datetime.now().astimezone(), chosen.key(config, adapter), cache_of(config)
        dumped, datasets = config.model_dump(mode="json"), datasets_of(chosen.registry, chosen.tasks)
        record = RunRecord(config.model_name, dumped, command, started, datasets, list(chosen.tasks), key)
        try:
            with (
                _further_devices(config, adapter, chosen, cache) as devices,
                _place_of(config, key, started) as place,
            ):
                cache = cache if devices is None else devices.cache
                score = score_task if memory is None else memory.score
                work = _Work(config, chosen, key.sha256, record, place, devices)
                results = work.results(adapter, cache, samples, baseline, score)
        except UnsentError as error:
            carry(error, results)
            raise
    return results


def _place_of(config: RunConfig, key: RunKey, started: datetime) -> AbstractContextManager[RunDirectory | None]:
    """Where a run writes: its folder, or an address; None for a run without an output path."""
    if config.output_path is None:
        return nullcontext()
    return (run_at_address if is_address(config.output_path) else open_place)(config, key, started)


def _further_devices(
    config: RunConfig, adapter: Model | None, chosen: Chosen, cache: ScoreCache | None
) -> AbstractContextManager[Devices | None]:
    """The devices of a run on several; None for a run on one."""
    if "," not in config.device:
        return nullcontext()
    from ttmbench.evaluator.devices import several_devices

    return several_devices(config, adapter, chosen.in_memory, chosen.plugins, cache)


class _Work:
    """A run under way: its tasks, one after the other, and the document after each.

    Args:
        config: the run.
        chosen: its tasks and their settings.
        key: digest of the command.
        record: what it learns.
        place: where it writes; None for a run without an output path.
        devices: its further devices.
    """

    def __init__(
        self,
        config: RunConfig,
        chosen: Chosen,
        key: str,
        record: RunRecord,
        place: RunDirectory | None,
        devices: Devices | None,
    ) -> None:
        self._key = key
        self._config, self._chosen, self._record, self._place, self._devices = config, chosen, record, place, devices
        self._clock = time.perf_counter()
        self._is_ours = place is None or place.previous is None  # else the document is an earlier run's
        self._unsaved = self._saving = 0.0
        self._states: list[Path] = []

    def results(
        self,
        adapter: Model | None,
        cache: ScoreCache | None,
        samples: set[str] | None,
        baseline: Baseline | None,
        score: Callable[[TaskPlan, Run], ScoredTask],
    ) -> EvalResults:
        """Loads the model, runs every task that an earlier run has not done, and compares with the baseline."""
        config, chosen, record, devices = self._config, self._chosen, self._record, self._devices
        registry, tell = chosen.registry, chosen.registry.plugins.notify
        folder = None if self._place is None else self._place.files.folder
        self._save_running()
        folders = adapted_folders(config, list(chosen.tasks), new=self._is_ours)
        tell("ttmbench_run_started", config=deepcopy(record.config))
        name: str | None = None
        try:
            with phase("model"):
                if devices is not None:
                    devices.executor.start()
                model = self._model(adapter)
            check_model(config, model)
            for remark in remarks(model.adapter):
                warn(remark)
            run = with_others(Run(registry, config, model, cache, self._key, samples, folders), chosen.also)
            done = self._take_over(run)
            if devices is not None:
                run = devices.joined(run, None if self._place is None else self._place.files.results)
            self._save_running()
            for name in progress_of(chosen.tasks, "tasks", "tasks", total=len(chosen.tasks)):
                if name not in done:
                    self._task(name, run, score)
            if baseline is not None:
                compared = self._evaluated(self._document("done"))
                record.baseline = baseline.entry(
                    compared.typed, compared.task_groups, config.bootstrap_iters, config.seed
                )
            document = self._save("failed" if record.errors else "done")
        except BaseException as error:
            if not any(failed["task"] == name for failed in record.errors):
                record.fail(None if name in record.results else name, phase_of(error, "run"), error)
            document = self._save_after(error)
            tell("ttmbench_run_finished", result=document.to_dict(), run_dir=folder)
            if document.results:  # tasks that were finished before
                carry(error, self._evaluated(document, is_whole=False))
            raise
        tell("ttmbench_run_finished", result=document.to_dict(), run_dir=folder)
        return self._evaluated(document)

    def _model(self, adapter: Model | None) -> Capabilities:
        """The model, which the record describes; made by its name unless it was given as an object."""
        config, registry = self._config, self._chosen.registry
        if adapter is None:
            adapter = make_adapter(registry, config.model, config.model_args, model_settings(config, True))
        model = Capabilities(adapter)
        self._record.describe_model(
            model, trained_on(registry, config.model, config.model_args, adapter), finetuned(adapter)
        )
        if config.assertions:
            check_names(config.assertions, metrics_by_task(self._chosen.tasks), filters_of(config, model))
        return model

    def _take_over(self, run: Run) -> list[str]:
        """Tasks that an earlier run of the same command has done, on the data that are there now."""
        place = self._place
        if place is None or place.previous is None:
            return []

        def now(name: str) -> DataNow | None:
            try:
                return data_now(run, self._chosen.tasks[name])
            except DataError as error:
                warn(f"the numbers of task {name} stay, but its data cannot be looked at: {error}")
                return None

        done = place.keep_completed(self._record.model_info["fingerprint"], now)
        if place.previous is not None:
            self._record.restore_completed(place.previous, done)
        self._is_ours = True
        return done

    def _task(self, name: str, run: Run, score: Callable[[TaskPlan, Run], ScoredTask]) -> None:
        """Runs a task and writes what it gives; a failure ends the run only if that is asked for."""
        record, config, place = self._record, self._config, self._place
        state = None if place is None else place.files.state_of(name)
        if place is None and self._devices is not None:
            state = self._devices.state(name)
        began = time.perf_counter()
        try:
            named = naming_what_cannot() if config.deterministic else nullcontext()
            with foreign_errors(f"task '{name}' with model '{config.model}'"), named:
                result = run_task(run, self._chosen.tasks[name], self._chosen.settings[name], state, score)
                record.results[name] = result
                if result.failure is not None:
                    raise result.failure
            if place is not None:
                with phase("save"):
                    write_artifacts(place.files, config, result)
        except Exception as error:
            record.fail(name, phase_of(error, "run"), error)
            if config.on_error == "raise":
                raise
            warn(f"task {name} failed: {record.errors[-1]['message']}")
            state = None  # stays for the next attempt
        self._unsaved += time.perf_counter() - began
        if state is not None:
            self._states.append(state)
        # A document takes longer to write the more tasks it has: work that took less than that can wait for the next.
        if self._unsaved >= self._saving or record.errors:
            self._save_running()

    def _document(self, status: str) -> ResultsDocument:
        return self._record.document(status, self._clock, None if self._place is None else self._place.files)

    def _evaluated(self, document: ResultsDocument, is_whole: bool = True) -> EvalResults:
        """What a program gets; groups of tasks that were taken over come from their samples, of a whole run."""
        path, address = (None, None) if self._place is None else self._place.results
        results, earlier = dict(self._record.results), dict[str, TaskGroups]()
        if is_whole and self._place is not None and any(task not in results for task in document.results):
            earlier = stored_groups(self._place.files.folder, document)
        return EvalResults(document, results, path, earlier, address)

    def _save_running(self) -> None:
        """Writes the document of a run that writes files."""
        if self._place is not None and self._is_ours:
            self._save("running")

    def _save(self, status: str) -> ResultsDocument:
        """The document as it stands, written; an earlier run's is left alone until what it has is taken over."""
        began, document = time.perf_counter(), self._document(status)
        if self._place is not None and self._is_ours:
            with phase("save"):
                self._place.files.write_results(document.to_dict())
                self._place.publish(self._place.files)
            while self._states:  # these tasks are done, so nothing resumes from their checkpoints
                shutil.rmtree(self._states.pop(), ignore_errors=True)
        self._unsaved, self._saving = 0.0, time.perf_counter() - began
        return document

    def _save_after(self, error: BaseException) -> ResultsDocument:
        """Saves what there is; if that fails too, the error that came first is the one to raise."""
        status = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            return self._save(status)
        except TtmbenchError as second:
            if phase_of(error, "run") != "save":
                warn(str(second))
            return self._document(status)
