"""What can go wrong for a user, and the exit code of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130


class TtmbenchError(Exception):
    """A message of one or two sentences for the user: what, where, and what to do. A task failed (exit 1).

    Attributes:
        results: of the tasks that a run had finished when this was raised, as `EvalResults`; None if there are none.
    """

    exit_code = 1
    results: Any = None


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
    """Training left the finite numbers: a lower learning rate may help (exit 1).

    Args:
        what: what was seen.
        learning_rate: that was too large; None to suggest none.
        option: that sets it.
        usual: the learning rate of the model or preset where the user gives none. It is suggested if it is lower,
            else a tenth of ``learning_rate``.
    """

    def __init__(
        self, what: str, learning_rate: float | None = None, option: str = "--ttm_args", usual: float = 1e-5
    ) -> None:
        super().__init__(what, learning_rate, option, usual)  # all of them: another process makes it anew of these
        self.what, self.learning_rate, self.option, self.usual = what, learning_rate, option, usual

    def __str__(self) -> str:
        if self.learning_rate is None:
            return self.what
        lower = self.usual if self.usual < self.learning_rate else self.learning_rate / 10
        return f"{self.what}; a lower learning rate may help ({self.option} lr={lower:.1e})"


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


@contextmanager
def carrying(results: Any) -> Iterator[None]:
    """Whatever is raised inside takes these results along, so that no error hides numbers that are there."""
    try:
        yield
    except BaseException as error:
        carry(error, results)
        raise


def carry(error: BaseException, results: Any) -> None:
    """Gives an error the results that were there when it was raised."""
    error.results = results  # type: ignore[attr-defined]


def results_of(error: BaseException) -> Any:
    """The results (`EvalResults`) that were there when an error was raised; None if there were none."""
    return getattr(error, "results", None)
