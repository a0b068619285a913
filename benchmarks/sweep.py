"""What a sweep costs beside the runs that it is made of, and how it scales.

    python benchmarks/sweep.py                # cells by single commands, in one process, by 1 and by 2 workers
    python benchmarks/sweep.py --simulate     # the driver with 10,000 cells on 1,000 workers that sleep

The simulation is the driver and the scheduler as they are, with an executor whose workers sleep by a clock of its own:
what the driver takes to answer passes on that clock too, so workers wait for it as they would.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttmbench.config import RunConfig
from ttmbench.evaluator.executor import Event, Finished, WorkerJoined
from ttmbench.evaluator.unit import Cell, Unit, UnitResult
from ttmbench.sweep.driver import Driver
from ttmbench.sweep.plan import PlannedCell
from ttmbench.sweep.summary import SweepSummary

PLAN = """
models: [tiny-clip, tiny-clip-seed1]
tasks: [shapes_color, shapes_place]
settings:
  - {name: raw}
  - {name: ttm, ttm: true, seeds: [0, 1], ttm_args: {iterations: 2, epochs: 2}}
options: {limit: LIMIT, bootstrap_iters: 0}
"""
ONE_PROCESS = """
import sys
from pathlib import Path
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.evaluator.run import run
from ttmbench.evaluator.settings import model_settings
from ttmbench.sweep.plan import expand, read_plan
plan, root, adapters = Path(sys.argv[1]), Path(sys.argv[2]), {}
for one in expand(read_plan(plan), "plan", {}):
    config = one.cell.config_at(root)
    if config.model not in adapters:
        adapters[config.model] = make_adapter(one.chosen.registry, config.model, {}, model_settings(config))
    run(config, adapter=adapters[config.model], chosen=one.chosen)
"""


class Sleepers:
    """Workers that sleep, by a clock that also passes while the driver is at work.

    Args:
        workers: how many.
        mean: seconds of a unit, lognormal.
        load: seconds to change the model.
        seed: of the durations.
    """

    def __init__(self, workers: int, mean: float, load: float, seed: int) -> None:
        self._names = [f"worker-{number}" for number in range(workers)]
        self._mean, self._load, self._rng = mean, load, random.Random(seed)
        self._due: list[tuple[float, int, str, Unit]] = []
        self._models: dict[str, str] = {}
        self._count = 0
        self._real = time.perf_counter()
        self.now = self.busy = self.loading = 0.0
        self.idle = 0.0
        self.full = self.idle_until_full = 0.0  # when every worker had something for the last time

    def start(self) -> None:
        """All of them, on one place."""
        self._real = time.perf_counter()
        self._joining: list[Event] = [WorkerJoined(name, "here") for name in self._names]

    def submit(self, worker: str, unit: Unit) -> None:
        """Puts a worker to sleep."""
        self._pass()
        seconds = self._rng.lognormvariate(0, 0.5) * self._mean / 1.1331  # whose mean is exp(0.5 ** 2 / 2)
        changes = self._models.get(worker) != unit.cell.model
        self._models[worker] = unit.cell.model
        self.busy += seconds
        self.loading += self._load if changes else 0
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds + (self._load if changes else 0), self._count, worker, unit))

    def wait(self, timeout: float) -> list[Event]:
        """Those that have woken."""
        if self._joining:
            joined, self._joining = self._joining, []
            return joined
        self._pass()
        if len(self._due) == len(self._names):
            self.full, self.idle_until_full = self.now, self.idle
        self._advance(max(0.0, self._due[0][0] - self.now))
        events: list[Event] = []
        while self._due and self._due[0][0] <= self.now:
            _, _, worker, unit = heapq.heappop(self._due)
            events.append(Finished(worker, unit, UnitResult("done", seconds=1.0)))
        self._real = time.perf_counter()
        return events

    def stop(self, at_once: bool) -> None:
        """Nothing is left to stop."""

    def _pass(self) -> None:
        now = time.perf_counter()
        self._advance(now - self._real)
        self._real = now

    def _advance(self, seconds: float) -> None:
        self.idle += seconds * (len(self._names) - len(self._due))
        self.now += seconds


class Silence:
    """Shows nothing."""

    def update(self, *_: Any) -> None:
        """Nothing."""

    def tell(self, line: str) -> None:
        """Nothing."""


def simulate(cells: int, workers: int, models: int, mean: float, load: float) -> dict[str, float]:
    """A sweep of cells that sleep.

    Args:
        cells: how many.
        workers: how many.
        models: of so many models.
        mean: seconds of a cell.
        load: seconds to change the model.

    Returns:
        What it cost.
    """
    before = _megabytes()
    planned = [_cell(number + 1, f"model-{number * models // cells}") for number in range(cells)]
    with tempfile.TemporaryDirectory() as folder:
        clock = time.process_time()
        driver = Driver(planned, Path(folder), "plan.yaml")
        executor = Sleepers(workers, mean, load, seed=0)
        summary: SweepSummary = driver.run(executor, Silence())
        cost = time.process_time() - clock
    if summary.counts != {"done": cells}:
        raise SystemExit(f"not every cell is done: {summary.counts}")
    total = workers * executor.now
    return {
        "cells": cells,
        "workers": workers,
        "models": models,
        "microseconds a cell": 1e6 * cost / cells,
        "driver megabytes": _megabytes() - before,
        "wall seconds": executor.now,
        "workers wait, share": executor.idle / total,
        "workers wait while there is work for all, share": executor.idle_until_full / (workers * executor.full),
        "loading models, share": executor.loading / total,
    }


def _cell(number: int, model: str) -> PlannedCell:
    config = RunConfig(model=model, tasks=["t"], model_name=model)
    return PlannedCell(Cell(number, f"{model}/task-{number}", model, f"task-{number}", "", config), None)  # type: ignore[arg-type]


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


WAYS = ("process", "workers1", "workers2", "commands")
"""One process that runs all cells; sweeps of 1 and 2 workers; a command for each cell."""


def compare(limit: int, ways: Sequence[str]) -> dict[str, float]:
    """Seconds of the clock and of the processor for the same eight cells, each way in new processes and folders."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.yaml")
        plan.write_text(PLAN.replace("LIMIT", str(limit)), encoding="utf-8")
        sweep = ["-m", "ttmbench", "sweep", str(plan), "-o"]
        commands: dict[str, list[list[str]]] = {
            "process": [["-c", ONE_PROCESS, str(plan), f"{folder}/one"]],
            "workers1": [[*sweep, f"{folder}/w1", "--workers", "1"]],
            "workers2": [[*sweep, f"{folder}/w2", "--workers", "2"]],
            "commands": [[*sweep, f"{folder}/cells", "--cell", str(number)] for number in range(1, 9)],
        }
        found: dict[str, float] = {}
        for way in ways:
            timed = [_seconds(words) for words in commands[way]]
            found[f"{way}, clock"] = sum(clock for clock, _ in timed)
            found[f"{way}, processor"] = sum(processor for _, processor in timed)
        return found


def _seconds(words: Sequence[str]) -> tuple[float, float]:
    """Of the clock, and of the processor in the process and all that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "TTMBENCH_CACHE": "off"}
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    clock, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="the driver alone, with workers that sleep")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--mean", type=float, default=60.0, help="seconds of a simulated cell")
    parser.add_argument("--load", type=float, default=20.0, help="seconds to change a simulated model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="in which real cells are run")
    parser.add_argument("--limit", type=int, default=40, help="groups of a real cell")
    parser.add_argument("--output", type=Path, help="also write the numbers there, as JSON")
    options = parser.parse_args()
    if options.simulate:
        found = simulate(options.cells, options.workers, options.models, options.mean, options.load)
    else:
        found = compare(options.limit, options.ways)
    for name, value in found.items():
        print(f"{name:54} {value:12.4g}")
    if options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
