"""A sweep's folder: its locks, and what of the cells is done already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from ttmbench._util.files import file_digest, share_lock, take_lock
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import UsageError
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.unit import Unit, units_of
from ttmbench.sweep.plan import PlannedCell
from ttmbench.types import Record

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
    seeds = [
        unit for unit in by_kind.get("seed", ()) if not seed_is_done(config, unit.cell.task, unit.part, key.sha256)
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
