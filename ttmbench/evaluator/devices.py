"""One run on several devices: this process works on the first, and a worker process on each of the others.

They are workers as a sweep has them on this machine, and do the same units: blocks of pair scores, and seeds of the
test-time stage. What they leave is what a stopped run leaves to the next, and then this process goes through
everything, finds it, and does what is missing. So the run is one run with one document, and a process that dies costs
time and no number.
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
from ttmbench.evaluator.local_executor import LocalExecutor, desk_on
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
    """The devices of a run, for as long as it lasts.

    Args:
        config: the run.
        adapter: a model that was given as an object.
        in_memory: tasks that are no files.
        plugins: plugins that were given as objects.
        cache: the run's.

    Yields:
        The devices.

    Raises:
        UsageError: the run cannot be divided.
    """
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
            raise UsageError(f"device {name} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices")
    if config.ttm_also:
        raise UsageError(f"--ttm_also measures on one device, and --device has {len(names)}; leave one of them out")
    before = torch.get_num_threads()
    threads = max(1, before // max(1, names.count("cpu")))  # processes on the processor share its threads
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
    """The devices of a run.

    Args:
        config: the run.
        names: of the devices; the first is this process's.
        folder: one that lasts as long as the run.
        threads: of each process.
        cache: the run's; without one it is in ``folder``, since processes leave scores there for each other.

    Attributes:
        cache: see above.
        executor: of the other processes.
    """

    def __init__(
        self, config: RunConfig, names: Sequence[str], folder: Path, threads: int, cache: ScoreCache | None
    ) -> None:
        exact = conditions(config.batch_size) if config.deterministic else None
        self.cache = ScoreCache(folder / "cache", exact) if cache is None else cache
        self.executor = LocalExecutor(folder, [desk_on(name, threads) for name in names[1:]])
        self._names, self._document = names, folder / "results.json"
        self._config = config.model_copy(update={"track": [], "use_cache": str(self.cache.folder)})
        self._workers: dict[str, str] = {}
        self._given_up = False

    def state(self, task: str) -> Path:
        """Folder of a task's checkpoints for a run without an output path."""
        return RunFiles.of(str(self._document), self._config.model_name, "").state_of(task)

    def join(self, run: Run, document: Path | None) -> Ahead:
        """What divides the work of the run; waits until every process has its model.

        Args:
            run: as it is on one device.
            document: the run's; None for a run without an output path.

        Raises:
            UsageError: a server's model cannot be divided.
            TtmbenchError: a process has no model.
        """
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
        config, of = self._config, len(self._names)
        return Cell(1, task, config.model_name, task, "", config, of, path=str(self._document))

    def _ahead(self, kind: Literal["groups", "seed"], task: str, do: Callable[[int, int], object]) -> list[int]:
        """Deals out the units of a kind in turn, the first to this process; a `ttmbench.evaluator.plan.Ahead`."""
        cell = self._cell(task)
        units = [
            Unit(cell, kind, part) for part in (range(cell.shards) if kind == "groups" else self._config.run_seeds)
        ]
        count = len(self._workers) + 1
        dealt = {worker: deque(units[place::count]) for place, worker in enumerate(self._workers, 1)}
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(self._give_out, {worker: left for worker, left in dealt.items() if left})
            try:
                for unit in units[::count]:
                    do(unit.part, cell.shards)
            except BaseException:
                self._given_up = True
                raise
            try:
                others.result()
            except TtmbenchError as error:  # lost ones cannot be replaced
                warn(f"the other devices did not do their part ({error}); {self._names[0]} does it")
                self._workers.clear()
        return [unit.part for place, unit in enumerate(units) if place % count]

    def _give_out(self, dealt: dict[str, deque[Unit]]) -> None:
        """Gives the other processes their units, in a thread; what one cannot do is done here later, and said."""
        for worker, left in dealt.items():
            self.executor.submit(worker, left[0])
        while dealt and not self._given_up:
            for event in self.executor.wait(0.2):
                if isinstance(event, WorkerLost):
                    self._say(event.worker, event.why)
                    del self._workers[event.worker]
                    dealt.pop(event.worker, None)
                elif isinstance(event, WorkerJoined):
                    self._workers[event.worker] = event.place  # in place of a lost one, from the next task on
                elif isinstance(event, Finished):
                    left = dealt[event.worker]
                    left.popleft()
                    if event.result.state != "done":
                        self._say(event.worker, event.result.error or "it failed")
                        left.clear()
                    if left:
                        self.executor.submit(event.worker, left[0])
                    else:
                        del dealt[event.worker]

    def _say(self, worker: str, why: str) -> None:
        warn(f"device {self._workers[worker]} did not do its part ({why}); {self._names[0]} does it")
