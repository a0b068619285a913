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
from pathlib import Path
from typing import Any

from kills import numbers

RUN = (
    *("--model", "tiny-clip", "--tasks", "shapes_color,shapes_spatial", "--limit", "24", "--ttm", "--seeds", "0,1"),
    *("--ttm_args", "iterations=3,epochs=2", "--device", "cpu", "--bootstrap_iters", "50", "--log_samples"),
)


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


def environment() -> dict[str, str]:
    """One thread, so that runs are comparable bit by bit."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TTMBENCH_CACHE": "off"}


def start(*arguments: str, code: str = "") -> subprocess.Popen[str]:
    program = f"{code}\nimport sys\nfrom ttmbench.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", program, *RUN, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def end(process: subprocess.Popen[str]) -> Ended:
    _, told = process.communicate(timeout=600)
    return Ended(process.returncode, [line for line in told.splitlines() if line.strip()])


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


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def numbers_in(content: dict[str, Any]) -> Any:
    return numbers({key: value for key, value in content.items() if key != "artifacts"})


def document(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


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


def differing(one: dict[str, Any], other: dict[str, Any]) -> int:
    """How many raw metrics of two documents differ."""
    return sum(
        value != other["results"][task][key]
        for task, numbers_of in one["results"].items()
        for key, value in numbers_of.items()
        if key.endswith(",none")
    )


class Trials:
    """Every kind of trouble, against the numbers of one quiet run."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        quiet = run("-o", str(scratch / "quiet.json"))
        if quiet.code:
            raise SystemExit("\n".join(quiet.lines))
        self._quiet = numbers_in(document(scratch / "quiet.json"))

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
        return [] if numbers_in(document(path)) == self._quiet else ["the same command again gives other numbers"]

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

    def locked_on_the_way(self) -> Row:
        folder = self._scratch / "locked"
        process = start("-o", str(folder / "x.json"))
        wait_for(lambda: any(folder.rglob("iteration_1.safetensors")), process)
        subprocess.run(["chattr", "+i", str(folder)], check=True)
        try:
            ended = end(process)
        finally:
            subprocess.run(["chattr", "-i", str(folder)], check=True)
        return self.judge("folder turns immutable", ended, 2, "cannot be written: Operation not permitted", folder)

    def vanishes(self) -> Row:
        folder = self._scratch / "vanishes"
        process = start("-o", str(folder / "x.json"))
        wait_for(lambda: any(folder.rglob("iteration_1.safetensors")), process)
        shutil.rmtree(folder)
        ended = end(process)
        if ended.code == 0:  # a checkpoint that was just being written made the folder anew: nothing is wrong then
            return self.judge("folder vanishes", ended, 0, "", folder)
        return self.judge("folder vanishes", ended, 2, "cannot be written: No such file", folder)

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
        code = "import ttmbench.ttm.finetune as f; real = f.cosine_within_iteration; calls = []\n"
        code += (
            "f.cosine_within_iteration = lambda *a: (calls.append(1), real(*a) * (1e30 if len(calls) > 3 else 1))[1]"
        )
        ended = run("-o", str(folder / "x.json"), code=code)
        row = self.judge("loss is not finite", ended, 1, "are NaN or infinite", folder, again=False)
        kept = document(folder / "x.json")
        problems = list(row.problems)
        if "group_match,none" not in kept["results"].get("shapes_color", {}):
            problems.append("raw numbers were lost")
        if not any(folder.rglob("training.safetensors")):
            problems.append("no good state was kept")
        return Row(row.kind, row.code, row.line, problems + self._again(folder / "x.json"))

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
        says = "out of memory with"
        problems = [] if ended.code == 0 and ended.lines else [f"exit code {ended.code} with {len(ended.lines)} lines"]
        problems += [line for line in ended.lines if says not in line] + half_written(folder)
        quiet = run("-o", str(folder / "quiet.json"), "--limit", "200")
        if not problems and (quiet.code or differing(document(folder / "x.json"), document(folder / "quiet.json"))):
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
        if not wrong and document(folder / "x.json")["total_evaluation_time_seconds"] < 0:
            wrong.append("a negative duration")
        return Row(
            "clock goes back a day",
            ended.code,
            "goes on",
            wrong + half_written(folder) + self._again(folder / "x.json"),
        )

    def all(self) -> Iterator[Row]:
        mounted: list[tuple[str, Callable[[], Row]]] = [
            ("full disk (8k)", lambda: self.full_disk("8k", "cannot be written: No space left", 2)),
            ("full disk (64k)", lambda: self.full_disk("64k", "cannot be written: No space left", 2)),
            ("full disk (1m)", lambda: self.full_disk("1m", "cannot be written: No space left", 2)),
            ("full disk (1500k)", lambda: self.full_disk("1500k", "the test-time stage goes on", 0)),
            ("read-only folder", self.read_only_from_the_start),
            ("folder turns immutable", self.locked_on_the_way),
        ]
        for kind, trial in mounted:
            yield trial() if can_mount(self._scratch) else Row(kind, None, "not run: mounting needs root", [])
        yield self.vanishes()
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
