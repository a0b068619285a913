"""The executor interface - what starts workers, gives them units and reports events - and detection of hung workers.

Only the user knows how long a step of work may take, so a worker is ended only if a limit was given; without a limit,
long silence is reported once for each unit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ttmbench._util.console import warn
from ttmbench.evaluator.unit import Unit, UnitResult

START = 600.0  # seconds that a worker may take to start, at least: the limit is for what it does once it is ready
REPORTED_AFTER = 1800.0  # seconds of silence that are reported where no limit was given
_MAX_TICK = 5.0  # the most that one check adds: a suspended driver or machine received no signs


@dataclass(frozen=True)
class WorkerJoined:
    """A worker is idle for the first time."""

    worker: str  # its name, never used twice
    place: str  # the machine or node; a unit that lacked something in one place is tried in another


@dataclass(frozen=True)
class WorkerLost:
    """A worker ended; ``unit`` is what it was working on, and ``hung`` says that the executor ended it for silence."""

    worker: str
    unit: Unit | None
    why: str
    hung: bool = False


@dataclass(frozen=True)
class Finished:
    """A unit ended, successfully or not; its worker can take another."""

    worker: str
    unit: Unit
    result: UnitResult


@dataclass(frozen=True)
class Progress:
    """A short line on what a worker is doing."""

    worker: str
    line: str


Event: TypeAlias = WorkerJoined | WorkerLost | Finished | Progress


class Executor(Protocol):
    """Starts workers, gives each one unit at a time, replaces lost or hung ones; it retries nothing."""

    def start(self) -> None:
        """Starts the workers; each joins when it is ready. TtmbenchError if there can be none."""

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to an idle worker. That the worker is gone is reported as an event, not as an error."""

    def wait(self, timeout: float) -> list[Event]:
        """Events since the last call, in order; waits up to ``timeout`` seconds for the first."""

    def stop(self, at_once: bool) -> None:
        """Ends all workers within seconds; ``at_once`` interrupts units under way, which save their state."""


@dataclass
class _Silence:
    activity: str
    at_least: float = 0.0
    seconds: float = 0.0
    reported: bool = False


class Watch:
    """Measures the silence of workers that are at work; ``limit`` is in seconds, None for no limit."""

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._silent: dict[str, _Silence] = {}
        self._checked = time.monotonic()

    def begin(self, worker: str, activity: str, at_least: float = 0.0) -> None:
        """Starts the clock of a worker; ``activity`` is for messages, ``at_least`` raises a lower limit."""
        self._silent[worker] = _Silence(activity, at_least)

    def heard(self, worker: str) -> None:
        """The worker gave a sign of progress."""
        if worker in self._silent:
            self._silent[worker].seconds = 0.0

    def end(self, worker: str) -> None:
        """The worker is idle or gone."""
        self._silent.pop(worker, None)

    def hung(self) -> dict[str, str]:
        """Workers to end, each with the reason in a line; to be called regularly, after all signs were passed on."""
        now = time.monotonic()
        passed, self._checked = min(now - self._checked, _MAX_TICK), now
        reasons = {}
        for worker, silence in self._silent.items():
            silence.seconds += passed
            limit = None if self._limit is None else max(self._limit, silence.at_least)
            if limit is not None and silence.seconds > limit:
                reasons[worker] = f"it hung: no sign of progress for {limit:g} s"
            elif self._limit is None and silence.seconds > REPORTED_AFTER and not silence.reported:
                silence.reported = True
                warn(
                    f"{worker} has given no sign of progress for {REPORTED_AFTER / 60:.0f} minutes, at "
                    f"{silence.activity}; --executor_args stall=SECONDS would end it and have this done by another"
                )
        return reasons


class Throttle:
    """Calls ``send`` at most once in ``every`` seconds, and ignores calls in between; used from any thread."""

    def __init__(self, send: Callable[..., object], every: float) -> None:
        self._send, self._every, self._sent = send, every, -1e9

    def __call__(self, *values: object) -> None:
        """Passes the values on, or ignores them."""
        now = time.monotonic()
        if now - self._sent >= self._every:
            self._sent = now
            self._send(*values)
