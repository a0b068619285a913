"""Runs the tests with the oldest libraries that pyproject.toml allows.

Every dependency there has a lower bound. This makes a virtual environment in which each of them, of the plain install
and of every extra but `dev`, `docs` and `trackio`, is exactly at its bound, and runs pytest in it. pip refuses bounds
that cannot be installed together; the tests fail on a bound that is lower than what the code needs. What dependencies
need in turn is as new as they allow: only what we name has a bound of ours.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Formatters, type checkers and the site's, whose newest version counts; trackio needs a newer client of the Hub.
NOT_TESTED = {"dev", "docs", "trackio"}
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[a-z0-9,_-]+\])?(?:>=(?P<bound>[0-9.]+))?")


def lower_bounds(project: dict, without: Collection[str] = ()) -> dict[str, str]:
    """The oldest version that a project allows of each plain dependency and of those of all but some extras.

    ValueError for a dependency without a lower bound, or written in another way than ``name>=version``.
    """
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})
    lists = [project["dependencies"], *(needs for extra, needs in extras.items() if extra not in without)]
    bounds: dict[str, str] = {}
    for requirement in (need for needs in lists for need in needs):
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"dependency {requirement!r} is not of the form name>=version")
        if match["name"] == project["name"]:
            continue  # an extra that consists of other extras
        if match["bound"] is None:
            raise ValueError(f"dependency {requirement!r} has no lower bound")
        bounds[match["name"]] = match["bound"]
    return bounds


def read_project() -> dict:
    """The table ``project`` of our pyproject.toml."""
    project: dict = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def constraints(project: dict, only: Collection[str] | None = None) -> list[str]:
    """What pip is held to, a line a package: all, or ``only`` some; SystemExit if one of these is not a dependency."""
    bounds = lower_bounds(project, NOT_TESTED)
    unknown = set(only or ()) - set(bounds)
    if unknown:
        sys.exit(f"--only {', '.join(sorted(unknown))}: no dependency; there are {', '.join(sorted(bounds))}")
    return [f"{name}=={version}" for name, version in bounds.items() if only is None or name in only]


def make_environment(folder: Path, project: dict, only: Collection[str] | None = None) -> Path:
    """Installs the project with everything, or ``only`` some, at its lower bound; returns the environment's python.

    An environment that is in the folder is brought to the bounds of today. SystemExit if the versions cannot be
    installed together.
    """
    held = constraints(project, only)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    listed = folder / "oldest.txt"
    listed.write_text("\n".join([*held, ""]), encoding="utf-8")
    extras = ",".join(sorted(set(project["optional-dependencies"]) - NOT_TESTED))
    wanted = ["--constraint", str(listed), "--editable", f"{ROOT}[{extras}]"]
    command = [str(python), "-m", "pip", "install", *wanted]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:  # only what pip says at length tells which bounds do not go together
        sys.exit(f"the oldest versions cannot be installed together:\n{done.stdout}")
    return python


def main() -> None:
    """Runs the check; exits with pytest's code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, help="make the environment here and keep it (default: a temporary one)")
    parser.add_argument("--only", metavar="A,B", help="these packages at their bounds, the others as new as they allow")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        only = args.only.split(",") if args.only else None
        python = make_environment((args.venv or Path(scratch) / "oldest").absolute(), read_project(), only)
        listed = subprocess.run([python, "-m", "pip", "list"], check=True, capture_output=True, text=True).stdout
        print(listed, flush=True)
        sys.exit(subprocess.run([python, "-m", "pytest", *args.pytest], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
