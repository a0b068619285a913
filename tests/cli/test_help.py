"""Help as people read it: commands in groups, the common options first, no line wider than the terminal."""

from __future__ import annotations

import re

import pytest

from ttmbench.cli import main
from ttmbench.cli.parser import COMMAND_GROUPS, COMMANDS, EXAMPLES

WIDTHS = (60, 80, 120)


def shown(capsys, monkeypatch, width: int, *words: str) -> str:
    """The help that a terminal or a pipe of this width gets."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(list(words)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def sections(text: str) -> dict[str, str]:
    """Heading -> the lines below it."""
    parts = re.split(r"^(\S[^\n]*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_and_its_examples_can_be_copied(name, width, capsys, monkeypatch):
    text = shown(capsys, monkeypatch, width, *([name] if name else []), "--help")
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith(f"usage: {f'ttmbench {name}'.strip()}")
    copied = [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]
    for example in EXAMPLES.get(name, ()):
        assert example in copied, "a command that is too long for a line continues after a backslash"


def test_commands_are_grouped(capsys, monkeypatch):
    text = shown(capsys, monkeypatch, 80, "--help")
    found = sections(text)
    assert list(COMMAND_GROUPS) == ["evaluate", "data and models", "results", "extend"]
    for title, group in COMMAND_GROUPS.items():
        listed = dict(re.findall(r"^  (\w+) +(\S.*)$", found[title], flags=re.MULTILINE))
        assert list(listed) == list(group), title
        assert all(group[name].startswith(line) for name, line in listed.items())
    assert {name for group in COMMAND_GROUPS.values() for name in group} == set(COMMANDS)
    assert "==SUPPRESS==" not in text and "ttmbench help COMMAND" in text


def test_a_command_line_without_words_prints_the_short_help(capsys, monkeypatch):
    text = shown(capsys, monkeypatch, 80)
    assert text == shown(capsys, monkeypatch, 80, "--help")
    assert len(text.splitlines()) <= 50, "one screen"
