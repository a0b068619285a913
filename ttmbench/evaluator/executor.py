"""What starts workers, gives them units and hears of them: processes of this machine, or Ray; and which of them hang.

How long a step may honestly take - a model that is loaded from a slow disk, one forward of a large one - only who gives
the command knows. So nothing is ended unless a limit was given; without one it is said, once for each unit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ttmbench._util.console import warn
from ttmbench.evaluator.unit import Unit, UnitResult

START = 600.0  # seconds that a worker may take to start, at least: the limit is for what it does once it is ready
SAID_AFTER = 1800.0  # seconds of silence after which it is said where nobody gave a limit
_BLINK = 5.0  # the most that one look adds: a driver that was stopped itself, or a machine that slept, saw nothing


@dataclass(frozen=True)
class WorkerJoined:
    """A worker is there and has nothing to do.

    Attributes:
        worker: its name, which no other has or has had.
        place: what it shares with others - a machine, a node. What failed for want of something in one place is tried
            again in another.
    """

    worker: str
    place: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone.

    Attributes:
        worker: its name.
        unit: that it was at; None if it was at none.
        why: one line for a person.
        hung: the executor has ended it, since it gave no sign of progress.
    """

    worker: str
    unit: Unit | None
    why: str
    hung: bool = False


@dataclass(frozen=True)
class Finished:
    """A worker is done with a unit, well or not, and can take another."""

    worker: str
    unit: Unit
    result: UnitResult


@dataclass(frozen=True)
class Progress:
    """What a worker is doing right now, as a short line."""

    worker: str
    line: str


Event: TypeAlias = WorkerJoined | WorkerLost | Finished | Progress


class Executor(Protocol):
    """Starts workers, gives them units, and says what became of these. One thread calls it.

    A worker has one unit at a time. Ending those that hang and replacing lost ones is the executor's matter: a new one
    comes as `WorkerJoined`. It retries nothing: which unit goes where is for the scheduler.
    """

    def start(self) -> None:
        """Starts the workers, which join as they are there.

        Raises:
            TtmbenchError: there can be none; one line says why.
        """
        ...

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to a worker that has none. That the worker is gone comes as an event, not as an error."""
        ...

    def wait(self, timeout: float) -> list[Event]:
        """What has happened since the last call, in order; waits up to so many seconds for the first."""
        ...

    def stop(self, at_once: bool) -> None:
        """Ends all workers, if any were started: idle ones, or at once those at work too, within seconds.

        Units under way are interrupted, so that they keep where they stand.
        """
        ...


@dataclass
class _Silence:
    what: str
    at_least: float = 0.0
    seconds: float = 0.0
    said: bool = False


class Watch:
    """The silence of workers that are at work.

    Args:
        limit: seconds after which one is hung; None for none ever.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._silent: dict[str, _Silence] = {}
        self._looked = time.monotonic()

    def begin(self, worker: str, what: str, at_least: float = 0.0) -> None:
        """Starts the clock of a worker; ``what`` says to a person what it does, ``at_least`` raises a lower limit."""
        self._silent[worker] = _Silence(what, at_least)

    def heard(self, worker: str) -> None:
        """It has given a sign."""
        silence = self._silent.get(worker)
        if silence is not None:
            silence.seconds = 0.0

    def end(self, worker: str) -> None:
        """It is not at work any more, or gone."""
        self._silent.pop(worker, None)

    def hung(self) -> dict[str, str]:
        """Workers to end, each with the reason in a line; to be asked now and then, after all signs were passed on."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _BLINK), now
        found = {}
        for worker, silence in self._silent.items():
            silence.seconds += passed
            limit = None if self._limit is None else max(self._limit, silence.at_least)
            if limit is not None and silence.seconds > limit:
                found[worker] = f"it hung: no sign of progress for {limit:g} s"
            elif self._limit is None and silence.seconds > SAID_AFTER and not silence.said:
                silence.said = True
                warn(
                    f"{worker} has given no sign of progress for {SAID_AFTER / 60:.0f} minutes, at {silence.what}; "
                    "--executor_args stall=SECONDS would end it and have this done by another"
                )
        return found


class Signs:
    """Passes on that steps of work end, now and then; called in any thread.

    Args:
        tell: says it.
        every: seconds between two times, at least.
    """

    def __init__(self, tell: Callable[[], object], every: float) -> None:
        self._tell, self._every, self._told = tell, every, -1e9

    def __call__(self) -> None:
        """A step has ended."""
        now = time.monotonic()
        if now - self._told >= self._every:
            self._told = now
            self._tell()
