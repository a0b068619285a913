"""Documents: commands that a page shows are run, links lead somewhere, hooks and metrics have their lines."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from support import processes
from support.pages import BLOCK, LESSONS, PAGES, ROOT, WALKED, blocks

from ttmbench import hookspecs
from ttmbench.cli import main
from ttmbench.cli.parser import build_parser


def console_commands(page: Path) -> list[str]:
    return [line[2:] for _, block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


SHOWN = [
    (page.name, command) for page in PAGES if page.name not in WALKED | LESSONS for command in console_commands(page)
]


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[f"{page}: {command[:60]}" for page, command in SHOWN])
def test_a_command_that_a_page_shows_works(page, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TTMBENCH_CACHE", str(tmp_path / "kept"))
    words = shlex.split(command.partition(" | ")[0])
    assert words[0] == "ttmbench", command
    assert main(words[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", sorted(WALKED))
def test_a_page_works_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    """Its commands, and the files and programs that are marked by a comment, in their order, in one folder."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    ran = 0
    for mark, language, block in BLOCK.findall(text):
        if mark == "run":
            processes.run(["-c", block], check=True)
        elif mark:
            Path(mark.removeprefix("file: ")).write_text(block, encoding="utf-8")
        for line in block.splitlines() if language == "console" else ():
            words = shlex.split(line.removeprefix("$ "))
            assert line.startswith("$ ttmbench ") and main(words[1:]) == 0, (line, capsys.readouterr())
            ran += 1
    assert ran == len(console_commands(ROOT / "docs" / page)) > 4
    assert "```bash" not in text, "every command of this page is run"


def test_every_option_of_a_command_is_in_the_page():
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    parser = build_parser()
    commands = next(action for action in parser._actions if hasattr(action, "choices") and action.choices)
    for name, command in commands.choices.items():
        assert f"`{name}" in text, name
        for option in (o for action in command._actions for o in action.option_strings if o.startswith("--")):
            assert option in text, (name, option)


def test_every_hook_has_a_line_in_its_page():
    text = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    for name in vars(hookspecs):
        if name.startswith("ttmbench_"):
            assert name in text, name


def test_every_key_of_the_results_is_explained():
    text = (ROOT / "docs" / "results-format.md").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "ttmbench" / "results" / "schemas" / "results-1.0.json").read_text(encoding="utf-8"))
    for key in schema["properties"]:
        assert f"`{key}`" in text, key


def test_no_page_or_source_names_this_machine_or_a_registry():
    words = re.compile(r"/work/|/tmp/|pypi\.org|files\.pythonhosted")
    for path in [*PAGES, *(ROOT / "ttmbench").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]:
        assert not words.search(path.read_text(encoding="utf-8")), path.name


def test_the_tables_of_models_and_tasks_are_those_of_the_catalogue_and_the_task_files():
    done = processes.run([ROOT / "scripts" / "docs" / "tables.py", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
