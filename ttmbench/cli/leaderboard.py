"""``ttmbench leaderboard``: results of many runs as JSON, CSV, Markdown, LaTeX and a page, or as a website."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench._util.files import to_json, write_text
from ttmbench.errors import UsageError
from ttmbench.report import leaderboard as formats
from ttmbench.report.board import print_board
from ttmbench.report.html.site import check_place, to_html, write_site
from ttmbench.report.leaderboard import Leaderboard, as_document, disagreements, merge
from ttmbench.reproduce.tables import published_numbers


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench leaderboard``."""
    parser.add_argument("folder", metavar="DIR", help="Directory with results files, searched recursively")
    published = "Published numbers: a CSV file, a table name, or all"
    parser.add_argument("--published", metavar="FILE|TABLE", action="append", help=published)
    parser.add_argument("--output_path", "-o", metavar="DIR", help="Output directory (default: DIR)")
    parser.add_argument("--site", metavar="OUT", help="Write a static website to this directory instead")


def leaderboard(options: argparse.Namespace) -> int:
    """Write the leaderboard and list what was skipped."""
    folder = Path(options.folder)
    site = Path(options.site) if options.site else None
    if site is not None:
        if options.output_path:
            raise UsageError("--site cannot be combined with --output_path: the site has the same files")
        check_place(folder, site)
    target = Path(options.output_path) if options.output_path else folder
    board = merge(folder, published_numbers(options.published or []))
    made = datetime.now(UTC).isoformat(timespec="seconds")
    if site is not None:
        _print_skipped(board)
        files = write_site(board, folder, site, made)
        echo(f"{site / 'index.html'} ({len(files)} files)")
        return 0
    texts = {
        "leaderboard.json": to_json(as_document(board)),
        "leaderboard.csv": formats.to_csv(board),
        "leaderboard.md": formats.to_markdown(board),
        "leaderboard.tex": formats.to_latex(board),
        "leaderboard.html": to_html(board, made),
    }
    print_board(board)
    _print_skipped(board)
    for name, text in texts.items():
        write_text(target / name, text)
        echo(str(target / name))
    return 0


def _print_skipped(board: Leaderboard) -> None:
    for name, why in board.skipped.items():
        echo(f"skipped: {name}: {why}")
    for conflict in board.conflicts:
        variants = "; ".join(
            f"version {variant['version']}, {variant['groups']} groups" for variant in conflict["variants"]
        )
        echo(f"different data: {conflict['task']}: {variants}")
    for line in disagreements(board.rows):
        echo(f"published values disagree: {line}")
    if board.superseded:
        echo(f"skipped: {len(board.superseded)} older numbers, listed in leaderboard.json")
