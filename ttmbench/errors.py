"""Errors that users see, with their exit codes."""

from __future__ import annotations

from typing import Any

INTERRUPTED = 130


class TtmbenchError(Exception):
    """A task failed (exit 1). Base class: a message of one or two sentences saying what failed, where, and what to do.

    Attributes:
        results: `EvalResults` of the tasks finished before the error; None if there are none.
    """

    exit_code = 1
    results: Any = None


class UsageError(TtmbenchError):
    """The command, a configuration or a task file is invalid (exit 2)."""

    exit_code = 2


class AssertionNotMet(TtmbenchError):
    """A result does not satisfy ``--assert`` (exit 3)."""

    exit_code = 3


class DataError(TtmbenchError):
    """Data or weights are missing or unreadable, or do not match the task file (exit 4)."""

    exit_code = 4


class OutOfReachError(DataError):
    """Data are not available locally and cannot be downloaded now; the next source is tried."""


class NotRestoredError(TtmbenchError):
    """The original weights of a trained model could not be restored; the model is not used any further (exit 1)."""


class DivergedError(TtmbenchError):
    """Training diverged to NaN or infinite values; a lower learning rate may help (exit 1).

    Args:
        what: the observation, such as the loss and the epoch.
        learning_rate: the learning rate in use; None to suggest none.
        option: option that sets the learning rate.
        usual: default learning rate, suggested if it is lower, else a tenth of ``learning_rate``.
    """

    def __init__(
        self, what: str, learning_rate: float | None = None, option: str = "--ttm_args", usual: float = 1e-5
    ) -> None:
        super().__init__(what, learning_rate, option, usual)  # with all arguments the error can be unpickled
        self.what, self.learning_rate, self.option, self.usual = what, learning_rate, option, usual

    def __str__(self) -> str:
        if self.learning_rate is None:
            return self.what
        lower = self.usual if self.usual < self.learning_rate else self.learning_rate / 10
        return f"{self.what}; a lower learning rate may help ({self.option} lr={lower:.1e})"
