"""Kills a run of several tasks at random moments until it is done, again and again, and counts what that cost.

A run with TTM, SimpleMatch's step and held-out groups is forked off, killed with SIGKILL at a moment drawn at random,
and given again until it ends. Counted are finished units that were done a second time (iterations of TTM that a plugin
had been told of, tasks that the document called done), numbers that differ from an undisturbed run, documents and files
that could not be read between two lives, and files left over at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from ttmbench.hookspecs import hookimpl

TIMES = {
    *(
        "date",
        "timing",
        "efficiency",
        "total_evaluation_time_seconds",
        "seconds",
        "hardware",
        "command",
        "config",
        "from_store",
    ),
    "git_hash",  # the checkout may get a commit meanwhile
}
TASKS = "shapes_color,shapes_spatial,shapes_color_global"


@dataclass
class Count:
    """What was seen; all but the first three should be 0."""

    kills: int = 0
    runs: int = 0
    iterations: int = 0
    units_done_twice: int = 0
    numbers_that_differ: int = 0
    unreadable_files: int = 0
    files_left_over: int = 0
    lives_that_failed: int = 0


class Journal:
    """A plugin that writes down every iteration that it is told of; a line survives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @hookimpl
    def ttmbench_iteration_finished(self, task: str, record) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{task} {record.seed} {record.iteration}\n")


def evaluate(folder: Path) -> None:
    import ttmbench

    ttmbench.simple_evaluate(
        "tiny-clip",
        TASKS,
        ttm={"iterations": 3, "epochs": 2, "keep_optimizer_state": True},
        simple_match=True,
        ttm_holdout=0.5,
        seeds=[0, 1],
        limit=16,
        log_samples=True,
        save_scores=True,
        bootstrap_iters=50,
        device="cpu",
        use_cache=str(folder.parent / f"{folder.name}.cache"),
        output_path=str(folder / "x.json"),
        plugins=[("journal", Journal(folder.parent / f"{folder.name}.journal"))],
    )


def live(folder: Path, seconds: float | None) -> int:
    """Runs the command in a child process that is killed after so long; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        log = os.open(folder.parent / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 1
        try:
            evaluate(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def numbers(value):
    """A document without what differs from run to run."""
    if isinstance(value, dict):
        return {key: numbers(inner) for key, inner in value.items() if key not in TIMES}
    return [numbers(inner) for inner in value] if isinstance(value, list) else value


def look(folder: Path) -> tuple[dict[str, object], int]:
    """The document between two lives, and how many of the files that it names are not as it says."""
    path = folder / "x.json"
    if not path.exists():
        return {}, 0
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}, 1
    files = ((folder / name, about["sha256"]) for name, about in document["artifacts"].items())
    wrong = (not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest for file, digest in files)
    return document, sum(wrong)


def differing(one: object, other: object) -> int:
    """How many values of two documents are not the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        return sum(differing(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return sum(map(differing, one, other))
    return int(one != other)


def kill_until_done(folder: Path, duration: float, rng: random.Random, count: Count, most: int) -> None:
    """Lives of one run until it is done, each killed at a moment of an undisturbed one; no kill beyond ``most``."""
    done: set[str] = set()
    document: dict = {}
    while document.get("status") != "done":
        code = live(folder, rng.uniform(0, duration) if count.kills < most else None)
        count.kills += code == -signal.SIGKILL
        document, wrong = look(folder)
        count.unreadable_files += wrong
        finished = {task for task, status in document.get("task_status", {}).items() if status == "done"}
        count.units_done_twice += len(done - finished)
        done = finished
        if code not in (0, -signal.SIGKILL):
            count.lives_that_failed += 1
            return


def main(options: argparse.Namespace) -> int:
    import torch

    import ttmbench.evaluator.run  # noqa: F401 - forked children need not import it again

    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng, count = random.Random(options.seed), Count()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        quiet = scratch / "quiet"
        quiet.mkdir()
        durations = []
        for _ in range(3):  # the first reads files that the others find in memory
            shutil.rmtree(quiet)
            quiet.mkdir()
            clock = time.monotonic()
            if live(quiet, None) != 0:
                print((scratch / "quiet.log").read_text(encoding="utf-8"), file=sys.stderr)
                return 1
            durations.append(time.monotonic() - clock)
        duration = min(durations)
        expected, files = numbers(look(quiet)[0]), {path.name for path in quiet.iterdir()}
        while count.kills < options.kills:
            folder = scratch / f"run_{count.runs}"
            folder.mkdir()
            kill_until_done(folder, duration, rng, count, options.kills)
            count.runs += 1
            journal = (scratch / f"{folder.name}.journal").read_text(encoding="utf-8").splitlines()
            count.iterations += len(set(journal))
            count.units_done_twice += len(journal) - len(set(journal))
            count.numbers_that_differ += differing(expected, numbers(look(folder)[0]))
            count.files_left_over += len({path.name for path in folder.iterdir()} - files)
            if count.lives_that_failed:
                print((scratch / f"{folder.name}.log").read_text(encoding="utf-8"), file=sys.stderr)
                break
            if sys.stderr.isatty():
                print(f"\r{count.kills} kills, {count.runs} runs", end="", file=sys.stderr)
    about = f"kills at random moments (seed {options.seed}; an undisturbed run takes {duration:.1f} s)"
    report(asdict(count), about, options.json)
    return int(any(list(asdict(count).values())[3:]))


def report(counted: dict[str, int], about: str, path: str | None) -> None:
    """Prints a table, and writes JSON if asked for."""
    print(f"| {about} | |\n|---|---:|")
    for key, value in counted.items():
        print(f"| {key.replace('_', ' ')} | {value} |")
    if path is not None:
        Path(path).write_text(json.dumps(counted, indent=2) + "\n", encoding="utf-8")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=200, help="how often to kill (default: 200)")
