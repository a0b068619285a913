"""The files of a site: pages, downloads and documents, with links that hold wherever the folder lies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ttmbench._util.files import to_json, write_atomically
from ttmbench._util.text import Unreadable, read_json
from ttmbench._version import __version__
from ttmbench.errors import UsageError
from ttmbench.report.html.render import render
from ttmbench.report.html.site_pages import SiteContent, common, model_page, overview, task_page
from ttmbench.report.leaderboard import Leaderboard, as_document
from ttmbench.report.leaderboard_formats import to_csv

STYLES, SCRIPTS = ("page.css", "site.css"), ("tables.js",)
_OWN = {"tasks": "*.html", "models": "*.html", "data/runs": "*.json"}
"""Folders of a site, and what it writes there."""


def check_place(folder: Path, site: Path) -> None:
    """UsageError for a site that would lie among the documents, or in a folder of something else."""
    runs, target = folder.resolve(), site.resolve()
    if target.is_relative_to(runs) or runs.is_relative_to(target):
        raise UsageError(f"--site {site} lies in the folder of results, or around it; name one beside {folder}")
    if target.exists() and not target.is_dir():
        raise UsageError(f"--site {site} is no folder")
    if target.is_dir() and any(target.iterdir()) and not _is_site(target):
        raise UsageError(f"--site {site} holds other files; name a new folder, or one that an earlier site is in")


def write_site(board: Leaderboard, folder: Path, site: Path, made: str) -> list[Path]:
    """Writes a site; pages of models and tasks that are gone are removed.

    Args:
        board: the leaderboard.
        folder: where its documents lie.
        site: where the site goes; see `check_place`.
        made: when, for the foot of its pages.

    Returns:
        What was written.

    Raises:
        UsageError: a file cannot be written.
    """
    content = SiteContent.of(board, made, __version__)
    try:
        for name in _OWN:
            (site / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--site {site} cannot be written to: {error.strerror or error}") from None
    written: list[Path] = []

    def put(name: str, write: Callable[[Path], object]) -> None:
        write_atomically(site / name, write)
        written.append(site / name)

    def text(name: str, content: str) -> None:
        put(name, lambda path: path.write_text(content, encoding="utf-8", newline="\n"))

    text(".nojekyll", "")  # GitHub Pages serves files as they are then, also those that begin with an underscore
    text("data/leaderboard.json", to_json(as_document(board)))
    text("data/leaderboard.csv", to_csv(board))
    for file, copy in content.documents.items():
        put(f"data/runs/{copy}", lambda path, file=file: shutil.copyfile(folder / file, path))  # type: ignore[misc]
    for task, name in content.task_pages.items():
        text(f"tasks/{name}", _page("site_task.html", **common(content, "../"), **task_page(content, task)))
    for model, name in content.model_pages.items():
        text(f"models/{name}", _page("site_model.html", **common(content, "../"), **model_page(content, model)))
    text("index.html", _page("site_index.html", **common(content, ""), **overview(content)))
    for name, pattern in _OWN.items():
        for path in (site / name).glob(pattern):
            if path not in written:
                path.unlink()
    return written


def _page(template: str, **values: Any) -> str:
    return render(template, styles=STYLES, scripts=SCRIPTS, **values)


def _is_site(folder: Path) -> bool:
    """Whether a folder holds what this module wrote."""
    try:
        content = read_json(folder / "data" / "leaderboard.json")
    except Unreadable:
        return False
    return (folder / ".nojekyll").is_file() and isinstance(content, dict) and content.get("kind") == "leaderboard"
