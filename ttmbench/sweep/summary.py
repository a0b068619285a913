"""``sweep.json``: every cell of a sweep and its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ttmbench._util.console import warn
from ttmbench._util.files import to_json, write_atomically
from ttmbench._util.text import Unreadable, read_json
from ttmbench._util.third_party_errors import describe
from ttmbench.errors import DataError
from ttmbench.evaluator.unit import Cell
from ttmbench.results.settings import SWEEP_FILE

SUMMARY = SWEEP_FILE
CellStateName = Literal["waiting", "running", "done", "failed", "skipped"]
"""``waiting``: the same command again does it. ``skipped``: not begun, since another cell failed and ``--on_error
raise`` was given."""


class CellEntry(BaseModel):
    """A cell in the summary.

    Attributes:
        number: from 1; what ``--cell`` takes.
        cell: its folder below the sweep's: ``[setting/]model/task``.
        model: what results call the model.
        task: name of the task.
        setting: name of the setting; empty without any.
        state: see `CellStateName`.
        seconds: worked on it by the last command that did so; None if none has.
        worker: the last one.
        attempts: 0 before it is begun, then 1, and 1 more whenever a unit was begun again because its worker was lost
            or lacked something.
        error: one line, of a failed cell.
        document: the results document below the sweep's folder.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    number: int
    cell: str
    model: str
    task: str
    setting: str
    state: CellStateName = "waiting"
    seconds: float | None = None
    worker: str | None = None
    attempts: int = 0
    error: str | None = None
    document: str


class SweepSummary(BaseModel):
    """The content of ``sweep.json``.

    Attributes:
        kind: what this file is.
        schema_version: of this form.
        plan: the plan's file, as it was given.
        status: ``running``, ``done`` (every cell is), ``failed`` (one is), ``interrupted``.
        started: when the last command began, ISO 8601.
        updated: when this was written.
        counts: state -> number of cells.
        workers_lost: in the last command.
        workers_hung: of those, how many were ended because they gave no sign of progress.
        cells: in the order of the plan.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["sweep"] = "sweep"
    schema_version: Literal["1.0"] = "1.0"
    plan: str
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    started: str
    updated: str
    counts: dict[CellStateName, int]
    workers_lost: int = 0
    workers_hung: int = 0
    cells: list[CellEntry]

    def write(self, root: Path) -> None:
        """Replaces the file in one step."""
        self.counts, self.updated = dict(Counter(entry.state for entry in self.cells)), _now()
        content = to_json(self.model_dump(mode="json"))
        write_atomically(root / SUMMARY, lambda path: path.write_text(content, encoding="utf-8"))


def new_summary(plan: str, cells: Sequence[Cell], root: Path) -> SweepSummary:
    """A summary in which every cell waits, with times and workers that an earlier command recorded."""
    earlier: dict[str, CellEntry] = {}
    if (root / SUMMARY).exists():
        try:
            earlier = {entry.cell: entry for entry in read_summary(root / SUMMARY).cells}
        except DataError as error:
            warn(f"{error}; it is rebuilt from the cells' documents")
    entries = []
    for cell in cells:
        entry = CellEntry(
            number=cell.number,
            cell=cell.folder,
            model=cell.config.model_name,
            task=cell.task,
            setting=cell.setting,
            document=cell.document,
        )
        if before := earlier.get(cell.folder):
            entry.seconds, entry.worker, entry.attempts = before.seconds, before.worker, before.attempts
        entries.append(entry)
    return SweepSummary(plan=plan, started=_now(), updated=_now(), counts={}, cells=entries)


def read_summary(path: Path) -> SweepSummary:
    """Reads a summary; DataError if it cannot be read or is not one."""
    try:
        return SweepSummary.model_validate(read_json(path))
    except Unreadable as error:
        raise DataError(f"{path} {error}") from None
    except ValidationError as error:
        raise DataError(f"{path} is not the summary of a sweep: {describe(error, SweepSummary)}") from None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
