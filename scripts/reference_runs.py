"""Makes every document of results/reference and results/submissions at one commit, and checks that they agree.

    make reference

Needs a clean checkout, so that the commit that a document states is the code that made it. Old documents are removed
first, each command runs in a process of its own with one thread, as many at a time as there are CPUs, and what they
print goes to build/reference/. Afterwards the submissions are validated and every page, table and chart that shows the
reference is written again (scripts/docs/reference.py). Screenshots need a browser: the last lines say what is left.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ttmbench._version import __version__
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import numbers_in, seed_std_key, stderr_key
from ttmbench.results.reader import read_document

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("tiny-clip", "tiny-clip-seed1")
SUBMITTED = "shapes_color,shapes_place,shapes_replace,shapes_spatial"  # scores of all pairs are too large to be kept
REFERENCE, SUBMISSIONS = Path("results/reference"), Path("results/submissions")
TRANSFER = "study_transfer.json"

RUNS = (
    *(
        f"ttmbench --model {model} --tasks builtin --simple_match --ttm --seeds 0,1,2,3 "
        f"--output_path {REFERENCE}/{name}"
        for model, name in zip(MODELS, ("builtin.json", "builtin_seed1.json"), strict=True)
    ),
    f"ttmbench --model tiny-clip --tasks shapes_color --ttm --seeds 0,1,2,3 --output_path {REFERENCE}/first.json",
    *(
        f"ttmbench --model {model} --tasks {SUBMITTED} --ttm --seeds 0,1,2,3 --audit_labels --save_scores "
        f"--output_path {SUBMISSIONS}"
        for model in MODELS
    ),
)
"""What results/README.md states; the key ``command`` of each document is one of them."""

STUDIES = (
    "ttmbench analyze transfer --model tiny-clip --tasks builtin --seeds 0,1,2,3",
    *(f"python scripts/docs/builtin_study.py --models {model}" for model in MODELS),
)


def why_not(root: Path) -> str:
    """Why documents cannot be made here; empty if they can."""
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        return f"the checkout must be clean, and {len(changed)} files are not committed (the first: {changed[0][3:]})"
    return ""


def clear(root: Path) -> None:
    """Removes the documents that are made again, and those of the built-in models alone."""
    for path in (root / REFERENCE).glob("*"):
        if not path.name.startswith("study_methods_"):  # an hour of work: scripts/docs/methods_study.py
            path.unlink()
    for model in MODELS:
        shutil.rmtree(root / SUBMISSIONS / model, ignore_errors=True)


def run_all(root: Path, commands: Sequence[str], logs: Path) -> list[str]:
    """Carries out commands from the top of a checkout.

    Args:
        root: the checkout, whose package is run whatever is installed.
        commands: each begins with ``ttmbench`` or ``python``.
        logs: folder for what they print.

    Returns:
        What failed, a line each.
    """
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(os.cpu_count()) as pool:

        def run(number: int) -> str:
            first, *words = shlex.split(commands[number])
            program = [sys.executable, *(["-m", "ttmbench"] if first == "ttmbench" else [])]
            log, clock = logs / f"{number}.log", time.monotonic()
            with log.open("wb") as file:
                variables = {**environment, "TTMBENCH_CACHE": f"{cache}/{number}"}
                done = subprocess.run(
                    [*program, *words], cwd=root, env=variables, stdout=file, stderr=subprocess.STDOUT, check=False
                )
            print(f"{time.monotonic() - clock:6.0f} s, exit {done.returncode}: {commands[number]}", flush=True)
            return "" if done.returncode == 0 else f"exit {done.returncode}, see {log}: {commands[number]}"

        return [line for line in pool.map(run, range(len(commands))) if line]


def documents_of(root: Path) -> dict[str, ResultsDocument]:
    """The results documents of the built-in models in both folders: path from the top -> document."""
    paths = [path for path in (root / REFERENCE).glob("*.json") if not path.name.startswith("study_")]
    paths += [path for model in MODELS for path in (root / SUBMISSIONS / model).glob("results_*.json")]
    return {path.relative_to(root).as_posix(): read_document(path) for path in sorted(paths)}


def contradictions(documents: Mapping[str, ResultsDocument]) -> list[str]:
    """Where documents are of several commits or versions, or state several numbers for one thing.

    Args:
        documents: path -> document.

    Returns:
        A line for each number that one model has twice on the same data, with the same settings and seeds.
    """
    made = {
        f"commit {document.git_hash}, version {document.packages.get('ttmbench')}": where
        for where, document in documents.items()
    }
    lines = [f"{where} is of {what}" for what, where in made.items()] if len(made) > 1 else []
    known: dict[tuple[object, ...], tuple[object, str]] = {}
    for where, document in documents.items():
        for key, value in _numbers(document):
            before, first = known.setdefault(key, (value, where))
            if before != value:
                lines.append(f"{' '.join(map(str, key[:3]))}: {before} in {first}, {value} in {where}")
    return lines


def _numbers(document: ResultsDocument) -> Iterable[tuple[tuple[object, ...], Any]]:
    """Every number with what it is of: model, task, key, data, and the settings and seeds of its training."""
    for task, results in document.results.items():
        for metric, filter_ in numbers_in(results):
            record = document.training(task, filter_)
            settings, seeds = getattr(record, "hyperparameters", None), None if record is None else record.seeds
            about = (document.task_hashes[task], str(settings), str(seeds))
            for key in (f"{metric},{filter_}", stderr_key(metric, filter_), seed_std_key(metric, filter_)):
                yield (document.model_name, task, key, *about), results.get(key)


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


def make(root: Path, runs: Sequence[str], studies: Sequence[str], logs: Path) -> list[str]:
    """Makes the documents of a checkout, and says what is wrong with them; nothing if all is well."""
    wrong = why_not(root)
    if wrong:
        return [wrong]
    commit = _git(root, "rev-parse", "HEAD").strip()
    clear(root)
    failed = run_all(root, [*runs, *studies], logs)
    matrices = sorted((root / "analysis" / MODELS[0]).glob("transfer_*.json"), key=lambda path: path.stat().st_mtime)
    if matrices and studies:
        shutil.move(matrices[-1], root / REFERENCE / TRANSFER)
        for plot in matrices[-1].parent.glob(f"{matrices[-1].stem}.*"):
            plot.unlink()
    documents = documents_of(root)
    failed += [
        f"{where} is not of commit {commit}" for where, document in documents.items() if document.git_hash != commit
    ]
    return failed + contradictions(documents)


def main() -> None:
    """Makes, validates and shows; exits with what is wrong."""
    logs = ROOT / "build" / "reference"
    count = len(RUNS) + len(STUDIES)
    print(f"ttmbench {__version__}: {count} commands, {os.cpu_count()} at a time; logs in {logs}", flush=True)
    wrong = make(ROOT, RUNS, STUDIES, logs)
    wrong = wrong or run_all(ROOT, ["ttmbench validate results/submissions --complete"], logs / "validate")
    if wrong:
        sys.exit("\n".join(wrong))
    print(
        "What follows is written; screenshots of other numbers are named, and results/README.md says how to take them."
    )
    subprocess.run([sys.executable, "scripts/docs/reference.py", "write"], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
