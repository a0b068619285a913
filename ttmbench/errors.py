"""What can go wrong for a user, and the exit code of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TtmbenchError(Exception):
    """A message of one or two sentences for the user: what, where, and what to do. A task failed (exit 1)."""

    exit_code = 1


class UsageError(TtmbenchError):
    """The command, a configuration or a task file is wrong (exit 2)."""

    exit_code = 2


class AssertionNotMet(TtmbenchError):
    """A result is not what ``--assert`` asked for (exit 3)."""

    exit_code = 3


class DataError(TtmbenchError):
    """Data or weights are missing, unreadable, or not what the task says (exit 4)."""

    exit_code = 4


class OutOfReachError(DataError):
    """The data are not here and cannot be fetched now. Another source may have them; wrong data are a DataError."""


class DivergedError(TtmbenchError):
    """Training left the finite numbers: a lower learning rate may help (exit 1)."""


@contextmanager
def phase(stage: str) -> Iterator[None]:
    """Whatever is raised inside is known to have happened in this stage, unless an inner one said so."""
    try:
        yield
    except BaseException as error:
        if not hasattr(error, "ttmbench_stage"):
            error.ttmbench_stage = stage  # type: ignore[attr-defined]
        raise


def phase_of(error: BaseException, otherwise: str) -> str:
    """The stage in which an error was raised."""
    return str(getattr(error, "ttmbench_stage", otherwise))
