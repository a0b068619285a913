"""A worker: does units one after the other, in any process, and keeps the model and the task it has loaded.

A seed leaves its folder of state under the run's key, scores leave blocks in the cache. `ttmbench.evaluator.run.run`
then computes neither again, and it alone writes numbers.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ttmbench._util.console import each_note_once
from ttmbench._util.text import Unreadable, read_json
from ttmbench._util.third_party_errors import error_line, foreign_errors, phase, phase_of
from ttmbench.config import RunConfig
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator.adapters import make_adapter, model_settings
from ttmbench.evaluator.determinism import arithmetic_of, naming_what_cannot
from ttmbench.evaluator.plan import Run, TaskPlan, plan_task
from ttmbench.evaluator.resume import open_output
from ttmbench.evaluator.run import run
from ttmbench.evaluator.run_key import RunKey
from ttmbench.evaluator.score_task import TaskMemory, load_data, score_share
from ttmbench.evaluator.settings import Chosen, cache_of, choose, read_samples
from ttmbench.evaluator.task import Methods, one_seed
from ttmbench.evaluator.unit import State, Unit, UnitResult
from ttmbench.hookspecs import hookimpl
from ttmbench.results.files import RunFiles
from ttmbench.scoring.capabilities import Capabilities, Model
from ttmbench.scoring.forced_choice.ask import ask_choices
from ttmbench.scoring.pairs import score_task_pairs
from ttmbench.ttm.checkpoint import is_finished
from ttmbench.ttm.variants import adapted_folders
from ttmbench.types import IterationRecord, MethodSpec

_PATIENCE = 60.0  # seconds to wait while another process moves an earlier run's files aside

Report = Callable[[str], None]
"""Receives short lines on what is being done."""


class Worker:
    """Does units, one after the other; ``cache`` and ``device`` replace those of the configurations."""

    def __init__(self, root: Path, cache: str | None = None, device: str | None = None) -> None:
        self._root, self._cache, self._device = root, cache, device
        self._loaded: tuple[str, Model] | None = None
        self._memory: tuple[int, TaskMemory] | None = None

    def do(self, unit: Unit, report: Report = lambda line: None) -> UnitResult:
        """Does a unit and returns how it ended, whatever went wrong; KeyboardInterrupt asks it to stop."""
        began = time.perf_counter()
        state: State = "done"
        error: str | None = None
        try:
            self._do(unit, report)
        except KeyboardInterrupt:
            state, error = "stopped", "stopped"
        except (Exception, SystemExit) as failure:
            # Weights, data, a package or a plugin may be available in another place.
            lacks_something = isinstance(failure, DataError) or phase_of(failure, "run") == "model"
            state = "unfit" if lacks_something else "failed"
            error = str(failure) if isinstance(failure, TtmbenchError) else error_line(failure)
        if state != "done":
            self._forget()  # whatever state it is in
        return UnitResult(state, error, time.perf_counter() - began)

    def _do(self, unit: Unit, report: Report) -> None:
        config = unit.cell.config_at(self._root)
        if self._cache is not None:
            config = config.model_copy(update={"use_cache": self._cache})
        with phase("model"):
            chosen = choose(config, plugins=[("sweep", _Listener(unit, report))])
        with self._adapter(unit, config, chosen, report) as adapter:
            if self._memory is None or self._memory[0] != unit.cell.number:
                self._memory = (unit.cell.number, TaskMemory())
            memory = self._memory[1]
            report(unit.name)
            if unit.kind == "run":
                run(config, adapter=adapter, command=unit.cell.command, chosen=chosen, memory=memory)
            elif unit.kind != "load":
                with _part(config, chosen, adapter, unit.cell.task) as part:
                    (_run_scores if unit.kind == "groups" else _run_seed)(unit, part, chosen, memory)

    @contextmanager
    def _adapter(self, unit: Unit, config: RunConfig, chosen: Chosen, report: Report) -> Iterator[Model]:
        """The unit's model, loaded before or now; one that counts its usage is loaded for each unit."""
        key = unit.cell.model_key
        if self._loaded is None or self._loaded[0] != key:
            self._forget()
            report(f"{unit.name}: loading the model")
            settings = model_settings(config) | ({} if self._device is None else {"device": self._device})
            with phase("model"), arithmetic_of(config):
                self._loaded = key, make_adapter(chosen.registry, config.model, config.model_args, settings)
        adapter = self._loaded[1]
        try:
            yield adapter
        finally:
            if Capabilities(adapter).reporting is not None:
                self._forget()

    def _forget(self) -> None:
        """Releases the model, the task that was prepared for it, and the memory of both."""
        self._memory = None
        if self._loaded is None:
            return
        self._loaded = None
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class _Listener:
    """A plugin that reports the progress of a unit."""

    def __init__(self, unit: Unit, report: Report) -> None:
        self._unit, self._report = unit, report

    @hookimpl
    def ttmbench_task_scored(self, task: str, filter: str) -> None:
        """Reports that raw scores or a method are done."""
        self._report(f"{self._unit.name}: {'raw scores' if filter == 'none' else filter} done")

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, record: IterationRecord) -> None:
        """Reports a finished iteration."""
        self._report(f"{self._unit.name}: seed {record.seed}, iteration {record.iteration} done")


@contextmanager
def _part(config: RunConfig, chosen: Chosen, adapter: Model, task: str) -> Iterator[Run]:
    """The run of which this process does a part."""
    with each_note_once(), arithmetic_of(config):
        samples = read_samples(config.samples) if config.samples else None
        key = chosen.key(config).sha256
        part = Run(chosen.registry, config, Capabilities(adapter), cache_of(config), key, samples)
        with foreign_errors(f"task '{task}' with model '{config.model}'"), naming_what_cannot():
            yield part


def _run_seed(unit: Unit, part: Run, chosen: Chosen, memory: TaskMemory) -> None:
    """Runs the test-time stage of one seed, and leaves its state next to the run's document."""
    name, config = unit.cell.task, part.config
    _move_other_run_aside(config, chosen.key(config))
    folders = adapted_folders(config, list(chosen.tasks), new=False)
    part = one_seed(part, unit.part).on(chosen.tasks[name].spec)
    plan = plan_task(part, chosen.tasks[name], chosen.settings[name])
    if plan.adapts or part.registry.trained(config.methods):
        methods = Methods(part, folders, chosen.also)
        methods.run_ahead(memory.score(plan, part), plan, chosen.settings[name], _state_of(config, name))


def _run_scores(unit: Unit, part: Run, chosen: Chosen, memory: TaskMemory) -> None:
    """Scores a part of the pairs, or asks a server about a part of the groups, into the cache; else does nothing."""
    name, number, of = unit.cell.task, unit.part, unit.cell.shards
    if chosen.tasks[name].spec.kind != "groups":
        return
    part = part.on(chosen.tasks[name].spec)
    can = part.capabilities
    plan = plan_task(part, chosen.tasks[name], chosen.settings[name])
    if can.reporting is not None:
        _ask(plan, part, number, of)
    elif part.cache is None or can.scores == "choices":
        return
    elif of > 1 and can.scores != "embeddings":
        score_share(plan, part, number, of)
    elif number == 0 and plan.way in ("prepared", "pairs"):
        memory.score(plan, part)


def _ask(plan: TaskPlan, part: Run, number: int, of: int) -> None:
    """Asks a server about some of the groups, within a part of the allowed costs."""
    can, sizer = part.capabilities, part.sizer
    divide_costs = getattr(can.adapter, "divide_costs", None)
    if divide_costs is not None:
        divide_costs(of)
    with phase("load"):
        groups = load_data(part.registry, part.config, plan.task, part.samples).groups[number::of]
    with phase("score"):
        if groups and can.choice_scorer is not None and plan.way == "choices":
            ask_choices(can, groups, sizer, part.config.seed, plan.frames)
        elif groups and can.pair_scorer is not None:
            score_task_pairs(can, groups, sizer, False)


def _state_of(config: RunConfig, task: str) -> Path:
    assert config.output_path is not None, "a part of a run leaves files"
    return RunFiles.of(config.output_path, config.model_name, "").state_of(task)


def _move_other_run_aside(config: RunConfig, key: RunKey) -> None:
    """Moves the document and state of another command aside before a seed is left there."""
    path, deadline = Path(config.output_path or ""), time.monotonic() + _PATIENCE
    while path.exists():
        try:
            if read_json(path).get("run_key") == key.sha256:
                return
        except (Unreadable, AttributeError):
            return  # which the run reports
        try:
            with open_output(config, key, datetime.now().astimezone()):
                return
        except UsageError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def seed_is_done(config: RunConfig, task: str, seed: int, key: str, trained: Sequence[MethodSpec] = ()) -> bool:
    """Whether what a run trains with a seed is finished on disk; ``trained`` are the methods of ``--methods``."""
    state = _state_of(config, task)
    return all(is_finished(state, name, seed, key) for name in (*config.own_columns, *(spec.name for spec in trained)))
