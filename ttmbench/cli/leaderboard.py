"""``ttmbench leaderboard``: results of many runs as tables, JSON and CSV, or as a website."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench._util.file_io import to_json, write_text
from ttmbench.errors import UsageError
from ttmbench.report.html.render import check_place, write_site
from ttmbench.report.leaderboard import NOT_RUN, Leaderboard, as_document, merge, print_board, to_csv
from ttmbench.reproduce.tables import published_beside_runs, under_names_of_runs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench leaderboard``."""
    parser.add_argument("folder", metavar="DIR", help="Directory with results files, searched recursively")
    published = "Published numbers: a CSV file, a table name, or all"
    parser.add_argument("--published", metavar="FILE|TABLE", action="append", help=published)
    parser.add_argument("--cost", action="store_true", help="Also show time, speed and memory")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="Output directory (default: DIR)")
    parser.add_argument("--site", metavar="OUT", help="Write a static website to this directory instead")
    parser.add_argument("--docs", metavar="URL", help="Address of the documentation that the website links to")


def leaderboard(options: argparse.Namespace) -> int:
    """Write the leaderboard and list what was skipped."""
    folder = Path(options.folder)
    site = Path(options.site) if options.site else None
    if site is not None:
        if options.output_path:
            raise UsageError("--site cannot be combined with --output_path: the site has the same files")
        check_place(folder, site)
    docs = options.docs or ""
    if ":" in docs and not docs.startswith(("http://", "https://")):
        raise UsageError(f"--docs must be an address (https://...) or a path relative to the website, got {docs!r:.80}")
    target = Path(options.output_path) if options.output_path else folder
    published = published_beside_runs(options.published or [])
    board, published = under_names_of_runs(merge(folder, published.numbers, every_task=site is not None), published)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    if site is not None:
        _print_skipped(board)
        files = write_site(board, folder, site, made, published, docs)
        echo(f"{site / 'index.html'} ({len(files)} files)")
        return 0
    texts = {
        "leaderboard.json": to_json(as_document(board, options.cost)),
        "leaderboard.csv": to_csv(board, options.cost),
    }
    print_board(board, options.cost)
    _print_skipped(board)
    for name, text in texts.items():
        write_text(target / name, text)
        echo(str(target / name))
    return 0


def _print_skipped(board: Leaderboard) -> None:
    marked = sum(bool(row.origin.disagrees) for row in board.rows)
    if marked:
        echo(f"published values: {marked} disagree with another source and are marked")
    tasks = [name for name in board.skipped if name.startswith(NOT_RUN)]
    if tasks:
        echo(f"skipped: published numbers of {len(tasks)} tasks that no run has; --site has a page for each")
    for name, why in board.skipped.items():
        if name not in tasks:
            echo(f"skipped: {name}: {why}")
    for conflict in board.conflicts:
        variants = "; ".join(
            f"version {variant['version']}, {variant['groups']} groups" for variant in conflict["variants"]
        )
        echo(f"different data: {conflict['task']}: {variants}")
    if board.superseded:
        echo(f"skipped: {len(board.superseded)} older numbers, listed in leaderboard.json")
