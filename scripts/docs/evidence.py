"""Runs the commands of docs/why-believe-it.md that need nothing but the clone, and writes down what was run.

python scripts/docs/evidence.py run      # every command; writes the page if all of them succeed
python scripts/docs/evidence.py list     # prints them
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "why-believe-it.md"
HEAD = "| claim | found | command | needs | stands in |"
PACKAGES = ("ttmbench", "torch", "transformers", "open_clip_torch", "numpy", "scipy")
START, END = "<!-- evidence -->\n", "<!-- /evidence -->"


@dataclass(frozen=True)
class Evidence:
    """A row of the page: a claim, the figures that were found, the command, what it needs, where the figures stand."""

    claim: str
    found: str
    command: str
    needs: str
    stands_in: str


def rows(text: str) -> list[Evidence]:
    """The rows of all tables of evidence of a page."""
    entries, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("|") and (inside or line == HEAD)
        if inside and line != HEAD and not line.startswith("|---"):
            claim, what, command, needs, where = (cell.strip() for cell in line.strip("|").split("|"))
            entries.append(Evidence(claim, what, command.strip("`"), needs, where))
    return entries


def run(command: str) -> str:
    """Runs a command in the clone; returns its last line.

    Raises:
        SystemExit: it failed, or pytest skipped all of it.
    """
    words = shlex.split(command)
    program = [sys.executable, "-m", "ttmbench"] if words[0] == "ttmbench" else [sys.executable]
    done = subprocess.run(
        [*program, *words[1:]], cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True
    )
    last = (done.stdout.strip().splitlines() or [""])[-1].strip("= ")
    if done.returncode or ("pytest" in words and "passed" not in last):
        sys.exit(f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return re.sub(r" in [\d.]+s.*$", "", last)


def written(results: list[tuple[str, str]]) -> str:
    """What the page says of a run of the commands: (command, its last line)."""
    numbers = [re.search(r"(\d+) passed", last) for _, last in results]
    passed = sum(int(match[1]) for match in numbers if match)
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    lines = [
        f"On {datetime.date.today():%Y-%m-%d}, Python {sys.version.split()[0]}, {sys.platform}, {versions}:",
        f"{len(results)} commands succeeded, with {passed} tests in them.",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "list"])
    action = parser.parse_args().action
    text = PAGE.read_text(encoding="utf-8")
    commands = [row.command for row in rows(text) if not row.needs]
    if action == "list":
        print("\n".join(commands))
        return
    results = []
    for command in commands:
        last = run(command)
        print(f"{command}\n    {last}", flush=True)
        results.append((command, last))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)  # it may have been edited meanwhile
    PAGE.write_text(f"{before}{START}{written(results)}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
