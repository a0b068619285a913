"""What is printed beside progress bars, and what is printed once."""

from __future__ import annotations

import io
import re
import sys

import pytest

from ttmbench._util.console import SPELT, echo, progress_bar, warn
from ttmbench.cli import parser


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def lines_of(written: str) -> list[str]:
    """The lines that a terminal shows: a return begins a line anew and overwrites what stood there."""
    shown = []
    for line in written.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            part = re.sub(r"\x1b\[[A-Z]", "", part)
            cells = [*part, *cells[len(part) :]]
        shown.append("".join(cells).rstrip())
    return shown


def one_screen(monkeypatch) -> Terminal:
    """Puts stdout and stderr on one terminal."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_a_notice_stands_on_a_line_of_its_own_above_the_bar(monkeypatch):
    screen = one_screen(monkeypatch)
    with progress_bar(3, "scoring", "groups") as bar:
        bar.update(1)
        bar.set_postfix_str("")  # draws it
        warn("raw scores come from the cache")
        echo("a line")
        bar.set_postfix_str("")  # draws it
        assert "scoring" in lines_of(screen.getvalue())[-1], "the bar is drawn again below"
    shown = lines_of(screen.getvalue())
    assert "ttmbench: raw scores come from the cache" in shown and "a line" in shown


def test_a_warning_of_a_library_too(monkeypatch):
    screen = one_screen(monkeypatch)
    for number in progress_bar(3, "scoring", "groups", range(3)):
        if number == 1:
            screen.write(parser._one_line_warning("slow"))
    assert "scoring" in screen.getvalue()
    assert "ttmbench: warning: slow" in lines_of(screen.getvalue())


def test_a_note_is_said_once_a_run(capsys):
    for text in ("the same", "the same", "another"):
        warn(text)
    assert parser.main(["ls", "metrics"]) == 0
    warn("the same")
    assert capsys.readouterr().err.splitlines() == ["ttmbench: the same", "ttmbench: another", "ttmbench: the same"]


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [("1.0 ± 0.2", "utf-8", "1.0 ± 0.2"), ("1.0 ± 0.2", "ascii", "1.0 +/- 0.2"), ("猫 – 2", "latin-1", "\\u732b - 2")],
)
def test_what_an_encoding_lacks_is_spelt(text, encoding, shown):
    assert text.encode(encoding, SPELT).decode(encoding) == shown
