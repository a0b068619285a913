"""A copy of the checkout as it is cloned, for tests that build or install it elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MADE = {"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".venv", "venv"}
_MADE_AT_THE_TOP = {"results", "build", "dist", "site"}  # and not the packages of the same name below


def copy_checkout(target: Path, project: Path = ROOT) -> None:
    """Copies a project without what was made in it: runs, builds, environments, caches.

    Args:
        target: the folder to make.
        project: what to copy; by default the checkout.
    """

    def made(folder: str, names: list[str]) -> set[str]:
        unwanted = _MADE | (_MADE_AT_THE_TOP if folder == str(project) else set())
        return {name for name in names if name in unwanted or name.endswith(".egg-info")}

    shutil.copytree(project, target, ignore=made)
