"""A sweep's folder: its locks, what of the cells is done already, and ``sweep.json`` with the state of every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from ttmbench._util.console import warn
from ttmbench._util.files import file_digest, share_lock, take_lock, to_json, write_atomically
from ttmbench._util.text import Unreadable, read_json
from ttmbench._util.third_party_errors import describe
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.unit import Cell, Unit, units_of
from ttmbench.results.models import SWEEP_FILE
from ttmbench.sweep.plan import PlannedCell
from ttmbench.types import Record

SUMMARY = SWEEP_FILE
_LOCK = f"{OWN}/lock"


def stages_left(root: Path, planned: PlannedCell) -> list[list[Unit]]:
    """What is left to do of a cell: nothing if its document is done, and no seed whose files are complete.

    Only files are looked at: whether model and data are still the same shows when they are loaded.
    """
    config, stages = planned.cell.config_at(root), units_of(planned.cell)
    if not (root / planned.cell.folder).is_dir():
        return stages
    key = planned.chosen.key(config)
    path = root / planned.cell.document
    document = _done_document(path)
    if document is not None and document.get("run_key") == key.sha256 and _files_are_sound(path, document):
        return []
    from ttmbench.evaluator.worker import seed_is_done  # imports torch

    by_kind = {stage[0].kind: stage for stage in stages}
    trained = planned.chosen.registry.trained(config.methods)
    seeds = [
        unit
        for unit in by_kind.get("seed", ())
        if not seed_is_done(config, unit.cell.task, unit.part, key.sha256, trained)
    ]
    # A run that finds every seed needs the raw scores once, and takes them from the cache.
    scores = by_kind.get("groups", []) if seeds or "seed" not in by_kind else []
    return [stage for stage in (scores, seeds, by_kind["run"]) if stage]


def why_again(root: Path, planned: PlannedCell) -> str | None:
    """What changed since a cell was done, for the user; None if it never was, or if it is another command now."""
    document = _done_document(root / planned.cell.document)
    return None if document is None else planned.chosen.key(planned.cell.config_at(root)).changes_since(document)


def _done_document(path: Path) -> Record | None:
    try:
        document = read_json(path)
    except Unreadable:
        return None
    return document if isinstance(document, dict) and document.get("status") == "done" else None


def _files_are_sound(path: Path, document: Record) -> bool:
    """Whether the files next to a document are as its run wrote them."""
    artifacts = document.get("artifacts", {})
    try:
        return all(file_digest(path.parent / Path(name).name) == about["sha256"] for name, about in artifacts.items())
    except OSError:
        return False


@contextmanager
def one_driver(root: Path) -> Iterator[None]:
    """Locks a sweep's folder against other drivers and single cells; UsageError if it is in use or not writable."""
    try:
        lock = take_lock(root / _LOCK)
    except filelock.Timeout:
        raise UsageError(_in_use(root)) from None
    except OSError as error:
        raise _unwritable(root, error) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def beside_other_cells(root: Path) -> Iterator[None]:
    """Locks a sweep's folder against drivers, not against other cells; UsageError if in use or not writable."""
    try:
        shared = share_lock(root / _LOCK)
    except BlockingIOError:
        raise UsageError(f"a sweep is writing to {root} and runs this cell too; wait until it is done") from None
    except OSError as error:
        raise _unwritable(root, error) from None
    with shared:
        yield


def _in_use(root: Path) -> str:
    """Why a driver cannot have the folder: if it can be shared, only single cells use it."""
    try:
        with share_lock(root / _LOCK):
            return f"cells of {root} are being run with --cell; wait until they are done"
    except OSError:
        return f"another sweep is writing to {root}; wait until it is done, or name another --output_path"


def _unwritable(root: Path, error: OSError) -> UsageError:
    return UsageError(f"{root} cannot be written to: {error.strerror or error}")


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
