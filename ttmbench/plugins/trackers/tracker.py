"""A tracker as a plugin: listens to a run, passes its numbers on, and never disturbs it."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from ttmbench._util.console import warn
from ttmbench.hookspecs import hookimpl
from ttmbench.plugins.trackers.series import curve_name, curve_values, final_values
from ttmbench.types import IterationRecord


class Sink(Protocol):
    """What a tracker's library is asked to do. Anything it raises is for `Tracking` to report."""

    def open(self, config: Mapping[str, Any]) -> None:
        """Begins a run with these settings."""

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        """One more point of every curve below a name."""

    def numbers(self, values: Mapping[str, float]) -> None:
        """Final numbers; a name that was there before gets a new value."""

    def close(self, document: Mapping[str, Any]) -> None:
        """Ends the run with its results document."""


class TrackerPlugin:
    """Passes what the hooks say on to a sink; after the first failure the sink is left alone.

    Curves are written in the order of their iterations. Of a seed that an earlier run began, this one is told the later
    iterations only: they wait until the results document has the earlier ones.
    """

    def __init__(self, tracker: str, sink: Sink) -> None:
        self._tracker, self._sink = tracker, sink
        self._failed = self._warned = False
        self._written: dict[tuple[str, int], int] = {}
        self._waiting: dict[tuple[str, int, int], dict[str, float]] = {}
        self._reported: dict[str, float] = {}

    @hookimpl
    def ttmbench_run_started(self, config: Mapping[str, Any]) -> None:
        """Opens the tracker."""
        self._try("could not begin a run", partial(self._sink.open, config))

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, record: IterationRecord) -> None:
        """Writes a point of the curves, if it is the next one."""
        self._waiting[task, record.seed, record.iteration] = curve_values(vars(record))
        if self._written.get((task, record.seed), 0) + 1 == record.iteration:
            self._write_curves(task, record.seed)

    @hookimpl
    def ttmbench_task_scored(self, task: str, results: Mapping[str, float | None], tracks: Mapping[str, str]) -> None:
        """Writes the numbers of a filter as soon as they are there."""
        self._write_numbers(final_values(task, results, tracks))

    @hookimpl
    def ttmbench_run_finished(self, result: Mapping[str, Any]) -> None:
        """Writes what an earlier run of the same command did, the table and the document, and closes the tracker."""
        for task, record in result["ttm"].items():
            for line in record["iterations"]:
                self._waiting[task, line["seed"], line["iteration"]] = curve_values(line)
        self._write_curves()
        for task, numbers in result["results"].items():
            self._write_numbers(final_values(task, numbers, result["tracks"][task]))
        self._try("could not end its run", partial(self._sink.close, result))

    def _write_numbers(self, values: Mapping[str, float]) -> None:
        new = {name: value for name, value in values.items() if self._reported.get(name) != value}
        if new:
            self._reported.update(new)
            self._try("could not log numbers", partial(self._sink.numbers, new))

    def _write_curves(self, *only: str | int) -> None:
        """Writes what waits, of one task and seed or of all."""
        for task, seed, iteration in sorted(key for key in self._waiting if key[: len(only)] == only):
            values = self._waiting.pop((task, seed, iteration))
            if iteration > self._written.get((task, seed), 0):
                self._written[task, seed] = iteration
                self._try("could not log a curve", partial(self._sink.curve, curve_name(task, seed), iteration, values))

    def _try(self, what: str, act: Callable[[], None]) -> None:
        """Lets the library act; its failure and its first warning are a line each, its prints go to stderr."""
        if self._failed:
            return
        try:
            with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(sys.stderr):
                warnings.simplefilter("always")
                act()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever another's code raises
            self._failed = True
            self._say(f"{what} ({type(error).__name__}: {error}); the run goes on without it")
            return
        detail = [one for one in caught if one.category is UserWarning]
        if detail and not self._warned:
            self._warned = True
            self._say(str(detail[0].message))

    def _say(self, text: str) -> None:
        warn(f"tracker {self._tracker}: {text}")
