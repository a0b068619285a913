"""Runs a sweep: gives unfinished units to workers, or runs a single cell; keeps the summary and the display up to date.

The display is a line per worker, redrawn, in a terminal; elsewhere a line per finished cell.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import filelock

from ttmbench._util.console import one_line, warn
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.evaluator.executor import Event, Executor, Finished, Progress, WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.settings import choose
from ttmbench.evaluator.unit import Unit
from ttmbench.sweep.folder import (
    SUMMARY,
    CellEntry,
    SweepSummary,
    beside_other_cells,
    new_summary,
    read_summary,
    stages_left,
    why_again,
)
from ttmbench.sweep.plan import PlannedCell
from ttmbench.sweep.scheduler import CellEnd, Scheduler

if TYPE_CHECKING:
    from rich.live import Live

    from ttmbench.evaluator.eval_results import EvalResults

_PATIENCE = 30.0  # seconds to wait for others that write the summary
_TICK = 0.5  # seconds between two looks at the clock while nothing happens
_ROWS = 24  # workers that are shown; of more, their number
_FREQUENCY = 4  # redraws per second


class Display:
    """Shows how a sweep goes; ``live`` are lines of a terminal that can be redrawn, None in a file or pipe."""

    def __init__(self, live: Live | None = None) -> None:
        self._live, self._began, self._drawn = live, time.monotonic(), 0.0
        self._before: int | None = None  # cells that were over at the beginning

    def update(self, summary: SweepSummary, workers: Mapping[str, str]) -> None:
        """Redraws the states of cells and what each worker is doing, a few times a second at most."""
        now = time.monotonic()
        if self._live is None or (now - self._drawn < 1 / _FREQUENCY and workers):
            return
        self._drawn = now
        counts: Counter[str] = Counter(entry.state for entry in summary.cells)
        if self._before is None:
            self._before = counts["done"] + counts["failed"]
        self._live.update(overview(counts, now - self._began, self._before, workers), refresh=True)

    def tell(self, line: str) -> None:
        """Prints a line that stays."""
        if self._live is None:
            warn(line)
        else:
            self._live.console.print(f"ttmbench: {one_line(line)}", soft_wrap=True)


def overview(counts: Mapping[str, int], seconds: float, before: int, workers: Mapping[str, str]) -> str:
    """The lines to draw: numbers of cells by state, the time so far and left, and a line per worker.

    The time left is known once more cells are over than there were ``before``, if the others take as long.

    >>> print(overview({"done": 3, "waiting": 2}, 75, 0, {"worker-1": "a/b seed 1"}))
    3/5 cells done, 0 failed, 0 running, 2 waiting; 01:15 so far, about 00:50 left
      worker-1  a/b seed 1
    """
    from tqdm import tqdm

    done, failed, running, waiting = (counts.get(state, 0) for state in ("done", "failed", "running", "waiting"))
    fresh, left = done + failed - before, running + waiting
    time_left = f", about {tqdm.format_interval(seconds / fresh * left)} left" if fresh and left else ""
    head = (
        f"{done}/{sum(counts.values())} cells done, {failed} failed, {running} running, {waiting} waiting; "
        f"{tqdm.format_interval(seconds)} so far{time_left}"
    )
    width = max((len(name) for name in workers), default=0)
    shown = [f"  {name:{width}}  {one_line(line, 200)}" for name, line in list(workers.items())[:_ROWS]]
    more = [f"  and {len(workers) - _ROWS} workers more"] if len(workers) > _ROWS else []
    return "\n".join([head, *shown, *more])


@contextmanager
def display() -> Iterator[Display]:
    """The display that fits stderr."""
    if not sys.stderr.isatty():
        yield Display()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Display(live)


class Driver:
    """Runs the cells of a sweep that are not done yet.

    Args:
        planned: the cells.
        root: the sweep's folder.
        plan: the plan's file, for the summary.
        on_error: ``raise`` begins nothing more once a cell has failed.

    Attributes:
        left: cells that are not done.
        units: into which these are cut.
    """

    def __init__(
        self, planned: Sequence[PlannedCell], root: Path, plan: str, on_error: Literal["continue", "raise"] = "continue"
    ) -> None:
        self._root = root
        self._summary = new_summary(plan, [planned_cell.cell for planned_cell in planned], root)
        self._entries = {entry.number: entry for entry in self._summary.cells}
        stages, changed = [], Counter[str]()
        for cell, entry in zip(planned, self._summary.cells, strict=True):
            left = stages_left(root, cell)
            if not left:
                entry.state = "done"
                continue
            stages.append(left)
            entry.seconds, entry.worker, entry.attempts = None, None, 0
            why = why_again(root, cell)
            if why is not None:
                changed[why] += 1
        for why, count in changed.items():
            warn(f"{why} since {count} cell{'s were' if count > 1 else ' was'} done: running again")
        self.left, self.units = len(stages), sum(len(stage) for cell in stages for stage in cell)
        self._scheduler = Scheduler(stages, on_error=on_error)
        self._doing: dict[str, str] = {}  # worker -> what it does, for the display
        self._idle: dict[str, None] = {}
        self._out = Counter[int]()  # number of a cell -> its units that workers have
        self._writing, self._written = 0.0, -1e9

    def run(self, executor: Executor, display: Display) -> SweepSummary:
        """Gives out units until every cell is over, stops the executor, and returns the summary as it was written.

        Raises:
            KeyboardInterrupt: after workers have stopped and the summary says so.
            TtmbenchError: there can be no workers, or a file cannot be written.
        """
        finished = self._scheduler.over
        self._save(at_once=True)
        try:
            if finished:
                return self._summary
            executor.start()
            while not self._scheduler.over:
                self._give_out(executor)
                self._save()
                display.update(self._summary, self._doing)
                for event in executor.wait(_TICK):
                    self._take(event, display)
            finished = True
        finally:
            try:
                executor.stop(at_once=not finished)
            finally:
                self._close(finished)
                display.update(self._summary, {})
        return self._summary

    def _give_out(self, executor: Executor) -> None:
        for worker in list(self._idle) if self._scheduler.waiting else ():
            unit = self._scheduler.next(worker)
            if unit is not None:
                del self._idle[worker]
                self._doing[worker] = unit.name
                entry = self._entries[unit.cell.number]
                entry.state, entry.worker, entry.attempts = "running", worker, max(entry.attempts, 1)
                self._out[entry.number] += 1
                executor.submit(worker, unit)

    def _take(self, event: Event, display: Display) -> None:
        if isinstance(event, WorkerJoined):
            self._scheduler.join(event.worker, event.place)
            self._rest(event.worker)
        elif isinstance(event, Progress):
            if event.worker in self._doing and event.worker not in self._idle:
                self._doing[event.worker] = event.line
        elif isinstance(event, WorkerLost):
            self._lost(event, display)
        else:
            self._finished(event, display)

    def _rest(self, worker: str) -> None:
        self._idle[worker], self._doing[worker] = None, "waits"

    def _lost(self, event: WorkerLost, display: Display) -> None:
        self._summary.workers_lost += 1
        self._summary.workers_hung += event.hung
        self._doing.pop(event.worker, None)
        self._idle.pop(event.worker, None)
        ended = self._scheduler.lose(event.worker, event.why)
        line = f"{event.worker} is lost: {event.why}"
        if event.unit is not None:
            entry = self._returned(event.unit)
            if entry.number not in [end.cell.number for end in ended]:
                entry.attempts += 1
                line += f"; {event.unit.name} is tried again"
        display.tell(line)
        for end in ended:
            self._end(end, display)

    def _finished(self, event: Finished, display: Display) -> None:
        unit, result = event.unit, event.result
        entry = self._returned(unit)
        entry.seconds = (entry.seconds or 0.0) + result.seconds
        self._rest(event.worker)
        end = self._scheduler.finish(event.worker, unit, result)
        if end is not None:
            self._end(end, display)
        elif result.state == "unfit":
            entry.attempts += 1
            display.tell(f"{event.worker} cannot do {unit.name}: {result.error}; it is tried elsewhere")

    def _returned(self, unit: Unit) -> CellEntry:
        """The entry of a unit that a worker no longer has."""
        entry = self._entries[unit.cell.number]
        self._out[entry.number] -= 1
        if not self._out[entry.number] and entry.state == "running":
            entry.state = "waiting"
        return entry

    def _end(self, end: CellEnd, display: Display) -> None:
        entry = self._entries[end.cell.number]
        entry.state, entry.error = "done" if end.error is None else "failed", end.error
        total = len(self._entries)
        how = f"done in {entry.seconds or 0.0:.1f} s" if end.error is None else f"failed: {end.error}"
        display.tell(f"{total - self._scheduler.left}/{total} {entry.cell} {how}")

    def _save(self, at_once: bool = False) -> None:
        """Writes the summary, at most a tenth of the time: it grows with the sweep."""
        now = time.monotonic()
        if at_once or now - self._written >= max(1.0, 10 * self._writing):
            self._summary.write(self._root)
            self._written = time.monotonic()
            self._writing = self._written - now

    def _close(self, finished: bool) -> None:
        for entry in self._entries.values():
            if entry.state in ("running", "waiting"):
                entry.state = "skipped" if finished else "waiting"
        failed = any(entry.state == "failed" for entry in self._entries.values())
        self._summary.status = "interrupted" if not finished else "failed" if failed else "done"
        self._save(at_once=True)


def run_cell(root: Path, plan: str, planned: Sequence[PlannedCell], number: int) -> EvalResults:
    """Runs one cell in this process, for jobs that a cluster's own scheduler starts, and updates the summary.

    Several may run at the same time: each cell has a folder of its own, and the summary is changed under a lock.

    Args:
        root: the sweep's folder.
        plan: the plan's file, for the summary.
        planned: all cells.
        number: of the one to run, from 1.

    Raises:
        UsageError: a sweep is writing to the folder; other errors as for `ttmbench.evaluator.run.run`.
    """
    with beside_other_cells(root):
        from ttmbench.evaluator.run import run

        def update(**changes: object) -> None:
            _update_summary(root, plan, planned, number, changes)

        cell, began = planned[number - 1].cell, time.perf_counter()
        config = cell.config_at(root)
        chosen = choose(config)
        update(state="running", worker="this process", attempts=1)
        try:
            results = run(config, command=cell.command, chosen=chosen)
        except Exception as error:
            update(state="failed", error=str(error) if isinstance(error, TtmbenchError) else error_line(error))
            raise
        except BaseException:
            update(state="waiting", error=None)
            raise
        update(state="done", seconds=time.perf_counter() - began, error=None)
        return results


def _update_summary(
    root: Path, plan: str, planned: Sequence[PlannedCell], number: int, changes: dict[str, object]
) -> None:
    """Changes a cell's entry in the summary; other entries stay as others wrote them."""
    try:
        (root / OWN).mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / OWN / "summary.lock").acquire(timeout=_PATIENCE):
            summary = _summary(root, plan, planned)
            summary.cells[number - 1] = summary.cells[number - 1].model_copy(update=changes)
            states = {entry.state for entry in summary.cells}
            unfinished = states & {"waiting", "running"}
            summary.status = "running" if unfinished else "failed" if "failed" in states else "done"
            summary.write(root)
    except (filelock.Timeout, OSError, TtmbenchError) as error:
        warn(f"{root / SUMMARY} is not up to date ({error}); the cell's document is what counts")


def _summary(root: Path, plan: str, planned: Sequence[PlannedCell]) -> SweepSummary:
    """The existing summary, if it is of the same cells; else a new one from the cells' documents."""
    cells = [planned_cell.cell for planned_cell in planned]
    try:
        summary = read_summary(root / SUMMARY)
        if [entry.cell for entry in summary.cells] == [cell.folder for cell in cells]:
            return summary
    except DataError:
        pass  # none yet, or a damaged one
    summary = new_summary(plan, cells, root)
    for entry, planned_cell in zip(summary.cells, planned, strict=True):
        if not stages_left(root, planned_cell):
            entry.state = "done"
    return summary
