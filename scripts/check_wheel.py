"""Builds the wheel and the sdist, installs the wheel in a clean environment and checks what is in it.

`ttmbench ls tasks` there must list exactly the YAMLs of tasks/. With --full the environment gets all dependencies and
runs the built-in model; without, only those that the listing needs. --outdir keeps what was built and checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIGHT = ["numpy", "scipy", "jaxtyping", "pluggy", "pydantic", "PyYAML", "pillow"]
TABLES = ["rich"]  # draws the listing for people; --json does without it


def clean_environment(folder: Path) -> Path:
    """A new virtual environment; returns its python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def build(target: Path) -> Path:
    """Builds sdist and wheel into an empty folder; returns the wheel, which is built from the sdist."""
    if target.is_dir() and any(target.iterdir()):
        sys.exit(f"{target} holds files already; what was built before is not what is checked now")
    subprocess.run([sys.executable, "-m", "build", "--outdir", target, ROOT], check=True, stdout=subprocess.DEVNULL)
    return next(target.glob("*.whl"))


def main() -> None:
    """Runs the check; exits non-zero with the reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="install all dependencies and run the built-in model")
    parser.add_argument("--outdir", type=Path, help="keep wheel and sdist there (default: they are removed)")
    options = parser.parse_args()
    full = options.full
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build((options.outdir or folder / "dist").absolute())
        python = clean_environment(folder / "env")
        install = [python, "-m", "pip", "install", "--quiet"]
        if full:
            subprocess.run([*install, wheel], check=True)
        else:
            subprocess.run([*install, *LIGHT], check=True)
            subprocess.run([*install, "--no-deps", wheel], check=True)
        command = [python, "-m", "ttmbench"]
        listed = subprocess.run(
            [*command, "ls", "tasks", "--json"], check=True, capture_output=True, text=True, cwd=folder
        )
        names = {row["task"] for row in json.loads(listed.stdout)}
        if not full:
            subprocess.run([*install, *TABLES], check=True)
        table = subprocess.run([*command, "ls", "tasks"], check=True, capture_output=True, text=True, cwd=folder)
        expected = {path.stem for path in (ROOT / "tasks").glob("[!_]*.yaml")}
        if {line.split()[0] for line in table.stdout.splitlines()[2:]} != expected:
            sys.exit(f"`ttmbench ls tasks` does not list what tasks/ has: {table.stdout}")
        if names != expected:
            sys.exit(f"the wheel lists {sorted(names)}, tasks/ has {sorted(expected)}")
        tables = "from ttmbench.reproduce.tables import load_table, shipped_tables as t; print(*map(load_table, t()))"
        shown = subprocess.run([python, "-c", tables], check=True, capture_output=True, text=True, cwd=folder).stdout
        for path in (ROOT / "ttmbench" / "reproduce" / "published").glob("[!_]*.yaml"):
            if f"name='{path.stem}'" not in shown:
                sys.exit(f"the wheel lacks the published table {path.stem}")
        if full:
            run = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "8", "--device", "cpu"]
            subprocess.run([*command, *run], check=True, cwd=folder)
    print(f"wheel: {len(names)} tasks, as in tasks/{'; the built-in model runs' if full else ''}")


if __name__ == "__main__":
    main()
