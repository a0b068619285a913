"""Puts the output of the README's first command into the README, from the reference run that is checked in.

    python scripts/readme_example.py write
    python scripts/readme_example.py check     # fails if the README shows something else

The reference run is the README's own command with ``--output_path results/reference/first.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from ttmbench.table import print_results

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference" / "first.json"
README = ROOT / "README.md"
START, END = "<!-- example -->", "<!-- /example -->"


def with_example(text: str) -> str:
    """The README with the table of the reference run between its marks."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        print_results(json.loads(REFERENCE.read_text(encoding="utf-8")), width=0)
    lines = "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    return f"{before}{START}\n```text\n{lines}\n```\n{END}{after}"


def main() -> None:
    """Command line."""
    text = README.read_text(encoding="utf-8")
    new = with_example(text)
    if sys.argv[1:] == ["write"]:
        README.write_text(new, encoding="utf-8")
    elif new != text:
        sys.exit("README.md does not show the reference run; run `python scripts/readme_example.py write`")


if __name__ == "__main__":
    main()
