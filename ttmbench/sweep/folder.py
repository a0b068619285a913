"""Whose a sweep's folder is: one sweep's alone, or that of any number of cells that are run by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from ttmbench._util.files import share_lock, take_lock
from ttmbench.errors import UsageError
from ttmbench.evaluator.local_executor import OWN


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
