"""Help as people read it: commands in groups, the common options first, no line wider than the terminal."""

from __future__ import annotations

import re
from typing import Literal, get_origin, get_type_hints

import pytest
import yaml

from ttmbench.cli import main
from ttmbench.cli.parser import COMMAND_GROUPS, COMMANDS, EXAMPLES, parse
from ttmbench.cli.run import settings_of
from ttmbench.config import RunConfig, RunOptions, make_run_config

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


def test_every_option_is_described_once_and_known_to_editors():
    known = set(RunConfig.model_fields) - {"model", "tasks"}
    assert set(RunOptions.__annotations__) == known
    types = get_type_hints(RunOptions)
    for name, field in RunConfig.model_fields.items():
        assert str(field.description)[:1].isupper(), name
        if name in known and get_origin(field.annotation) is Literal:
            assert types[name] == field.annotation, name


def test_an_option_is_the_same_on_the_command_line_in_a_file_and_in_python(tmp_path, capsys):
    words = {"model_args": "seed=1", "limit": "0.5", "seeds": "0,1", "methods": "dn", "interval": "bca"}
    asked = {"model": "tiny-clip", "tasks": "shapes_color", "batch_size": "auto:4", "device": "CPU", **words}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(asked), encoding="utf-8")
    line = [word for name, value in asked.items() for word in (f"--{name}", value)]
    found = [settings_of(parse(["run", *given])) for given in (line, ["--config", str(path)])]
    configs = [make_run_config(given) for given in (*found, asked)]
    assert configs[0] == configs[1] == configs[2]
    assert (configs[0].limit, configs[0].seeds, configs[0].batch_size) == (0.5, [0, 1], "auto")
