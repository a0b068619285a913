"""Printing without what a terminal, spreadsheet, Markdown or LaTeX would execute; progress bars."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any, TextIO

from ttmbench.errors import TtmbenchError

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 10_000  # characters of a line in a file or a pipe, where COLUMNS is not set
SPELT = "ttmbench.spelt"  # how a stream writes what its encoding lacks: ``+/-`` for ``±`` and the like, and escapes
SAID: set[str] = set()
"""What `warn` printed since a command or a run began, which empties it."""
_SPELT = str.maketrans({"±": "+/-", "─": "-", "–": "-", "—": "-", "→": "->", "×": "x", "…": "..."})
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that a terminal obeys


def _spelt(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "streams write with it"
    text = error.object[error.start : error.end].translate(_SPELT)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(SPELT, _spelt)


def echo(text: str = "", stream: TextIO | None = None, flush: bool = False) -> None:
    """Prints a text. A reader that stops (`| head`) is no error; on stderr no failure is, so a note stops no run."""
    stream = stream or sys.stdout
    aside: AbstractContextManager[object] = nullcontext()
    if "tqdm" in sys.modules:  # hides progress bars, and draws them again below the line
        from tqdm import tqdm

        aside = tqdm.external_write_mode(file=stream)
    with aside:
        try:
            print(plain(text), file=stream, flush=flush or stream is sys.stderr)
        except OSError as error:
            _missed(stream, error)


def put(text: str, flush: bool = False) -> None:
    """Prints a text on stdout as it is, for programs that read it; TtmbenchError if it cannot be written."""
    try:
        print(text, end="", flush=flush)
    except OSError as error:
        _missed(sys.stdout, error)


def warn(text: str) -> None:
    """Prints one line on stderr, but the same one no second time in a run."""
    line = f"ttmbench: {one_line(text)}"
    if line not in SAID:
        SAID.add(line)
        echo(line, sys.stderr)


def print_traceback() -> None:
    """Prints on stderr where the error under way comes from."""
    import traceback

    echo(traceback.format_exc().rstrip("\n"), sys.stderr)


def _missed(stream: IO[str], error: OSError) -> None:
    """Discards what a stream holds and all that follows: its reader is gone, or its disk is full."""
    with suppress(OSError, ValueError, AttributeError):  # a stream that a program made may have no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
    if stream is sys.stdout and not isinstance(error, BrokenPipeError):
        raise TtmbenchError(f"the output cannot be written: {error.strerror or error}") from None


def clear_bars() -> None:
    """Hides progress bars for a line that others print; the next step of a bar draws it again."""
    for bar in list(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())):
        if not bar.disable:
            bar.clear()


def console(width: int | None = None) -> Console:
    """A console on stdout without markup; by default as wide as the terminal, else as ``COLUMNS``, else unlimited."""
    from rich.console import Console

    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").strip("0").isdecimal()
    return Console(width=width or (None if is_known else UNLIMITED), highlight=False, markup=False, emoji=False)


def print_line(text: str = "", width: int | None = None, style: str = "", soft_wrap: bool = False) -> None:
    """Prints a text on stdout, in a style of rich, wrapped unless ``soft_wrap``."""
    with (screen := console(width)).capture() as written:
        screen.print(plain(text, "\n"), style=style, soft_wrap=soft_wrap)
    put(written.get())


def plain(text: str, keep: str = "\n\t") -> str:
    """Text with control characters, half surrogates and direction marks as escapes, all but those to ``keep``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(letter)[1:-1] if letter not in keep and unicodedata.category(letter) in _OBEYED else letter
        for letter in text
    )


def one_line(text: str, most: int = 2000) -> str:
    r"""Text as one plain line of bounded length.

    >>> one_line("two\nlines " + "x" * 50, most=20)
    'two lines xxxxxxxxxx... (60 characters)'
    """
    line = plain(" ".join(text[: 8 * most].split()), keep="")
    return line if len(line) <= most else f"{line[:most]}... ({len(text)} characters)"


def progress_bar(total: int | None, what: str, unit: str, items: Iterable[Any] | None = None, /, **drawn: Any) -> Any:
    """A bar to move by hand, counting ``unit``, or over ``items``; ``drawn`` is for ``tqdm``."""
    from tqdm import tqdm

    how = {"unit": f" {unit}", "leave": False, "disable": None, "dynamic_ncols": True, **drawn}
    return tqdm(items, desc=what, total=total, **how)
