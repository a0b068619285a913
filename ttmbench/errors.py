"""The errors that users see, and their exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130


class TtmbenchError(Exception):
    """A message of one or two sentences for the user: what, where, and what to do. A task failed (exit 1).

    Attributes:
        results: `EvalResults` of the tasks that were finished when this was raised; None if there are none.
    """

    exit_code = 1
    results: Any = None


class UsageError(TtmbenchError):
    """The command, a configuration or a task file is wrong (exit 2)."""

    exit_code = 2


class AssertionNotMet(TtmbenchError):
    """A result does not satisfy ``--assert`` (exit 3)."""

    exit_code = 3


class DataError(TtmbenchError):
    """Data or weights are missing, unreadable, or differ from the task's description (exit 4)."""

    exit_code = 4


class OutOfReachError(DataError):
    """Data are not available locally and cannot be downloaded now; another source may have them."""


class NotRestoredError(TtmbenchError):
    """A model is not what it was before it was trained, so nothing more is done with it (exit 1)."""


class DivergedError(TtmbenchError):
    """Training reached NaN or infinite numbers: a lower learning rate may help (exit 1).

    Args:
        what: was observed.
        learning_rate: that was too large; None to suggest none.
        option: that sets it.
        usual: default learning rate, suggested if it is lower, else a tenth of ``learning_rate``.
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
    """Marks errors that are raised inside with this stage, unless an inner stage did."""
    try:
        yield
    except BaseException as error:
        if not hasattr(error, "ttmbench_stage"):
            error.ttmbench_stage = stage  # type: ignore[attr-defined]
        raise


def phase_of(error: BaseException, otherwise: str) -> str:
    """The stage in which an error was raised."""
    return str(getattr(error, "ttmbench_stage", otherwise))


def carry(error: BaseException, results: Any) -> None:
    """Attaches results to an error."""
    error.results = results  # type: ignore[attr-defined]


def results_of(error: BaseException) -> Any:
    """The results (`EvalResults`) of an error; None if it has none."""
    return getattr(error, "results", None)
