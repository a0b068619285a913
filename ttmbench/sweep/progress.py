"""The progress of a sweep on stderr: a line per worker, redrawn, in a terminal; elsewhere a line per finished cell."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ttmbench._util.console import one_line, warn
from ttmbench.sweep.folder import SweepSummary

if TYPE_CHECKING:
    from rich.live import Live

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
