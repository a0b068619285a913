"""A sweep's folder: whose it is, and what of the cells is done already by the files that are there."""

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


def stages_left(root: Path, planned: PlannedCell) -> list[list[Unit]]:
    """What is left to do of a cell: nothing if its document says so, and no seed of which all files are there.

    Nothing is loaded for it but seeds' last files.
    """
    config, stages = planned.cell.config_at(root), units_of(planned.cell)
    if not (root / planned.cell.folder).is_dir():
        return stages
    key = planned.chosen.key(config).sha256
    if is_done(root / planned.cell.document, key):
        return []
    from ttmbench.evaluator.partial_runs import seed_is_done  # imports torch; only where there is something to look at

    by_kind = {stage[0].kind: stage for stage in stages}
    seeds = [unit for unit in by_kind.get("seed", ()) if not seed_is_done(config, unit.cell.task, unit.part, key)]
    # A run that finds every seed needs the raw scores once, and takes them from the cache.
    scores = by_kind.get("groups", []) if seeds or "seed" not in by_kind else []
    return [stage for stage in (scores, seeds, by_kind["run"]) if stage]


def why_again(root: Path, planned: PlannedCell) -> str | None:
    """What changed since a cell was done, for the user; None if it never was, or if it is another command now."""
    try:
        document = read_json(root / planned.cell.document)
    except Unreadable:
        return None
    if not isinstance(document, dict) or document.get("status") != "done":
        return None
    return planned.chosen.key(planned.cell.config_at(root)).changes_since(document)


def is_done(path: Path, key: str) -> bool:
    """Whether a document says that a run of this key is done, and the files beside it are as it wrote them.

    Whether model and data are still the same is not looked at: nothing is loaded here.
    """
    try:
        document = read_json(path)
    except Unreadable:
        return False
    if not isinstance(document, dict) or (document.get("status"), document.get("run_key")) != ("done", key):
        return False
    artifacts = document.get("artifacts", {})
    try:
        return all(file_digest(path.parent / Path(name).name) == about["sha256"] for name, about in artifacts.items())
    except OSError:
        return False


@contextmanager
def one_driver(root: Path) -> Iterator[None]:
    """Holds a sweep's folder against other drivers and single cells.

    Raises:
        UsageError: somebody else has it, or it cannot be written to.
    """
    try:
        lock = take_lock(_lock(root))
    except filelock.Timeout:
        raise UsageError(_who(root)) from None
    except OSError as error:
        raise _unwritable(root, error) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def beside_other_cells(root: Path) -> Iterator[None]:
    """Holds a sweep's folder against drivers, together with other single cells; each has its own folder besides.

    Raises:
        UsageError: a driver has it, or it cannot be written to.
    """
    try:
        shared = share_lock(_lock(root))
    except BlockingIOError:
        raise UsageError(
            f"a sweep is writing to {root}, and does this cell too; wait until it is done, or leave --cell to it"
        ) from None
    except OSError as error:
        raise _unwritable(root, error) from None
    with shared:
        yield


def _lock(root: Path) -> Path:
    return root / OWN / "lock"


def _who(root: Path) -> str:
    """Why a driver cannot have the folder: if it can be shared, only cells have it."""
    try:
        with share_lock(_lock(root)):
            return f"cells of {root} are being run by themselves (--cell); wait until they are done"
    except OSError:
        return f"another sweep is writing to {root}; wait until it is done, or name another --output_path"


def _unwritable(root: Path, error: OSError) -> UsageError:
    return UsageError(f"{root} cannot be written to: {error.strerror or error}")
