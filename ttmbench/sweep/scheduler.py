"""Which unit goes to which worker. Pure: no processes, no files, no clock; a simulation asks it the same questions.

Workers that hold a model get its units, those of the cell they were at first. One that has to change its model takes
that with the most waiting units for each worker on it. What was lost with a worker goes to another place if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttmbench.sweep.cells import Cell
from ttmbench.sweep.units import Unit, UnitResult

ATTEMPTS = 3  # workers that may be lost with a unit before its cell has failed


@dataclass(frozen=True)
class CellEnd:
    """A cell that is over.

    Attributes:
        cell: which.
        error: why it failed; None if it is done.
    """

    cell: Cell
    error: str | None


class Scheduler:
    """The state of a sweep in memory.

    Args:
        stages: of every cell that is not finished, the units that are left, stage by stage (`units_of`).
        attempts: how many workers may be lost with a unit.
        on_error: ``raise`` gives out nothing more once a cell has failed.
    """

    def __init__(
        self, stages: Sequence[Sequence[Sequence[Unit]]], attempts: int = ATTEMPTS, on_error: str = "continue"
    ):
        raise NotImplementedError

    def join(self, worker: str, place: str) -> None:
        """A worker is there."""

    def next(self, worker: str) -> Unit | None:
        """A unit for a worker that has none; it is the worker's from now on. None if there is none for it now."""

    def finish(self, worker: str, unit: Unit, result: UnitResult) -> CellEnd | None:
        """A worker is done with its unit; says whether that ended the cell. A ``failed`` one drops the cell's others."""

    def lose(self, worker: str, why: str) -> CellEnd | None:
        """A worker is gone; its unit waits again, or its cell has failed."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to give out and nothing is under way."""
        raise NotImplementedError
