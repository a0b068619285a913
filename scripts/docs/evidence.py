"""Runs the checks of tests/evidence/checks.yaml that need nothing but the clone, and writes docs/evidence.md.

python scripts/docs/evidence.py list     # prints the commands
python scripts/docs/evidence.py run      # executes them; writes the page if all of them succeed
python scripts/docs/evidence.py write    # writes the tables of the page, after checks.yaml changed
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

import yaml
from page_parts import between, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence.md"
CHECKS = ROOT / "tests" / "evidence" / "checks.yaml"
PACKAGES = ("ttmbench", "torch", "transformers", "open_clip_torch", "numpy", "scipy")


@dataclass(frozen=True)
class Check:
    """A claim, what was found, the command, what it needs, and the file that states the figures (empty: the page)."""

    claim: str
    found: str
    command: str
    needs: str = ""
    stated: str = ""


def checks() -> dict[str, list[Check]]:
    """All checks, by the section of the page."""
    listed = yaml.safe_load(CHECKS.read_text(encoding="utf-8"))
    return {section: [Check(**check) for check in entries] for section, entries in listed.items()}


def tables() -> str:
    """The checks as Markdown, a table for each section."""
    parts = []
    for section, entries in checks().items():
        rows = [(one.claim + (f" (*{one.needs}*)" if one.needs else ""), one.found) for one in entries]
        parts.append(f"### {section}\n\n{table(('check', 'found'), rows)}")
    return "\n\n".join(parts)


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


def summary(results: list[tuple[str, str]]) -> str:
    """What the page says of a run of the commands: (command, its last line)."""
    numbers = [re.search(r"(\d+) passed", last) for _, last in results]
    passed = sum(int(match[1]) for match in numbers if match)
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    date = f"{datetime.date.today():%Y-%m-%d}"
    return (
        f"On {date}, Python {sys.version.split()[0]}, {sys.platform}, {versions}:\n"
        f"{len(results)} commands succeeded, with {passed} tests in them."
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["list", "run", "write"])
    action = parser.parse_args().action
    listed = [check for entries in checks().values() for check in entries]
    if action == "list":
        print("\n".join(check.command + (f"    # needs {check.needs}" if check.needs else "") for check in listed))
        return
    results = []
    for command in [check.command for check in listed if not check.needs] if action == "run" else []:
        last = run(command)
        print(f"{command}\n    {last}", flush=True)
        results.append((command, last))
    text = between(PAGE.read_text(encoding="utf-8"), "checks", tables())
    PAGE.write_text(between(text, "evidence", summary(results)) if results else text, encoding="utf-8")


if __name__ == "__main__":
    main()
