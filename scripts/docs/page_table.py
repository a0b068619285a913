"""A table between two marks of a page, written or checked: what the scripts that make tables have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(page: Path, mark: str, table: Callable[[], str], about: str) -> None:
    """The command line of a script: ``write`` puts the table into the page, ``check`` fails if it is another.

    Args:
        page: holds ``<!-- mark -->`` and ``<!-- /mark -->``.
        mark: name of the place.
        table: makes the table.
        about: the script's own docstring, for its help.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "check"])
    action = parser.parse_args().action
    start, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2]
    new = f"{before}{start}\n{table()}\n{end}{after}"
    if action == "check" and new != text:
        sys.exit(f"{page.name}: its table is stale; run `python scripts/docs/{Path(sys.argv[0]).name} write`")
    if action == "write":
        page.write_text(new, encoding="utf-8")
