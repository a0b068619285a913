"""The files of this repository: its pages and their fenced blocks, its scripts as modules, and copies of it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
_ROOTED = (
    "README",
    "CONTRIBUTING",
    "CODE_OF_CONDUCT",
    "SECURITY",
    "results/README",
    "benchmarks/README",
)
PAGES = sorted([*(ROOT / f"{name}.md" for name in _ROOTED), *(ROOT / "docs").rglob("*.md")])
LESSONS = {page.name for page in (ROOT / "docs" / "lessons").glob("*.md")}  # a separate test runs them
WALKED = {"add-a-task.md", "exports.md"}  # run from top to bottom, with the files that the page writes
BLOCK = re.compile(r"(?:<!-- (run|file: [^ ]+|\w+) -->\n)?```(\w+)\n(.*?)```", flags=re.DOTALL)
_MADE = {"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".venv", "venv"}
_MADE_AT_THE_TOP = {"results", "build", "dist", "site"}  # and not the packages of the same name below


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """(Comment before it, text) of every fenced block of a page in a language."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(mark, text) for mark, one, text in found if one == language]


def load_script(name: str) -> ModuleType:
    """A program of ``scripts/`` by its path there, without its ending; loaded anew each time."""
    file = ROOT / "scripts" / f"{name}.py"
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # as when it runs: it may import what lies beside it
    spec = importlib.util.spec_from_file_location(f"script_{name.replace('/', '_')}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def copy_checkout(target: Path, project: Path = ROOT) -> None:
    """Copies a project without what was made in it: runs, builds, environments, caches."""

    def made(folder: str, names: list[str]) -> set[str]:
        unwanted = _MADE | (_MADE_AT_THE_TOP if folder == str(project) else set())
        return {name for name in names if name in unwanted or name.endswith(".egg-info")}

    shutil.copytree(project, target, ignore=made)
