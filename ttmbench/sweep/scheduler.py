"""Decides which unit goes to which worker, without processes, files or a clock.

A worker goes on with its cell, then with others of the model it holds, cells without workers first. A worker that has
to change its model takes the one with the most waiting units per worker. A unit that was lost with its worker, or that
lacked something where it was, goes to another place if there is one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ttmbench.evaluator.unit import Cell, Kind, Unit, UnitResult

ATTEMPTS = 3  # workers that may be lost with a unit until its cell has failed


@dataclass(frozen=True)
class CellEnd:
    """A cell that is over; ``error`` says why it failed, None that it is done."""

    cell: Cell
    error: str | None


@dataclass(slots=True, eq=False)
class _Model:
    """The cells of a model that have waiting units, by number; and how many units wait and workers hold the model."""

    cells: dict[int, _CellState] = field(default_factory=dict)
    waiting: int = 0
    workers: int = 0


@dataclass(slots=True, eq=False)
class _CellState:
    """A cell under way: the stages to come, and of the present one the units that wait and how many workers have."""

    cell: Cell
    model: _Model
    stages: deque[Sequence[Unit]]
    waiting: deque[Unit] = field(default_factory=deque)
    out: int = 0
    begun: bool = False
    over: bool = False

    def set_waiting(self, units: Sequence[Unit]) -> None:
        self.model.waiting += len(units) - len(self.waiting)
        self.waiting = deque(units)
        self.model.cells.pop(self.cell.number, None)
        if units:
            self.model.cells[self.cell.number] = self

    def pop(self) -> Unit | None:
        if not self.waiting:
            return None
        self.model.waiting -= 1
        if len(self.waiting) == 1:
            del self.model.cells[self.cell.number]
        return self.waiting.popleft()


@dataclass(slots=True, eq=False)
class _WorkerState:
    place: str
    model: _Model | None = None
    cell: _CellState | None = None
    unit: Unit | None = None


@dataclass(slots=True)
class _Retry:
    """A unit to be done again: the places that cannot do it, and those where it was lost."""

    unit: Unit
    unfit: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    why: str = ""
    waits: bool = False


class Scheduler:
    """The state of a sweep in memory.

    Args:
        stages: for every unfinished cell, in order, the units that are left, stage by stage
            (`ttmbench.evaluator.unit.units_of`), at least one.
        attempts: how many workers may be lost with a unit.
        on_error: with ``raise`` nothing more is given out once a cell has failed.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Sequence[Unit]]],
        attempts: int = ATTEMPTS,
        on_error: Literal["continue", "raise"] = "continue",
    ) -> None:
        self._attempts, self._on_error, self._failed = attempts, on_error, False
        self._models: dict[str, _Model] = {}
        self._cells: dict[int, _CellState] = {}
        self._workers: dict[str, _WorkerState] = {}
        self._places: Counter[str] = Counter()
        self._retries: dict[tuple[int, Kind, int], _Retry] = {}
        self._out = 0
        self.left = len(stages)
        """Cells that are not over."""
        for of_cell in stages:
            cell = of_cell[-1][0].cell
            model = self._models.setdefault(cell.model_key, _Model())
            state = self._cells[cell.number] = _CellState(cell, model, deque(of_cell))
            state.set_waiting(state.stages.popleft())

    @property
    def over(self) -> bool:
        """Whether nothing is under way and nothing more will be given out."""
        return self._out == 0 and (self.left == 0 or self._stops)

    @property
    def waiting(self) -> int:
        """Units that could be given out now."""
        if self._stops:
            return 0
        return sum(model.waiting for model in self._models.values()) + sum(
            retry.waits for retry in self._retries.values()
        )

    def join(self, worker: str, place: str) -> None:
        """A new worker that has no unit; ``place`` is what it shares with others (`WorkerJoined`)."""
        self._workers[worker] = _WorkerState(place)
        self._places[place] += 1

    def next(self, worker: str) -> Unit | None:
        """Gives out a unit for an idle worker; None if there is none for it now."""
        state = self._workers[worker]
        if self._stops:
            return None
        unit = self._retried(state.place) or (state.cell.pop() if state.cell is not None else None)
        if unit is None and state.model is not None:
            unit = self._from(state.model)
        if unit is None and self._models:
            unit = self._from(max(self._models.values(), key=lambda model: model.waiting / (model.workers + 1)))
        if unit is not None:
            cell = self._cells[unit.cell.number]
            state.unit, state.cell, cell.begun = unit, cell, True
            cell.out += 1
            self._out += 1
            if state.model is not cell.model:
                if state.model is not None:
                    state.model.workers -= 1
                cell.model.workers += 1
                state.model = cell.model
        return unit

    def finish(self, worker: str, unit: Unit, result: UnitResult) -> CellEnd | None:
        """Takes a unit back from its worker, which is idle now; a failed unit drops what else waits of its cell.

        Returns:
            The cell, if it is over now.
        """
        cell = self._taken_back(worker, unit)
        if cell.over:
            return None
        if result.state == "failed":
            return self._end(cell, result.error or "failed")
        if result.state == "done":
            self._retries.pop(unit.key, None)
            return self._advance(cell)
        retry = self._retries.setdefault(unit.key, _Retry(unit))
        retry.waits = True
        if result.state == "unfit":
            retry.unfit.add(self._workers[worker].place)
            retry.why = result.error or "failed"
            return self._check_places(retry)
        return None

    def lose(self, worker: str, why: str) -> list[CellEnd]:
        """Removes a worker: its unit waits for another, unless too many were lost with it.

        Args:
            worker: the worker.
            why: for the cell's error.

        Returns:
            Cells that are over now: that of the unit, and those that only the worker's place could have done.
        """
        state, ended = self._workers[worker], []
        unit = state.unit
        if unit is not None:
            cell = self._taken_back(worker, unit)
            if not cell.over:
                retry = self._retries.setdefault(unit.key, _Retry(unit))
                retry.lost.append(state.place)
                retry.waits = True
                if len(retry.lost) >= self._attempts:
                    ended.append(self._end(cell, f"{len(retry.lost)} workers were lost with it; the last: {why}"))
        if state.model is not None:
            state.model.workers -= 1
        del self._workers[worker]
        self._places[state.place] -= 1
        if not self._places[state.place]:
            del self._places[state.place]
            retries = [retry for retry in self._retries.values() if retry.waits]
            ended += [end for retry in retries if (end := self._check_places(retry))]
        return ended

    @property
    def _stops(self) -> bool:
        return self._failed and self._on_error == "raise"

    def _taken_back(self, worker: str, unit: Unit) -> _CellState:
        state = self._workers[worker]
        assert state.unit is not None and state.unit.key == unit.key, f"{worker} has no unit {unit.name}"
        state.unit = None
        cell = self._cells[unit.cell.number]
        cell.out -= 1
        self._out -= 1
        return cell

    def _advance(self, cell: _CellState) -> CellEnd | None:
        """Opens the next stage, if this one is over."""
        if cell.out or cell.waiting or any(retry.unit.cell is cell.cell for retry in self._retries.values()):
            return None
        if not cell.stages:
            return self._end(cell, None)
        cell.set_waiting(cell.stages.popleft())
        return None

    def _end(self, cell: _CellState, error: str | None) -> CellEnd:
        cell.over = True
        cell.set_waiting(())
        cell.stages.clear()
        self.left -= 1
        self._failed |= error is not None
        self._retries = {key: retry for key, retry in self._retries.items() if retry.unit.cell is not cell.cell}
        return CellEnd(cell.cell, error)

    def _check_places(self, retry: _Retry) -> CellEnd | None:
        """Ends the cell of a unit that no place can do."""
        if retry.unfit and self._places and retry.unfit >= set(self._places):
            return self._end(self._cells[retry.unit.cell.number], retry.why)
        return None

    def _retried(self, place: str) -> Unit | None:
        for retry in self._retries.values():
            better = set(self._places) - retry.unfit - set(retry.lost)
            if retry.waits and place not in retry.unfit and (place in better or not better):
                retry.waits = False
                return retry.unit
        return None

    def _from(self, model: _Model) -> Unit | None:
        """A unit of a cell that no worker has begun, else of one that can be shared."""
        cells = model.cells.values()
        cell = next((cell for cell in cells if not cell.begun), None) or next(iter(cells), None)
        return None if cell is None else cell.pop()
