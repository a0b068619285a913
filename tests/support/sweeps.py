"""What tests of sweeps share: plans, and an executor without processes."""

from __future__ import annotations

import json
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from support import processes
from ttmbench.evaluator import local_executor
from ttmbench.evaluator.executor import Event, Finished, WorkerJoined, WorkerLost
from ttmbench.evaluator.unit import Unit, UnitResult
from ttmbench.evaluator.worker import Worker
from ttmbench.results.reader import read_document
from ttmbench.sweep.driver import Driver
from ttmbench.sweep.plan import PlannedCell, expand, read_plan

TTM = {"ttm": True, "seeds": [0, 1], "ttm_args": {"iterations": 2, "epochs": 1}}
SMALL = {"limit": 12, "bootstrap_iters": 0}
_VOLATILE = {
    *("date", "git_hash", "command", "total_evaluation_time_seconds", "timing", "efficiency"),
    *("artifacts", "config", "from_store"),
}


def numbers(path: Path) -> str:
    """A document without its times and places, and whether it was made of parts."""
    document = read_document(path).to_dict()
    for dataset in document["datasets"].values():
        dataset.pop("from_store", None)
    for record in document["ttm"].values():
        for one in record["iterations"]:
            one["seconds"] = 0
    methods = [one for of_task in document.get("methods", {}).values() for one in of_task.values()]
    for record in [*methods, *document["ttm"].values()]:
        for cost in record.get("cost", ()):
            cost |= {"seconds": 0, "view_seconds": 0}
    return json.dumps({key: value for key, value in document.items() if key not in _VOLATILE}, sort_keys=True)


def write_plan(folder: Path, **content: object) -> Path:
    """A plan's file; of one model and one task where the content names no others."""
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"models": ["tiny-clip"], "tasks": ["shapes_color"], **content}))
    return path


def cells_of(folder: Path, **content: object) -> list[PlannedCell]:
    path = write_plan(folder, **content)
    return expand(read_plan(path), path.name, {})


@contextmanager
def forked_workers() -> Iterator[list]:
    """Inside, worker processes are forked from what has imported everything; yields those that were begun."""
    begun: list = []

    def popen(words: Sequence[str], *, env: dict[str, str], start_new_session: bool, **streams: object):
        env = {name: value for name, value in env.items() if name != "MKL_NUM_THREADS"}
        begun.append(processes.start(words[1:], env=env, **streams))
        return begun[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_executor, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
        yield begun


class Inline:
    """An executor whose workers do their units in this process, when events are asked for.

    Args:
        workers: what does the units, by name.
        loses: names of units whose worker is lost with them the first time.
    """

    def __init__(self, workers: dict, loses: Sequence[str] = (), places: dict[str, str] | None = None) -> None:
        self.workers, self._loses, self._places = workers, set(loses), places or {}
        self.given: deque[tuple[str, Unit]] = deque()
        self.joining: list[Event] = []
        self.done: list[tuple[str, str, str]] = []
        self.stopped: bool | None = None

    def start(self) -> None:
        self.joining = [WorkerJoined(name, self._places.get(name, "here")) for name in self.workers]

    def submit(self, worker: str, unit: Unit) -> None:
        self.given.append((worker, unit))

    def wait(self, timeout: float) -> list[Event]:
        if self.joining:
            joined, self.joining = self.joining, []
            return joined
        name, unit = self.given.popleft()
        if unit.name in self._loses:
            self._loses.remove(unit.name)
            self.workers[f"{name}'"] = self.workers.pop(name)
            place = self._places.get(name, "here")
            return [WorkerLost(name, unit, "it was killed"), WorkerJoined(f"{name}'", place)]
        result: UnitResult = self.workers[name].do(unit)
        self.done.append((name, unit.name, result.state))
        return [Finished(name, unit, result)]

    def stop(self, at_once: bool) -> None:
        self.stopped = at_once


class Told:
    """A display that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, summary, workers) -> None:
        pass

    def tell(self, line: str) -> None:
        self.lines.append(line)


def swept(planned: Sequence[PlannedCell], root: Path, executor: Inline | None = None, **how: object) -> tuple:
    """Runs a sweep in this process; gives the summary and the executor."""
    root.mkdir(exist_ok=True)
    executor = executor or Inline({"a": Worker(root)})
    return Driver(planned, root, "plan.yaml", **how).run(executor, Told()), executor
