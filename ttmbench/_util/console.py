"""What is printed: nothing from data that a terminal obeys, no secret, errors as one line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ttmbench._util.escape import one_line, plain
from ttmbench._util.redact import redact, scrub

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str = "", flush: bool = False) -> None:
    """Prints a text on stdout."""
    _print(plain(scrub(text)), sys.stdout, flush)


def warn(text: str) -> None:
    """Prints one line on stderr."""
    _print(f"ttmbench: {one_line(redact([text]))}", sys.stderr)


def print_traceback() -> None:
    """Prints on stderr where the error under way comes from, without secrets."""
    import traceback

    _print(plain(scrub(traceback.format_exc().rstrip("\n"))), sys.stderr)


def _print(text: str, stream: Any, flush: bool = False) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=flush)


def printable(value: Any) -> Any:
    """The same JSON value with every text as `say` would print it, each in one line."""
    if isinstance(value, str):
        return plain(scrub(value), keep="\n")
    if isinstance(value, dict):
        return {printable(key): printable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [printable(one) for one in value]
    return value


def console(least: int, width: int | None = None) -> Console:
    """A console that takes text as text: brackets are no markup, colons no emoji."""
    from rich.console import Console

    return Console(width=max(least, width or Console().width), highlight=False, markup=False, emoji=False)
