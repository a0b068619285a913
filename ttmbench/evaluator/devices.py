"""One run on several devices: this process works on the first, and a worker process on each of the others.

The workers do units as in a sweep: blocks of pair scores, and seeds of the test-time stage. They leave what a stopped
run leaves; this process then finds it and does what is missing, so a worker that dies costs time and no number.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from ttmbench._util.console import warn
from ttmbench.cache.scores import ScoreCache
from ttmbench.config import RunConfig
from ttmbench.data.memory import Task
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.determinism import conditions
from ttmbench.evaluator.executor import Finished, WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import LocalExecutor, device_slot
from ttmbench.evaluator.plan import Ahead, Run
from ttmbench.evaluator.unit import Cell, Unit
from ttmbench.results.files import RunFiles
from ttmbench.scoring.capabilities import Model


@contextmanager
def several_devices(
    config: RunConfig,
    adapter: Model | None,
    in_memory: Sequence[Task],
    plugins: Sequence[object],
    cache: ScoreCache | None,
) -> Iterator[Devices]:
    """The devices of a run while it lasts; UsageError if it cannot be divided."""
    names = config.device.split(",")
    for is_given, what in ((adapter is not None, "a model"), (in_memory, "a task"), (plugins, "a plugin")):
        if is_given:
            raise UsageError(
                f"device {config.device} starts a process for each further device, and {what} that is an object of "
                "this program cannot go there; name one that is registered, or one device"
            )
    for name in names:
        kind, _, number = name.partition(":")
        if kind == "cuda" and int(number) >= torch.cuda.device_count():
            raise UsageError(f"device {name} was requested, but torch finds {torch.cuda.device_count()} CUDA devices")
    if config.ttm_also:
        raise UsageError(f"--ttm_also measures on one device, and --device has {len(names)}; omit one of them")
    before = torch.get_num_threads()
    threads = max(1, before // max(1, names.count("cpu")))  # processes on the CPU share its threads
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="ttmbench-") as folder:
        devices = Devices(config, names, Path(folder), threads, cache)
        is_over = False
        try:
            yield devices
            is_over = True
        finally:
            devices.executor.stop(at_once=not is_over)
            torch.set_num_threads(before)


class Devices:
    """The devices of a run, the first of them this process's; without a cache, scores are exchanged in ``folder``."""

    def __init__(
        self, config: RunConfig, names: Sequence[str], folder: Path, threads: int, cache: ScoreCache | None
    ) -> None:
        exact = conditions(config.batch_size) if config.deterministic else None
        self.cache = ScoreCache(folder / "cache", exact) if cache is None else cache
        self.executor = LocalExecutor(folder, [device_slot(name, threads) for name in names[1:]])
        self._names, self._document = names, folder / "results.json"
        self._config = config.model_copy(update={"track": [], "use_cache": str(self.cache.folder)})
        self._workers: dict[str, str] = {}  # name -> device
        self._cancelled = False

    def state(self, task: str) -> Path:
        """Folder of a task's checkpoints for a run without an output path."""
        return RunFiles.of(str(self._document), self._config.model_name, "").state_of(task)

    def join(self, run: Run, document: Path | None) -> Ahead:
        """Waits until every process has its model; returns what divides the work (UsageError if a server cannot)."""
        if document is not None:
            self._document = document.absolute()
        if run.capabilities.reporting is not None:
            raise UsageError(
                f"model {self._config.model} asks a server, whose requests are made side by side already; name one "
                "device, or none"
            )
        ready, load = 0, Unit(self._cell(self._config.tasks[0]), "load")
        while ready < len(self._names) - 1:
            for event in self.executor.wait(1.0):
                if isinstance(event, WorkerJoined):
                    self._workers[event.worker] = event.place
                    self.executor.submit(event.worker, load)
                elif isinstance(event, Finished) and event.result.state == "done":
                    ready += 1
                elif isinstance(event, Finished | WorkerLost):
                    why = event.result.error if isinstance(event, Finished) else event.why
                    raise TtmbenchError(f"device {self._workers[event.worker]}: {why}")
        return self._ahead

    def _cell(self, task: str) -> Cell:
        return Cell(1, task, task, "", self._config, len(self._names), path=str(self._document))

    def _ahead(self, kind: Literal["groups", "seed"], task: str, do: Callable[[int, int], object]) -> list[int]:
        """Divides the units of a kind, the first to this process; a `ttmbench.evaluator.plan.Ahead`."""
        cell = self._cell(task)
        parts = range(cell.shards) if kind == "groups" else self._config.run_seeds
        units = [Unit(cell, kind, part) for part in parts]
        count = len(self._workers) + 1
        left = {worker: deque(units[index::count]) for index, worker in enumerate(self._workers, 1)}
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(self._run_others, {worker: part for worker, part in left.items() if part})
            try:
                for unit in units[::count]:
                    do(unit.part, cell.shards)
            except BaseException:
                self._cancelled = True
                raise
            try:
                others.result()
            except TtmbenchError as error:  # lost workers cannot be replaced
                warn(f"the other devices did not do their part ({error}); {self._names[0]} does it")
                self._workers.clear()
        return [unit.part for index, unit in enumerate(units) if index % count]

    def _run_others(self, left: dict[str, deque[Unit]]) -> None:
        """Has the other processes do their units; what one cannot do is done here later. Runs in a thread."""
        for worker, units in left.items():
            self.executor.submit(worker, units[0])
        while left and not self._cancelled:
            for event in self.executor.wait(0.2):
                if isinstance(event, WorkerLost):
                    self._warn(event.worker, event.why)
                    del self._workers[event.worker]
                    left.pop(event.worker, None)
                elif isinstance(event, WorkerJoined):
                    self._workers[event.worker] = event.place  # replaces a lost one, from the next task on
                elif isinstance(event, Finished):
                    units = left[event.worker]
                    units.popleft()
                    if event.result.state != "done":
                        self._warn(event.worker, event.result.error or "it failed")
                        units.clear()
                    if units:
                        self.executor.submit(event.worker, units[0])
                    else:
                        del left[event.worker]

    def _warn(self, worker: str, why: str) -> None:
        warn(f"device {self._workers[worker]} did not do its part ({why}); {self._names[0]} does it")
