"""What a sweep needs of whatever starts its workers: processes of this machine, or Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ttmbench.sweep.units import Unit, UnitResult


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

    def start(self) -> Sequence[WorkerJoined]:
        """Starts the workers and returns those that are there at once; others may join later.

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
