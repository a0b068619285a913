"""Parts of Markdown pages: tables, and what stands between two marks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Iterable[object]], numbers: int = 0) -> str:
    """A table; its last columns hold numbers."""
    marks = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "\n".join([_row(head), f"|{'|'.join(marks)}|", *map(_row, rows)])


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: object) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", str(value).replace("\n", " "))


def between(text: str, name: str, new: str) -> str:
    """A page with other content between its marks ``<!-- name -->`` and ``<!-- /name -->``; SystemExit without them."""
    start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    before, opened, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        sys.exit(f"there are no marks {start.strip()} ... {end.strip()} in a page that shows {name}")
    return f"{before}{start}{new}{end}{after}"
