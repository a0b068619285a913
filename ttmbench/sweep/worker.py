"""A worker: does units one after the other and keeps what it has loaded. It knows of no process and no network."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, TtmbenchError, phase, phase_of
from ttmbench.hookspecs import hookimpl
from ttmbench.sweep.transfer import Changes, put_files
from ttmbench.sweep.units import State, Unit, UnitResult

if TYPE_CHECKING:
    from ttmbench.config import RunConfig
    from ttmbench.evaluator.plan import TaskMemory
    from ttmbench.evaluator.settings import Chosen
    from ttmbench.scoring.capabilities import Model
    from ttmbench.types import IterationRecord

Tell = Callable[[str], None]
"""Takes a short line on what is being done."""


class Worker:
    """Does units; the same object from first to last, in one thread.

    Args:
        root: the sweep's folder; of a worker that has none in common with the driver, one of its own.
        common: whether ``root`` is the driver's own, so that files need not travel.
        cache: folder of raw scores in place of what the configurations say; None to leave that.
        keep: how many models stay loaded.
    """

    def __init__(self, root: Path, *, common: bool = True, cache: str | None = None, keep: int = 1) -> None:
        import_module("ttmbench.evaluator.run")  # takes seconds: part of the start of a worker, not of its first unit
        self._root, self._common, self._cache, self._keep = root, common, cache, keep
        self._adapters: dict[str, Model] = {}
        self._memory: tuple[int, TaskMemory] | None = None

    def do(self, unit: Unit, files: Mapping[str, bytes] | None = None, tell: Tell = lambda line: None) -> UnitResult:
        """Does a unit. Whatever goes wrong is in the result; KeyboardInterrupt is what asks it to stop.

        Args:
            unit: what to do.
            files: path below the driver's folder -> content of what earlier units have left (`transfer.files_of`); put
                in place first. None where the folder is common.
            tell: is told what is going on.

        Returns:
            How it ended, and without a common folder the files that it wrote.
        """
        began = time.perf_counter()
        phases: dict[str, float] = {}
        changes: Changes | None = None
        state: State = "done"
        error: str | None = None
        try:
            if not self._common:
                cache = None if self._cache is None else Path(self._cache)
                put_files(self._root, unit.cell, files or {}, cache)
                changes = Changes(self._root, unit.cell, cache)
            self._do(unit, tell, phases)
        except KeyboardInterrupt:
            state, error = "stopped", "stopped"
        except (Exception, SystemExit) as failure:
            state = "unfit" if _lacks_something(failure) else "failed"
            error = str(failure) if isinstance(failure, TtmbenchError) else error_line(failure)
        if state != "done":
            self._forget(unit.cell.model_key)  # whatever state it is in
        written = changes.found() if changes is not None else {}
        return UnitResult(state, error, time.perf_counter() - began, phases, written)

    def _do(self, unit: Unit, tell: Tell, phases: dict[str, float]) -> None:
        from ttmbench.evaluator.parts import run_scores, run_seed
        from ttmbench.evaluator.run import run
        from ttmbench.evaluator.settings import choose

        config = unit.cell.config_at(self._root)
        if self._cache is not None:
            config = config.model_copy(update={"use_cache": self._cache})
        with phase("model"):
            chosen = choose(config, plugins=[("sweep", _Listener(unit, tell))])
        with self._adapter(unit, config, chosen, tell, phases) as adapter:
            memory = self._memory_of(unit)
            tell(unit.name)
            if unit.kind == "groups":
                run_scores(config, unit.part, unit.cell.shards, chosen, adapter, memory)
            elif unit.kind == "seed":
                run_seed(config, unit.part, chosen, adapter, memory)
            else:
                run(config, adapter=adapter, command=unit.cell.command, chosen=chosen, memory=memory)

    @contextmanager
    def _adapter(
        self, unit: Unit, config: RunConfig, chosen: Chosen, tell: Tell, phases: dict[str, float]
    ) -> Iterator[Model]:
        """The unit's model, loaded before or now; one that counts what it uses belongs to one unit alone."""
        from ttmbench.evaluator.adapters import make_adapter
        from ttmbench.evaluator.determinism import deterministic
        from ttmbench.evaluator.settings import model_settings
        from ttmbench.scoring.capabilities import capabilities_of

        key, began = unit.cell.model_key, time.perf_counter()
        if key in self._adapters:
            adapter = self._adapters[key] = self._adapters.pop(key)  # the last one used is the last one to go
        else:
            while len(self._adapters) >= self._keep:
                self._forget(next(iter(self._adapters)))
            tell(f"{unit.name}: loading the model")
            with phase("model"), deterministic(config.deterministic, config.seed):
                adapter = make_adapter(chosen.registry, config.model, config.model_args, model_settings(config))
            self._adapters[key] = adapter
        phases["model"] = time.perf_counter() - began
        try:
            yield adapter
        finally:
            if capabilities_of(adapter).reporting is not None:
                self._forget(key)

    def _memory_of(self, unit: Unit) -> TaskMemory:
        """The prepared task that units of one cell share."""
        from ttmbench.evaluator.plan import TaskMemory

        if self._memory is None or self._memory[0] != unit.cell.number:
            self._memory = (unit.cell.number, TaskMemory())
        return self._memory[1]

    def _forget(self, key: str) -> None:
        """Lets go of a model, of the task that was prepared for it, and of the memory of both."""
        self._memory = None
        if self._adapters.pop(key, None) is None:
            return
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class _Listener:
    """A plugin that passes on how far a unit is."""

    def __init__(self, unit: Unit, tell: Tell) -> None:
        self._unit, self._tell = unit, tell

    @hookimpl
    def ttmbench_task_scored(self, task: str, filter: str) -> None:
        """Raw scores are there, or a variant is over."""
        self._tell(f"{self._unit.name}: {'raw scores' if filter == 'none' else filter} done")

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, record: IterationRecord) -> None:
        """An iteration is over."""
        self._tell(f"{self._unit.name}: seed {record.seed}, iteration {record.iteration} done")


def _lacks_something(error: BaseException) -> bool:
    """Whether a failure says something of the place: weights, data, a package or a plugin may be there elsewhere."""
    return isinstance(error, DataError) or phase_of(error, "run") == "model"
