"""``ttmbench leaderboard``: results of many runs as tables, JSON and CSV, or as a website."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import echo
from ttmbench._util.file_io import to_json, write_text
from ttmbench.config import split_names
from ttmbench.errors import UsageError

if TYPE_CHECKING:
    from ttmbench.report.board import Leaderboard


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench leaderboard``."""
    parser.add_argument("folder", metavar="DIR", help="Directory with results files, searched recursively")
    published = "Published numbers: CSV files or names of tables, separated by commas, or all"
    parser.add_argument("--published", metavar="FILE|TABLE", type=split_names, action="extend", help=published)
    output = "Output directory, or a .json, .csv or .html file (default: tables are only printed)"
    parser.add_argument("--output_path", "-o", metavar="DIR|FILE", help=output)
    parser.add_argument("--site", metavar="OUT", help="Write a static website to this directory instead")
    parser.add_argument("--docs", metavar="URL", help="Address of the documentation that the website links to")


def leaderboard(options: argparse.Namespace) -> int:
    """Write the leaderboard and list what was skipped."""
    from ttmbench.report.board import as_document, merge, print_board, to_csv
    from ttmbench.reproduce.tables import published_beside_runs, under_names_of_runs

    folder, target, docs = Path(options.folder), Path(options.output_path or "."), options.docs or ""
    if options.site and options.output_path:
        raise UsageError("--site cannot be combined with --output_path: the site has the same files")
    if ":" in docs and not docs.startswith(("http://", "https://")):
        raise UsageError(f"--docs must be an address (https://...) or a path relative to the website, got {docs!r:.80}")
    published = published_beside_runs(options.published or [])
    board, published = under_names_of_runs(merge(folder, published.numbers, every_task=bool(options.site)), published)
    if options.site:
        from ttmbench.report.html.render import write_site

        files = write_site(board, folder, Path(options.site), published, docs)
        _print_skipped(board)
        echo(f"{Path(options.site) / 'index.html'} ({len(files)} files)")
        return 0
    print_board(board)
    _print_skipped(board)
    is_file = target.suffix in (".json", ".csv", ".html")
    for kind in [target.suffix] if is_file else [".json", ".csv"] if options.output_path else []:
        file = target if is_file else target / f"leaderboard{kind}"
        if kind == ".html":
            from ttmbench.report.html.render import to_page  # which needs matplotlib

            write_text(file, to_page(board, published, docs))
        else:
            write_text(file, to_csv(board) if kind == ".csv" else to_json(as_document(board)))
        echo(str(file))
    return 0


def _print_skipped(board: Leaderboard) -> None:
    from ttmbench.report.board import NOT_RUN

    marked = sum(bool(row.origin.disagrees) for row in board.rows)
    if marked:
        echo(f"published values: {marked} disagree with another source and are marked")
    tasks = [name for name in board.skipped if name.startswith(NOT_RUN)]
    if tasks:
        echo(f"skipped: published numbers of {len(tasks)} tasks that no run has; --site has a page for each")
    for name, why in board.skipped.items():
        if name not in tasks:
            echo(f"skipped: {name}: {why}")
    for task, files in board.conflicts.items():
        echo(f"other data or version, not ranked: {task}: {', '.join(files)}")
    if board.superseded:
        echo(f"skipped: {len(board.superseded)} older numbers, listed in leaderboard.json (--output_path)")
