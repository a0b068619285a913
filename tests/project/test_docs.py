"""Documents: their commands and programs run, imports are public, options, hooks and keys have their lines."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from support import processes
from support.checkout import BLOCK, LESSONS, PAGES, ROOT, WALKED, blocks, load_script

import ttmbench
from ttmbench.cli import main
from ttmbench.cli.parser import COMMANDS


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
    if words[1:3] == ["analyze", "methods"] and "--limit" not in words:  # a study, for which a few minutes are meant
        words += ["--limit", "4", "--ttm_args", "iterations=1,epochs=1"]
    if "analyze" in words[:2]:  # figures are drawn in tests of each analysis
        monkeypatch.setattr("ttmbench.report.charts.save_figure", lambda draw, path, kind: path.touch())
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


def test_every_command_is_explained_and_has_a_page_of_its_options():
    table = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8").partition("\n\n|")[2].partition("\n\n")[0]
    made = load_script("docs/command_pages").command_pages()
    assert set(made) == {f"commands/{name}.md" for name in COMMANDS}
    for name in COMMANDS:
        assert re.search(rf"^\|[^|]*`{name}`.*\]\(", table, re.MULTILINE), name
        assert f"usage: ttmbench {name}" in made[f"commands/{name}.md"], name


def test_the_tables_of_models_and_tasks_are_those_of_the_catalogue_and_the_task_files():
    done = processes.run([ROOT / "scripts" / "docs" / "tables.py", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FOR_AUTHORS = {
    "README.md",
    "running.md",
    "hooks.md",
    "add-a-task.md",
    "add-an-adapter.md",
    "add-a-method.md",
}  # of programs and plugins
PUBLIC = {f"ttmbench.{name}" for name in ttmbench._MODULES} | {"ttmbench"}


def execute(program: str, folder: Path) -> str:
    words = ["-W", "error::DeprecationWarning:__main__", "-c", program]
    done = processes.run(words, cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_page_on_running_runs_from_top_to_bottom(tmp_path):
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    marked = re.findall(r"<!-- run -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(marked) == text.count("```python") > 8
    printed = execute("\n".join(marked), tmp_path)
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert without_numbers(printed).startswith(without_numbers(shown))


def without_numbers(text: str) -> str:
    """The words of an output; its numbers may move in the last digit from machine to machine."""
    return " ".join(re.sub(r"[-+\d.]+", "#", text).split())


def imported(program: str) -> set[str]:
    """Modules of ttmbench that a program imports, and those of which it takes a name by dots."""
    found = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | (
                {f"ttmbench.{alias.name}" for alias in node.names if not hasattr(ttmbench, alias.name)}
                if node.module == "ttmbench"
                else set()
            )
    return {name for name in found if name.split(".")[0] == "ttmbench"}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_pages_import_public_modules_alone(page):
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        assert imported(block) <= PUBLIC, page.name
    for name in re.findall(r"\bttmbench\.([a-z_]+)\.\w", text) if page.name in FOR_AUTHORS else ():
        assert f"ttmbench.{name}" in PUBLIC, (page.name, name)
