"""Builds the wheel and the sdist, installs the wheel in a clean environment and checks what is in both.

`ttmbench ls tasks` there must list exactly the YAMLs of tasks/. With --full the environment gets all dependencies and
runs the built-in model; without, only those that the listing needs. The sdist must have every file of the repository.
Its tests are collected outside of it, against the wheel, and those of the project's files run. --outdir keeps both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

import set_repository

ROOT = Path(__file__).resolve().parents[1]
LIGHT = ["numpy", "scipy", "jaxtyping", "platformdirs", "pluggy", "pydantic", "PyYAML", "pillow", "rich"]
RUN_IN_SDIST = "test_project_files or test_readme"  # the rest is collected


def clean_environment(folder: Path) -> Path:
    """A new virtual environment; returns its python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def build(target: Path, scratch: Path) -> Path:
    """Builds sdist and wheel into an empty folder; returns the wheel, which is built from the sdist.

    Once the repository's address is set, both have a README with absolute links, for the package page.
    """
    if target.is_dir() and any(target.iterdir()):
        sys.exit(f"{target} holds files already; what was built before is not what is checked now")
    command, source = [sys.executable, "-m", "build"], ROOT
    if repository := set_repository.addresses(ROOT).get("Repository"):
        subprocess.run([*command, "--sdist", "--outdir", scratch, ROOT], check=True, stdout=subprocess.DEVNULL)
        archive = next(scratch.glob("*.tar.gz"))
        with tarfile.open(archive) as files:
            files.extractall(scratch, filter="data")
        source = scratch / archive.name.removesuffix(".tar.gz")
        tag = f"v{archive.name.removesuffix('.tar.gz').rpartition('-')[2]}"
        readme = source / "README.md"
        text = readme.read_text(encoding="utf-8")
        readme.write_text(set_repository.with_absolute_links(text, repository, tag), encoding="utf-8")
    subprocess.run([*command, "--outdir", target, source], check=True, stdout=subprocess.DEVNULL)
    return next(target.glob("*.whl"))


def check_sdist(archive: Path, wheel: Path, folder: Path) -> None:
    """Unpacks an sdist into an empty folder; its tests must be collected there with the package of the wheel.

    Raises:
        SystemExit: If a file of the repository is not in it, or a test cannot be collected or fails.
    """
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    if lacking := [name for name in tracked.split("\0") if name and not (unpacked / name).exists()]:
        sys.exit(f"the sdist lacks {', '.join(lacking)}")
    installed = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", installed]
    subprocess.run([*pip, wheel], check=True)
    tests = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", RUN_IN_SDIST, "tests"]
    done = subprocess.run(tests, cwd=unpacked, env={**os.environ, "PYTHONPATH": str(installed)}, stdout=-1, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}the tests of the sdist do not run outside of the repository")


def main() -> None:
    """Runs the check; exits non-zero with the reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="install all dependencies and run the built-in model")
    parser.add_argument("--outdir", type=Path, help="keep wheel and sdist there (default: they are removed)")
    options = parser.parse_args()
    full = options.full
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "source").mkdir()
        wheel = build((options.outdir or folder / "dist").absolute(), folder / "source")
        (folder / "sdist").mkdir()
        check_sdist(next(wheel.parent.glob("*.tar.gz")), wheel, folder / "sdist")
        python = clean_environment(folder / "env")
        install = [python, "-m", "pip", "install", "--quiet"]
        if full:
            subprocess.run([*install, wheel], check=True)
        else:
            subprocess.run([*install, *LIGHT], check=True)
            subprocess.run([*install, "--no-deps", wheel], check=True)
        command = [python, "-m", "ttmbench"]
        listed = subprocess.run([*command, "ls", "tasks", "--json"], check=True, stdout=-1, text=True, cwd=folder)
        names = {row["task"] for row in json.loads(listed.stdout)}
        expected = {path.stem for path in (ROOT / "tasks").glob("[!_]*.yaml")}
        if names != expected:
            sys.exit(f"the wheel lists {sorted(names)}, tasks/ has {sorted(expected)}")
        tables = "from ttmbench.reproduce.tables import load_table, shipped_tables as t; print(*map(load_table, t()))"
        shown = subprocess.run([python, "-c", tables], check=True, stdout=-1, text=True, cwd=folder).stdout
        for path in (ROOT / "ttmbench" / "reproduce" / "published").glob("[!_]*.yaml"):
            if f"name='{path.stem}'" not in shown:
                sys.exit(f"the wheel lacks the published table {path.stem}")
        if full:
            run = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "8", "--device", "cpu"]
            subprocess.run([*command, *run], check=True, cwd=folder)
    print(f"wheel: {len(names)} tasks, as in tasks/{'; the built-in model runs' if full else ''}")
    print("sdist: every file of the repository; its tests are collected outside of it")


if __name__ == "__main__":
    main()
