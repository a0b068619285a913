"""Which unit goes to which worker. Pure: no processes, no files, no clock; a simulation asks it the same questions.

A worker goes on with the cell it was at, then with others of the model it holds: those first at which nobody is. One
that has to change its model takes that with the most waiting units for each worker on it. A unit that was lost with
its worker, or that lacked something where it was, goes to another place if there is one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ttmbench.evaluator.unit import Cell, Kind, Unit, UnitResult

ATTEMPTS = 3  # workers that may be lost with a unit until its cell has failed
_Key = tuple[int, Kind, int]


@dataclass(frozen=True)
class CellEnd:
    """A cell that is over; ``error`` says why it failed, None that it is done."""

    cell: Cell
    error: str | None


@dataclass(slots=True, eq=False)
class _CellState:
    """A cell under way: the stages to come, and of the present one the units that wait and those that are out."""

    cell: Cell
    model: _Model
    stages: deque[Sequence[Unit]]
    waiting: deque[Unit] = field(default_factory=deque)
    out: int = 0
    over: bool = False

    def pop(self) -> Unit | None:
        """A unit that waits, which is given out."""
        if not self.waiting:
            return None
        self.model.waiting -= 1
        return self.waiting.popleft()


@dataclass(slots=True, eq=False)
class _Model:
    """The cells of a model: those at which nobody has been, and those with units for a further worker."""

    fresh: deque[_CellState] = field(default_factory=deque)
    begun: deque[_CellState] = field(default_factory=deque)
    waiting: int = 0
    workers: int = 0


@dataclass(slots=True, eq=False)
class _WorkerState:
    place: str
    model: _Model | None = None
    cell: _CellState | None = None
    unit: Unit | None = None


@dataclass(slots=True)
class _Again:
    """A unit that is given out a second time: where it cannot be done, and where it was lost."""

    unit: Unit
    unfit: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    why: str = ""
    waits: bool = False


class Scheduler:
    """The state of a sweep in memory.

    Args:
        stages: of every cell that is not finished, in order: the units that are left, stage by stage
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
        self._again: dict[_Key, _Again] = {}
        self._left, self._out = len(stages), 0
        for of_cell in stages:
            cell = of_cell[-1][0].cell
            model = self._models.setdefault(cell.model_key, _Model())
            state = _CellState(cell, model, deque(of_cell))
            self._cells[cell.number] = state
            self._open_stage(state)
            model.fresh.append(state)

    @property
    def over(self) -> bool:
        """Whether nothing is under way and nothing more will be given out."""
        return self._out == 0 and (self._left == 0 or self._stops)

    @property
    def left(self) -> int:
        """Cells that are not over."""
        return self._left

    @property
    def waiting(self) -> int:
        """Units that could be given out now."""
        if self._stops:
            return 0
        return sum(model.waiting for model in self._models.values()) + sum(one.waits for one in self._again.values())

    def join(self, worker: str, place: str) -> None:
        """A worker is there; ``place`` is what it shares with others."""
        assert worker not in self._workers, f"a second worker {worker}"
        self._workers[worker] = _WorkerState(place)
        self._places[place] += 1

    def next(self, worker: str) -> Unit | None:
        """A unit for a worker that has none: it is the worker's from now on. None if there is none for it now."""
        state = self._workers[worker]
        assert state.unit is None, f"{worker} has a unit"
        if self._stops:
            return None
        unit = self._second_try(state.place) or (state.cell.pop() if state.cell is not None else None)
        if unit is None and state.model is not None:
            unit = self._from(state.model)
        if unit is None and self._models:  # from the model with the most waiting units for each worker on it
            unit = self._from(max(self._models.values(), key=lambda model: model.waiting / (model.workers + 1)))
        if unit is not None:
            cell = self._cells[unit.cell.number]
            state.unit, state.cell = unit, cell
            cell.out += 1
            self._out += 1
            if state.model is not cell.model:
                if state.model is not None:
                    state.model.workers -= 1
                cell.model.workers += 1
                state.model = cell.model
        return unit

    def finish(self, worker: str, unit: Unit, result: UnitResult) -> CellEnd | None:
        """A worker is done with its unit. A failed one drops what else waits of its cell.

        Args:
            worker: the worker, which has none now.
            unit: its unit.
            result: what became of it.

        Returns:
            The cell, if it is over now.
        """
        cell = self._taken_back(worker, unit)
        if cell.over:
            return None
        if result.state == "failed":
            return self._end(cell, result.error or "failed")
        if result.state == "done":
            self._again.pop(unit.key, None)
            return self._advance(cell)
        again = self._again.setdefault(unit.key, _Again(unit))
        again.waits = True
        if result.state == "unfit":
            again.unfit.add(self._workers[worker].place)
            again.why = result.error or "failed"
            return self._check_places(again)
        return None

    def lose(self, worker: str, why: str) -> list[CellEnd]:
        """A worker is gone: its unit waits for another, unless too many were lost with it.

        Args:
            worker: the worker.
            why: what is known, for the cell's error.

        Returns:
            Cells that are over now: that of the unit, and those that only the worker's place could have done.
        """
        state, ended = self._workers[worker], []
        unit = state.unit
        if unit is not None:
            cell = self._taken_back(worker, unit)
            if not cell.over:
                again = self._again.setdefault(unit.key, _Again(unit))
                again.lost.append(state.place)
                again.waits = True
                if len(again.lost) >= self._attempts:
                    ended.append(self._end(cell, f"{len(again.lost)} workers were lost with it; the last: {why}"))
        if state.model is not None:
            state.model.workers -= 1
        del self._workers[worker]
        self._places[state.place] -= 1
        if not self._places[state.place]:
            del self._places[state.place]
            ended += [end for one in list(self._again.values()) if one.waits and (end := self._check_places(one))]
        return ended

    @property
    def _stops(self) -> bool:
        return self._failed and self._on_error == "raise"

    def _open_stage(self, cell: _CellState) -> None:
        cell.waiting.extend(cell.stages.popleft())
        cell.model.waiting += len(cell.waiting)

    def _taken_back(self, worker: str, unit: Unit) -> _CellState:
        state = self._workers[worker]
        assert state.unit is not None and state.unit.key == unit.key, f"{worker} has no unit {unit.name}"
        state.unit = None
        cell = self._cells[unit.cell.number]
        cell.out -= 1
        self._out -= 1
        return cell

    def _advance(self, cell: _CellState) -> CellEnd | None:
        """The next stage, if this one is over."""
        if cell.out or cell.waiting or any(again.unit.cell is cell.cell for again in self._again.values()):
            return None
        if not cell.stages:
            return self._end(cell, None)
        self._open_stage(cell)
        cell.model.begun.append(cell)
        return None

    def _end(self, cell: _CellState, error: str | None) -> CellEnd:
        cell.over = True
        cell.model.waiting -= len(cell.waiting)
        cell.waiting.clear()
        cell.stages.clear()
        self._left -= 1
        self._failed |= error is not None
        self._again = {key: again for key, again in self._again.items() if again.unit.cell is not cell.cell}
        return CellEnd(cell.cell, error)

    def _check_places(self, again: _Again) -> CellEnd | None:
        """Ends the cell of a unit that can be done nowhere."""
        if again.unfit and self._places and again.unfit >= set(self._places):
            return self._end(self._cells[again.unit.cell.number], again.why)
        return None

    def _second_try(self, place: str) -> Unit | None:
        for again in self._again.values():
            elsewhere = set(self._places) - again.unfit - set(again.lost)
            if again.waits and place not in again.unfit and (place in elsewhere or not elsewhere):
                again.waits = False
                return again.unit
        return None

    def _from(self, model: _Model) -> Unit | None:
        """A unit of a cell at which nobody is, else of one that can be shared."""
        while model.fresh or model.begun:
            is_fresh = bool(model.fresh)
            cell = model.fresh.popleft() if is_fresh else model.begun[0]
            unit = cell.pop()
            if is_fresh and cell.waiting:
                model.begun.append(cell)
            elif not is_fresh and not cell.waiting:
                model.begun.popleft()
            if unit is not None:
                return unit
        return None
