"""The pages of the repository, and their fenced blocks with the comment that says what a block is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROOTED = (
    "README.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "results/README.md",
    "benchmarks/README.md",
)
PAGES = sorted([*(ROOT / name for name in _ROOTED), *(ROOT / "docs").rglob("*.md")])
WALKED = {"add-a-task.md", "exports.md"}  # run from top to bottom, with the files that the page writes
BLOCK = re.compile(r"(?:<!-- (run|file: [^ ]+|\w+) -->\n)?```(\w+)\n(.*?)```", flags=re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """(Comment before it, text) of every block of a page in a language."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(mark, text) for mark, one, text in found if one == language]
