"""The files of a leaderboard's website: where they may go, and which are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ttmbench._util.files import to_json, write_text
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import UsageError
from ttmbench.report.compared_methods import compared_methods
from ttmbench.report.group_values import GroupValues
from ttmbench.report.html.site import SitePages
from ttmbench.report.leaderboard import Leaderboard, as_document, to_csv
from ttmbench.report.published import Published

_OWN = {"": "*.html", "tasks": "*.html", "models": "*.html", "data/runs": "*.json"}
"""Folders of a site, and the files that it writes there."""


def check_place(folder: Path, site: Path) -> None:
    """UsageError for a site inside the folder of results, around it, or in a folder with other files."""
    runs, target = folder.resolve(), site.resolve()
    if target.is_relative_to(runs) or runs.is_relative_to(target):
        raise UsageError(f"--site {site} must neither contain {folder}, the directory with the results, nor be in it")
    if target.exists() and not target.is_dir():
        raise UsageError(f"--site must be a directory, and {site} is a file")
    if target.is_dir() and any(target.iterdir()) and not _is_site(target):
        raise UsageError(f"--site {site} has other files; give a new directory, or one with an earlier site")


def _is_site(folder: Path) -> bool:
    try:
        content = read_json(folder / "data" / "leaderboard.json")
    except Unreadable:
        return False
    return (folder / ".nojekyll").is_file() and isinstance(content, dict) and content.get("kind") == "leaderboard"


def write_site(
    board: Leaderboard, folder: Path, site: Path, made: str, published: Published | None = None, docs: str = ""
) -> list[Path]:
    """Write a site and remove obsolete pages of families, models and tasks.

    Args:
        board: the leaderboard.
        folder: of its results documents.
        site: of the site; see `check_place`.
        made: its date.
        published: what is known about its published numbers.
        docs: address of the documentation that pages link to; empty for none.

    Returns:
        The written files.

    Raises:
        UsageError: a file cannot be written.
    """
    written = []
    samples = GroupValues(folder, {run.file: run.document for run in board.runs})
    runs = [(run.model, run.file, run.document) for run in board.runs]
    methods = compared_methods(folder, runs, () if published is None else published.numbers, samples)
    pages = SitePages(board, made, published, samples, docs, methods)
    for name, text in _files(board, pages, folder):
        write_text(site / name, text)
        written.append(site / name)
    for name, pattern in _OWN.items():
        for path in (site / name).glob(pattern):
            if path not in written:
                path.unlink()
    return written


def _files(board: Leaderboard, pages: SitePages, folder: Path) -> Iterator[tuple[str, str]]:
    """Every file of a site, the start page last."""
    yield ".nojekyll", ""  # so that GitHub Pages serves the files unchanged, also those that begin with an underscore
    yield "data/leaderboard.json", to_json(as_document(board))
    yield "data/leaderboard.csv", to_csv(board)
    yield from ((f"data/runs/{copy}", (folder / file).read_text("utf-8")) for file, copy in pages.documents.items())
    yield from ((f"tasks/{name}", pages.of_task(task)) for task, name in pages.task_pages.items())
    yield from ((f"models/{name}", pages.of_model(model)) for model, name in pages.model_pages.items())
    yield "models.html", pages.models()
    if pages.compared:
        yield "methods.html", pages.methods()
    yield from ((name, pages.of_family(family)) for family, name in reversed(pages.tabs.items()))
