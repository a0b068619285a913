"""Printing without what a terminal, spreadsheet, Markdown or LaTeX would execute; progress bars."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any, TextIO

from ttmbench.errors import TtmbenchError

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 10_000  # characters of a line in a file or a pipe, where COLUMNS is not set
_SPELT = str.maketrans({"±": "+/-", "─": "-", "–": "-", "—": "-", "→": "->", "×": "x", "…": "..."})
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that a terminal obeys
_SHOWN_AS: dict[str, str] = {}  # a folder that stands for an address -> the address
_SAID: ContextVar[set[str] | None] = ContextVar("lines that were printed", default=None)


def echo(text: str = "", stream: TextIO | None = None, flush: bool = False) -> None:
    """Prints a text. A reader that stops (`| head`) is no error; on stderr no failure is, so a note stops no run."""
    stream = stream or sys.stdout
    aside: AbstractContextManager[object] = nullcontext()
    if "tqdm" in sys.modules:  # hides progress bars, and draws them again below the line
        from tqdm import tqdm

        aside = tqdm.external_write_mode(file=stream)
    with aside:
        try:
            shown = encodable(plain(text), getattr(stream, "encoding", None) or "utf-8")
            print(shown, file=stream, flush=flush or stream is sys.stderr)
        except OSError as error:
            _missed(stream, error)


def put(text: str) -> None:
    """Prints a text on stdout as it is, for programs that read it."""
    try:
        print(text, end="")
    except OSError as error:
        _missed(sys.stdout, error)


def warn(text: str) -> None:
    """Prints one line on stderr; inside `each_note_once` the same one no second time."""
    line, printed = f"ttmbench: {one_line(text)}", _SAID.get()
    if printed is None or line not in printed:
        echo(line, sys.stderr)
    if printed is not None:
        printed.add(line)


def show_as(path: str, address: str) -> None:
    """From now on texts name an address where they would name the folder into which it was fetched."""
    _SHOWN_AS[path] = address


def print_traceback() -> None:
    """Prints on stderr where the error under way comes from."""
    import traceback

    echo(traceback.format_exc().rstrip("\n"), sys.stderr)


def output_code() -> int | None:
    """Writes buffered output: None if that is done, else the exit code, with the rest dropped and so reported once.

    It is 0 for a reader that has stopped reading.
    """
    try:
        if not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        try:
            _missed(sys.stdout, error)
        except TtmbenchError as unwritten:
            warn(str(unwritten))
            return unwritten.exit_code
        return 0
    except KeyboardInterrupt:  # the reader has stopped, as a pager does
        _drop_rest(sys.stdout)
        raise
    return None


def _missed(stream: TextIO, error: OSError) -> None:
    _drop_rest(stream)
    if stream is sys.stdout and not isinstance(error, BrokenPipeError):
        raise TtmbenchError(f"the output cannot be written: {error.strerror or error}") from None


def _drop_rest(stream: IO[str]) -> None:
    """Discards what a stream holds and all that follows: its reader is gone, or its disk is full."""
    with suppress(OSError, ValueError, AttributeError):  # a stream that a program made may have no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def clear_bars() -> None:
    """Hides progress bars for a line that others print; the next step of a bar draws it again."""
    for bar in list(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())):
        if not bar.disable:
            bar.clear()


@contextmanager
def each_note_once() -> Iterator[None]:
    """Inside, `warn` prints each line once; a nested context belongs to the outer one."""
    token = None if _SAID.get() is not None else _SAID.set(set())
    try:
        yield
    finally:
        if token is not None:
            _SAID.reset(token)


def encodable(text: str, encoding: str) -> str:
    """A text as it is if an encoding has all its characters; else with ``+/-`` for ``±`` and the like, and escapes."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_SPELT).encode(encoding, "backslashreplace").decode(encoding)
    return text


def console(width: int | None = None) -> Console:
    """A console on stdout without markup; by default as wide as the terminal, else as ``COLUMNS``, else unlimited."""
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            _drop_rest(self.file)

    if not width and not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) > 0 else UNLIMITED
    return Pipe(width=width or None, highlight=False, markup=False, emoji=False)


def plain(text: str, keep: str = "\n\t") -> str:
    r"""Text with control characters, half surrogates and direction marks as escapes, all but those to ``keep``.

    Folders that stand for an address (`show_as`) become the address.

    >>> plain("a\x1b[2Jb\u202ec\n")
    'a\\x1b[2Jb\\u202ec\n'
    """
    for path, address in _SHOWN_AS.items():
        text = text.replace(path, address)
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
