"""The files of this repository: its pages and their fenced blocks, its scripts as modules."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
_ROOTED = ("README", "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY", "results/README", "benchmarks/README")
PAGES = sorted([*(ROOT / f"{name}.md" for name in _ROOTED), *(ROOT / "docs").rglob("*.md")])
LESSONS = {page.name for page in (ROOT / "docs" / "lessons").glob("*.md")}  # a separate test runs them
WALKED = {"add-a-task.md", "exports.md"}  # run from top to bottom, with the files that the page writes
BLOCK = re.compile(r"(?:<!-- (run|file: [^ ]+|\w+) -->\n)?```(\w+)\n(.*?)```", flags=re.DOTALL)


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
