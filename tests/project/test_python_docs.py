"""What pages show of Python: the page on Python runs, and no page imports what is not public."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support import processes

import ttmbench

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "lessons").glob("*.md"))]
FOR_AUTHORS = {"README.md", "python.md", "hooks.md", "add-a-task.md", "add-an-adapter.md"}  # of programs and plugins
THIRD_PARTY = sorted((ROOT / "tests" / "third_party" / "src").rglob("*.py"))
PUBLIC = {f"ttmbench.{name}" for name in ttmbench._MODULES} | {"ttmbench"}


def execute(program: str, folder: Path) -> str:
    words = ["-W", "error::DeprecationWarning:__main__", "-c", program]
    done = processes.run(words, cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_page_on_python_runs_from_top_to_bottom(tmp_path):
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    marked = re.findall(r"<!-- run -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(marked) == text.count("```python") > 8
    printed = execute("\n".join(marked), tmp_path)
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert without_numbers(printed).startswith(without_numbers(shown))


def test_the_page_on_python_names_all_that_is_exported():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    pieces = set(re.findall(r"\w+", text))
    unnamed = {name for name in ttmbench.__all__ if name not in pieces} - {"__version__"}
    assert not unnamed


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


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_pages_import_public_modules_alone(page):
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        assert imported(block) <= PUBLIC, page.name
    for name in re.findall(r"\bttmbench\.([a-z_]+)\.\w", text) if page.name in FOR_AUTHORS else ():
        assert f"ttmbench.{name}" in PUBLIC, (page.name, name)


def test_the_third_party_package_imports_public_modules_alone():
    assert THIRD_PARTY
    for path in THIRD_PARTY:
        assert imported(path.read_text(encoding="utf-8")) <= PUBLIC, path.name
