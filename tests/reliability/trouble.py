"""Provokes trouble for real while a run is under way, and looks at what it leaves.

A small file system fills up, a folder becomes read-only or vanishes, a second process writes to the same place, a loss
stops being finite, memory runs out. Every kind must end in one clear line or go on, leave no half-written file, and,
once the trouble is over, the same command must end with the numbers of a quiet run. Mounting needs root; without it
those rows say "not run".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kills import numbers

RUN = (
    *("--model", "tiny-clip", "--tasks", "shapes_color,shapes_spatial", "--limit", "24", "--ttm", "--seeds", "0,1"),
    *("--ttm_args", "iterations=3,epochs=2", "--device", "cpu", "--bootstrap_iters", "50", "--log_samples"),
)


Change = Callable[[Path], object]
NO_SPACE = "cannot be written: No space left"


@dataclass(frozen=True)
class Ended:
    code: int
    lines: list[str]


@dataclass(frozen=True)
class Row:
    """A kind of trouble and what came of it; ``problems`` is empty if all is as it should be."""

    kind: str
    code: int | None
    line: str
    problems: list[str]


def start(*arguments: str, code: str = "") -> subprocess.Popen[str]:
    """Starts the command; ``code`` is Python to run in the process first."""
    program = f"{code}\nimport sys\nfrom ttmbench.cli import main\nsys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TTMBENCH_CACHE": "off"}  # comparable bit by bit
    words = [sys.executable, "-c", program, *RUN, *arguments]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def end(process: subprocess.Popen[str]) -> Ended:
    _, err = process.communicate(timeout=600)
    return Ended(process.returncode, [line for line in err.splitlines() if line.strip()])


def run(*arguments: str, code: str = "") -> Ended:
    return end(start(*arguments, code=code))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until something holds, or the process is over."""
    while not condition() and process.poll() is None:
        time.sleep(0.01)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def lock(folder: Path) -> None:
    subprocess.run(["chattr", "+i", str(folder)], check=True)


def unlock(folder: Path) -> None:
    subprocess.run(["chattr", "-i", str(folder)], check=True)


def vanish(folder: Path) -> None:
    shutil.rmtree(folder.rename(folder.with_name("vanished")))  # in one step for who writes to it


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def document(path: Path) -> dict:
    """A results document without times and the names of files, which differ between places."""
    content = numbers(json.loads(path.read_text(encoding="utf-8")))
    return {key: value for key, value in content.items() if key != "artifacts"}


def raw(path: Path) -> dict[tuple[str, str], float]:
    results = document(path)["results"].items()
    return {(task, key): value for task, of in results for key, value in of.items() if key.endswith(",none")}


def half_written(folder: Path) -> list[str]:
    """Files that are not whole, and temporary ones that were left behind."""
    found = [f"{path.name} was left behind" for path in folder.rglob("*.tmp")]
    for path in folder.rglob("*.json*"):
        try:
            text = path.read_text(encoding="utf-8")
            for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
                json.loads(part)
        except (ValueError, OSError) as error:
            found.append(f"{path.name} cannot be read: {error}")
    return found


class Trials:
    """Every kind of trouble, against the numbers of one quiet run."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        quiet = run("-o", str(scratch / "quiet.json"))
        if quiet.code:
            raise SystemExit("\n".join(quiet.lines))
        self._quiet = document(scratch / "quiet.json")

    def judge(self, kind: str, ended: Ended, code: int, says: str, folder: Path, again: bool = True) -> Row:
        """One row: the exit code, one clear line, whole files, and the numbers of the same command afterwards."""
        problems = [] if ended.code == code else [f"exit code {ended.code}, not {code}"]
        last = ended.lines[-1] if ended.lines else ""
        if says not in last:
            problems.append(f"the last line does not say {says!r}")
        if len(ended.lines) > 3 or not all(line.startswith("ttmbench: ") for line in ended.lines):
            problems.append(f"{len(ended.lines)} lines")  # a warning for each of the two tasks, and the error
        problems += half_written(folder) if folder.exists() else []
        if again:
            problems += self._again(folder / "x.json")
        return Row(kind, ended.code, last, problems)

    def _again(self, path: Path) -> list[str]:
        after = run("-o", str(path))
        if after.code:
            return [f"the same command again: exit code {after.code}: {' / '.join(after.lines)}"]
        return [] if document(path) == self._quiet else ["the same command again gives other numbers"]

    def full_disk(self, size: str, says: str, code: int) -> Row:
        with small_disk(self._scratch / f"disk_{size}", size) as folder:
            ended = run("-o", str(folder / "x.json"))
            remount(folder, "size=64m")
            return self.judge(f"full disk ({size})", ended, code, says, folder)

    def read_only_from_the_start(self) -> Row:
        with small_disk(self._scratch / "read_only", "1m") as folder:
            remount(folder, "ro")
            ended = run("-o", str(folder / "x.json"))
            remount(folder, "rw,size=64m")
            return self.judge("read-only folder", ended, 2, "cannot be written to", folder)

    def changed_on_the_way(self, kind: str, change: Change, says: str, undo: Change | None = None) -> Row:
        """The folder is changed between two iterations."""
        folder = self._scratch / kind.replace(" ", "_")
        process = start("-o", str(folder / "x.json"))
        wait_for(lambda: any(folder.rglob("iteration_1.safetensors")), process)
        change(folder)
        try:
            ended = end(process)
        finally:
            if undo is not None:
                undo(folder)
        if ended.code == 0 and undo is None:  # it is gone, but a checkpoint that was being written made the folder anew
            return self.judge(kind, ended, 0, "", folder)
        return self.judge(kind, ended, 2, f"cannot be written: {says}", folder)

    def second_process(self) -> Row:
        """Two runs name one file; the first goes on undisturbed."""
        folder = self._scratch / "two"
        first = start("-o", str(folder / "x.json"))
        wait_for(lambda: (folder / "x.json").exists(), first)
        second = run("-o", str(folder / "x.json"))
        code = end(first).code
        row = self.judge("second process", second, 2, "another run is writing to", folder)
        return row if code == 0 else Row(row.kind, row.code, row.line, [*row.problems, f"the first ended with {code}"])

    def not_finite(self) -> Row:
        """A learning rate that blows the model up: raw numbers and good iterations stay."""
        folder = self._scratch / "nan"
        code = (
            "import ttmbench.ttm.finetune as f; real = f.cosine_within_iteration; calls = []\n"
            "f.cosine_within_iteration = lambda *a: (calls.append(1), real(*a) * (1e30 if len(calls) > 3 else 1))[1]"
        )
        ended = run("-o", str(folder / "x.json"), code=code)
        row = self.judge("loss is not finite", ended, 1, "are NaN or infinite", folder, again=False)
        if "group_match,none" not in document(folder / "x.json")["results"].get("shapes_color", {}):
            row.problems.append("raw numbers were lost")
        if not any(folder.rglob("training.safetensors")):
            row.problems.append("no good state was kept")
        row.problems.extend(self._again(folder / "x.json"))
        return row

    def out_of_memory(self) -> Row:
        """The process may take little more memory than it has when scoring begins; how little is found by trying."""
        code = (
            "import resource, ttmbench.evaluator.score_task as o; real = o.PreparedTask.score\n"
            "def score(self, *rest):\n"
            "    size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
            "    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM * 2**20, -1))\n"
            "    scores = real(self, *rest)\n"
            "    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
            "    return scores\n"
            "o.PreparedTask.score = score"
        )
        for room in (96, 64, 48, 40, 32, 24, 16):
            folder = self._scratch / f"memory_{room}"
            arguments = ("-o", str(folder / "x.json"), "--limit", "200", "--batch_size", "256")
            ended = run(*arguments, code=code.replace("ROOM", str(room)))
            if ended.lines and ended.code == 0:
                break
        problems = [] if ended.code == 0 and ended.lines else [f"exit code {ended.code} with {len(ended.lines)} lines"]
        problems += [line for line in ended.lines if "out of memory with" not in line] + half_written(folder)
        quiet = run("-o", str(folder / "quiet.json"), "--limit", "200")
        if not problems and (quiet.code or raw(folder / "x.json") != raw(folder / "quiet.json")):
            problems.append("raw numbers differ from a quiet run's")
        return Row(f"memory limit ({room} MB more)", ended.code, ended.lines[-1] if ended.lines else "", problems)

    def clock_jumps(self) -> Row:
        """The clock goes back by a day while the run is under way."""
        folder = self._scratch / "clock"
        code = (
            "import time, datetime, itertools; real = time.time; calls = itertools.count()\n"
            "time.time = lambda: real() - 86400 * (next(calls) > 5)\n"
        )
        ended = run("-o", str(folder / "x.json"), code=code)
        wrong = [] if ended.code == 0 else [f"exit code {ended.code}"]
        if not wrong and '"total_evaluation_time_seconds": -' in (folder / "x.json").read_text(encoding="utf-8"):
            wrong.append("a negative duration")
        wrong += half_written(folder) + self._again(folder / "x.json")
        return Row("clock goes back a day", ended.code, "goes on", wrong)

    def all(self) -> Iterator[Row]:
        full = [
            ("8k", NO_SPACE, 2),
            ("64k", NO_SPACE, 2),
            ("1m", NO_SPACE, 2),
            ("1500k", "the run continues", 0),
        ]
        trials = [(f"full disk ({each[0]})", partial(self.full_disk, *each)) for each in full]
        turns = partial(self.changed_on_the_way, "folder turns immutable", lock, "Operation not permitted", unlock)
        trials += [("read-only folder", self.read_only_from_the_start), ("folder turns immutable", turns)]
        for kind, trial in trials:
            yield trial() if can_mount(self._scratch) else Row(kind, None, "not run: mounting needs root", [])
        yield self.changed_on_the_way("folder vanishes", vanish, "No such file")
        yield self.second_process()
        yield self.not_finite()
        yield self.out_of_memory()
        yield self.clock_jumps()


def can_mount(scratch: Path) -> bool:
    try:
        with small_disk(scratch / "probe", "4k"):
            pass
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        shutil.rmtree(scratch / "probe", ignore_errors=True)
    return True


def main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as name:
        rows = []
        print("| trouble | exit code | what the user reads | problems |\n|---|---:|---|---|")
        for row in Trials(Path(name)).all():
            rows.append(row)
            code = "" if row.code is None else row.code
            line = row.line.replace(name, "...").removeprefix("ttmbench: ")
            print(f"| {row.kind} | {code} | {line} | {'; '.join(row.problems) or 'none'} |", flush=True)
    if options.json:
        content = [vars(row) for row in rows]
        Path(options.json).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return int(any(row.problems for row in rows))
