"""The progress of a sweep on stderr: a line per worker, redrawn, in a terminal; elsewhere a line per finished cell."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ttmbench._util.console import one_line, warn
from ttmbench.sweep.summary import SweepSummary

if TYPE_CHECKING:
    from rich.live import Live

_ROWS = 24  # workers that are shown; of more, their number
_FREQUENCY = 4  # redraws per second


class Display:
    """Shows how a sweep goes; ``live`` are lines of a terminal that can be redrawn, None in a file or pipe."""

    def __init__(self, live: Live | None = None) -> None:
        self._live, self._clock, self._drawn = live, Clock(), 0.0

    def update(self, summary: SweepSummary, workers: Mapping[str, str]) -> None:
        """Redraws the states of cells and what each worker is doing, a few times a second at most."""
        now = time.monotonic()
        if self._live is None or (now - self._drawn < 1 / _FREQUENCY and workers):
            return
        self._drawn = now
        counts: Counter[str] = Counter(entry.state for entry in summary.cells)
        self._live.update(overview(counts, self._clock.passed(), self._clock.left(counts), workers), refresh=True)

    def tell(self, line: str) -> None:
        """Prints a line that stays."""
        if self._live is None:
            warn(line)
        else:
            self._live.console.print(f"ttmbench: {one_line(line)}", soft_wrap=True)


class Clock:
    """Time since a sweep began, and an estimate of what is left."""

    def __init__(self, now: float | None = None) -> None:
        self._began = time.monotonic() if now is None else now
        self._before: int | None = None

    def passed(self, now: float | None = None) -> float:
        """Seconds since it began."""
        return (time.monotonic() if now is None else now) - self._began

    def left(self, counts: Mapping[str, int], now: float | None = None) -> float | None:
        """Seconds until the last cell is over, if all take as long as those so far; None before the first is."""
        over = counts.get("done", 0) + counts.get("failed", 0)
        if self._before is None:
            self._before = over
        fresh, left = over - self._before, counts.get("waiting", 0) + counts.get("running", 0)
        return self.passed(now) / fresh * left if fresh else None


def overview(counts: Mapping[str, int], passed: float, left: float | None, workers: Mapping[str, str]) -> str:
    """The lines to draw: numbers of cells by state, the time in seconds, and a line per worker.

    >>> print(overview({"done": 3, "waiting": 2}, 75, 50, {"worker-1": "a/b seed 1"}))
    3/5 cells done, 0 failed, 0 running, 2 waiting; 1:15 so far, about 0:50 left
      worker-1  a/b seed 1
    """
    states = ", ".join(f"{counts.get(state, 0)} {state}" for state in ("failed", "running", "waiting"))
    is_over = not counts.get("waiting", 0) + counts.get("running", 0)
    time_left = "" if left is None or is_over else f", about {_clock(left)} left"
    head = f"{counts.get('done', 0)}/{sum(counts.values())} cells done, {states}; {_clock(passed)} so far{time_left}"
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


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
