"""A worker: does units one after the other, in any process, and keeps the model and the task it has loaded."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ttmbench._util.third_party_errors import error_line
from ttmbench.config import RunConfig
from ttmbench.errors import DataError, TtmbenchError, phase, phase_of
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.evaluator.determinism import deterministic
from ttmbench.evaluator.partial_runs import run_scores, run_seed
from ttmbench.evaluator.run import run
from ttmbench.evaluator.score_task import TaskMemory
from ttmbench.evaluator.settings import Chosen, choose, model_settings
from ttmbench.evaluator.unit import State, Unit, UnitResult
from ttmbench.hookspecs import hookimpl
from ttmbench.scoring.capabilities import Capabilities, Model
from ttmbench.types import IterationRecord

Report = Callable[[str], None]
"""Receives short lines on what is being done."""


class Worker:
    """Does units; the same object from first to last, in one thread.

    Args:
        root: the sweep's folder, or a folder of the worker's own where the driver's cannot be seen.
        cache: folder of raw scores in place of what the configurations say; None to leave that.
        device: of models, in place of what the configurations say; None to leave that.
    """

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
            if unit.kind == "groups":
                run_scores(unit, config, chosen, adapter, memory)
            elif unit.kind == "seed":
                run_seed(unit, config, chosen, adapter, memory)
            elif unit.kind == "run":
                run(config, adapter=adapter, command=unit.cell.command, chosen=chosen, memory=memory)

    @contextmanager
    def _adapter(self, unit: Unit, config: RunConfig, chosen: Chosen, report: Report) -> Iterator[Model]:
        """The unit's model, loaded before or now; one that counts its usage is loaded for each unit."""
        key = unit.cell.model_key
        if self._loaded is None or self._loaded[0] != key:
            self._forget()
            report(f"{unit.name}: loading the model")
            settings = model_settings(config) | ({} if self._device is None else {"device": self._device})
            with phase("model"), deterministic(config.seed) if config.deterministic else nullcontext():
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
