"""Code of others - plugins, adapters, libraries - that fails: one line that says whose it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ttmbench._util.escape import one_line
from ttmbench.errors import TtmbenchError


def error_line(error: BaseException) -> str:
    r"""An error of someone else's code as one bounded line.

    >>> error_line(ValueError("two\nlines"))
    'ValueError: two lines'
    """
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    return one_line(f"{type(error).__name__}: {text}").rstrip(": ")


@contextmanager
def foreign_errors(whose: str, kind: type[TtmbenchError] = TtmbenchError) -> Iterator[None]:
    """Turns whatever goes wrong inside into an error for the user that names its origin.

    Errors of ttmbench's own classes and interruptions pass. An attempt to end the program is a failure.

    Args:
        whose: begins the message, such as "model 'x' of plugin 'y'".
        kind: of the error.

    Raises:
        TtmbenchError: of that kind.
    """
    try:
        yield
    except TtmbenchError:
        raise
    except (Exception, SystemExit) as error:
        detail = kind(f"{whose} failed: {error_line(error)}")
        if hasattr(error, "ttmbench_stage"):  # see `ttmbench.errors.during`
            detail.ttmbench_stage = error.ttmbench_stage  # type: ignore[attr-defined]
        raise detail from error
