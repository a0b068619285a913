"""Kills drivers, workers and nodes of sweeps at random moments until they are done, and counts what that cost.

A sweep of two models on three tasks with two seeds of TTM is begun, and at moments drawn at random something of it is
killed with SIGKILL: its driver, one of its worker processes, or, on a Ray cluster, a node with all that is on it. After
a killed driver the same command is given again. Counted are units that no document has in the end, seeds and cells that
were finished and done a second time, numbers that differ from single runs, and files left over.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from kills import differing, numbers, report

PLAN = {
    "models": ["tiny-clip", {"model": "tiny-clip", "name": "tiny-other", "model_args": {"training_seed": 1}}],
    "tasks": ["shapes_color", "shapes_spatial", "shapes_color_global"],
    "options": {
        "limit": 16,
        "ttm": True,
        "ttm_args": {"iterations": 3, "epochs": 2},
        "seeds": [0, 1],
        "bootstrap_iters": 20,
        "device": "cpu",
        "deterministic": True,
    },
}
COMMAND = [sys.executable, "-c", "from ttmbench.cli import main; raise SystemExit(main())", "sweep"]
SEEDS = 2
OTHERS = {"artifacts": {}}  # no numbers: digests of files with times
KILLS = 3  # at most in one life of a driver; a cell fails when three workers were lost with one unit of it


@dataclass
class Count:
    """What was seen; all but the first six should be 0."""

    kills: int = 0
    drivers: int = 0
    workers: int = 0
    nodes: int = 0
    sweeps: int = 0
    finished: int = 0
    units_lost: int = 0
    units_done_twice: int = 0
    numbers_that_differ: int = 0
    unreadable_summaries: int = 0
    files_left_over: int = 0
    drivers_that_failed: int = 0


class Local:
    """Worker processes of this machine."""

    targets = ("driver", "worker", "worker")

    def command(self, plan: Path, out: Path) -> list[str]:
        return [*COMMAND, str(plan), "-o", str(out), "--workers", "2"]

    def kill(self, target: str, driver: int, rng: random.Random) -> bool:
        """Whether there was something to kill."""
        return _kill(rng.choice(_children(driver) or [0]))


class OnRay:
    """A Ray cluster of a head and a second node, which is replaced when it was killed."""

    targets = ("driver", "worker", "node")

    def __init__(self, made) -> None:
        self._made, self._nodes = made, 1

    def command(self, plan: Path, out: Path) -> list[str]:
        given = f"address={self._made.address}"
        return [*COMMAND, str(plan), "-o", str(out), "--executor", "ray", "--executor_args", given]

    def kill(self, target: str, driver: int, rng: random.Random) -> bool:
        from support.ray_clusters import add_node

        if target == "worker":
            every = [child for node in _children(os.getpid()) for child in _children(node)]
            actors = [child for child in every if "ray::SweepWorker" in _read(f"/proc/{child}/cmdline")]
            return _kill(rng.choice(actors or [0]))
        self._made.remove_node(next(iter(self._made.worker_nodes)), allow_graceful=False)
        self._nodes += 1
        add_node(self._made, self._nodes % 200)
        return True


def sweep_until_done(
    where: Local | OnRay, folder: Path, plan: Path, duration: float, rng: random.Random, count: Count, most: int
) -> bool:
    """One sweep with kills until it is done; whether its driver ended well."""
    out, before = folder / "out", Counter[str]()
    while True:
        with (folder / "log").open("ab") as log:
            driver = subprocess.Popen(where.command(plan, out), stdout=log, stderr=log, start_new_session=True)
        killed: str | None = None
        for _ in range(KILLS):
            target = rng.choice(where.targets)
            if killed == "driver" or count.kills >= most or not _runs_after(driver, rng.uniform(0, duration / 2)):
                break
            if _kill(driver.pid) if target == "driver" else where.kill(target, driver.pid, rng):
                killed = target
                count.kills += 1
                setattr(count, f"{target}s", getattr(count, f"{target}s") + 1)
        code = driver.wait()
        count.units_done_twice += look(out, before, count)
        if code == 0:
            return True
        if killed != "driver":
            count.drivers_that_failed += 1
            return False


def look(out: Path, before: Counter[str], count: Count) -> int:
    """How many files of finished units changed or vanished since ``before``, which becomes what is finished now."""
    summary = out / "sweep.json"
    if summary.exists():
        try:
            json.loads(summary.read_text(encoding="utf-8"))
        except ValueError:
            count.unreadable_summaries += 1
    now = {}
    for path in [*out.rglob("final.safetensors"), *out.rglob("results.json")]:
        with suppress(FileNotFoundError, ValueError):
            stamp = path.stat().st_mtime_ns
            if path.suffix == ".safetensors" or json.loads(path.read_text(encoding="utf-8")).get("status") == "done":
                now[str(path)] = stamp
    changed = 0
    for name, stamp in before.items():
        # A seed's last file is removed when its cell is done, and only then.
        is_removed = name.endswith("final.safetensors") and f"{name.partition('/.')[0]}/results.json" in now
        changed += now[name] != stamp if name in now else not is_removed
    before.clear()
    before.update(now)
    return changed


def _children(parent: int) -> list[int]:
    """Processes that a process has begun."""
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [one for one in every if _read(f"/proc/{one}/stat").rpartition(")")[2].split()[1:2] == [str(parent)]]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kill(process: int) -> bool:
    with suppress(ProcessLookupError):
        if process:
            os.kill(process, signal.SIGKILL)
            return True
    return False


def _runs_after(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


@contextmanager
def place(executor: str, scratch: Path) -> Iterator[Local | OnRay]:
    if executor == "local":
        yield Local()
        return
    from support.ray_clusters import cluster

    with cluster(scratch / "ray_cache") as made:
        yield OnRay(made)


def main(options: argparse.Namespace) -> int:
    rng, count = random.Random(options.seed), Count()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = scratch / "plan.yaml"
        plan.write_text(yaml.safe_dump(PLAN), encoding="utf-8")
        expected = single_runs(plan, scratch / "alone")
        os.environ["TTMBENCH_CACHE"] = str(scratch / "cache")
        where = stack.enter_context(place(options.executor, scratch))
        clock = time.monotonic()
        quiet = scratch / "quiet"
        quiet.mkdir()
        if not sweep_until_done(where, quiet, plan, 0.0, rng, Count(kills=1), 0):
            print((quiet / "log").read_text(encoding="utf-8"), file=sys.stderr)
            return 1
        duration = time.monotonic() - clock
        files = {path.relative_to(quiet) for path in (quiet / "out").rglob("*") if path.is_file()}
        while count.kills < options.kills:
            folder = scratch / f"sweep_{count.sweeps}"
            folder.mkdir()
            if options.executor == "local":
                os.environ["TTMBENCH_CACHE"] = str(folder / "cache")  # each sweep scores anew
            kills, clock = count.kills, time.monotonic()
            well = sweep_until_done(where, folder, plan, duration, rng, count, options.kills)
            if kills == count.kills:  # other work on the machine has ended since
                duration = min(duration, time.monotonic() - clock)
            count.sweeps += 1
            judge(folder, expected, files, count)
            if not well:
                print((folder / "log").read_text(encoding="utf-8"), file=sys.stderr)
                break
            print(f"{count.kills} kills, {count.sweeps} sweeps", file=sys.stderr, flush=True)
    about = f"kills at random moments (executor {options.executor}, seed {options.seed}; {duration:.1f} s without)"
    report(asdict(count), about, options.json)
    return int(any(list(asdict(count).values())[6:]))


def single_runs(plan: Path, folder: Path) -> dict[str, dict]:
    """Cell -> the numbers of its document by an ordinary run."""
    from ttmbench.evaluator.run import run
    from ttmbench.sweep.plan import expand, read_plan

    found = {}
    for one in expand(read_plan(plan), plan.name, {}):
        run(one.cell.config_at(folder).model_copy(update={"use_cache": str(folder / "cache")}))
        found[one.cell.document] = numbers(json.loads((folder / one.cell.document).read_text(encoding="utf-8")))
    return found


def judge(folder: Path, expected: dict[str, dict], files: set[Path], count: Count) -> None:
    """What a sweep that is over has, and what it should not have."""
    for name, numbers_alone in expected.items():
        path = folder / "out" / name
        if not path.exists() or json.loads(path.read_text(encoding="utf-8"))["status"] != "done":
            count.units_lost += 1
            continue
        count.finished += 1 + SEEDS
        found = numbers(json.loads(path.read_text(encoding="utf-8")))
        count.numbers_that_differ += differing({**numbers_alone, **OTHERS}, {**found, **OTHERS})
    here = {path.relative_to(folder) for path in (folder / "out").rglob("*") if path.is_file()}
    count.files_left_over += len({path for path in here - files if "logs" not in path.parts})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=50, help="how often to kill (default: 50)")
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help="where workers are")
