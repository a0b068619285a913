"""Broken and hostile files: valid ones are changed at random and read as a user's files are.

Every file goes through the command line's own entry (`ttmbench.cli.main`, in this process for speed) or, where a
command would need a model or a network, through the function beneath it; the table says which. Looked for are
tracebacks, wrong numbers, files touched outside the working folder, processes started, sockets opened, and files that
take too much time or memory. Each format runs in a process of its own, so that a crash is seen and counted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import mutations

if TYPE_CHECKING:
    from fuzz_formats import Format, Outcome

SECONDS, BYTES = 10.0, 1 << 30
COLUMNS = ("files", "accepted", "refused", "tracebacks", "wrong numbers", "touched outside", "too long or large")
_WRITES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile")
_NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname")


class TooSlow(BaseException):
    """A file took longer than it may; nothing that catches Exception stops it."""


class Watch:
    """Notes what a file makes the process do, while it is on."""

    def __init__(self, base: Path) -> None:
        self.allowed = [str(base / name) + os.sep for name in ("work", "cache")]
        self.sentinel = str(base / "sentinel")
        self.seen: list[str] = []
        _listen()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        global _watching
        self.seen, _watching = [], self
        try:
            yield
        finally:
            _watching = None

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in _STARTS or event in _NETWORK:
            self.seen.append(f"{event} {arguments[:2]!r}"[:200])
        elif event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self._check("open", path, bool(writes))
        elif event in _WRITES:
            for path in arguments[:2]:
                self._check(event, path, event != "os.symlink" or path is arguments[1])

    def _check(self, event: str, path: object, writing: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        if full.startswith(self.sentinel) or (
            writing and full != os.devnull and not any((full + os.sep).startswith(one) for one in self.allowed)
        ):
            self.seen.append(f"{event} {full}"[:200])


_watching: Watch | None = None


@functools.cache
def _listen() -> None:
    """Adds the process's one audit hook: nothing removes a hook, and it is called whenever anything asks for an id."""

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if _watching is not None:
            _watching.hear(event, arguments)

    sys.addaudithook(hear)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=int, default=10_000, help="mutated files, of all formats together")
    parser.add_argument("--only", action="append", help="name of a format; may be given several times")
    parser.add_argument("--show", type=int, default=5, help="faults that are printed for each format")
    parser.add_argument("--in_this_process", action="store_true", help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> int:
    from fuzz_formats import FORMATS

    from ttmbench.plugins import manager

    manager.entry_points = functools.cache(manager.entry_points)  # type: ignore[assignment]  # no file installs a plugin
    chosen = [one for one in FORMATS if not options.only or one.name in options.only]
    if not chosen:
        print(f"no such format; known: {', '.join(one.name for one in FORMATS)}", file=sys.stderr)
        return 2
    shares = sum(one.share for one in chosen)
    counts = {one.name: round(options.files * one.share / shares) for one in chosen}
    counts[chosen[0].name] += options.files - sum(counts.values())
    rows = []
    print(f"{options.files} files, seed {options.seed}\n")
    print("| " + " | ".join(["format", "way", *COLUMNS, "slowest"]) + " |")
    print("|---|---|" + "---:|" * (len(COLUMNS) + 1))
    for one in chosen:
        put = fuzz if options.in_this_process else _in_a_process
        row = {"format": one.name, "way": one.way, **put(one, counts[one.name], options.seed)}
        rows.append(row)
        print(_line(row), *(f"    {fault}" for fault in row["faults"][: options.show]), sep="\n", flush=True)
    total = {name: sum(row[name] for row in rows) for name in COLUMNS}
    rows.append({"format": "all", "way": "", **total, "slowest": max(row["slowest"] for row in rows), "faults": []})
    print(_line(rows[-1]))
    if options.json:
        report = {"files": options.files, "seed": options.seed, "seconds": SECONDS, "bytes": BYTES, "rows": rows}
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if any(total[name] for name in COLUMNS[3:]) else 0


def _line(row: dict) -> str:
    cells = " | ".join(str(row[name]) for name in COLUMNS)
    return f"| {row['format']} | {row['way']} | {cells} | {row['slowest']:.2f} s |"


def _in_a_process(one: Format, count: int, seed: int) -> dict:
    """One format in a process of its own; a process that dies is a fault of its last file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, str(Path(__file__).with_name("faults.py")), "fuzz", "--in_this_process"]
        command += ["--only", one.name, "--files", str(count), "--seed", str(seed), "--json", str(report)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if report.exists():
            return json.loads(report.read_text(encoding="utf-8"))["rows"][0]
    crash = f"the process ended with {done.returncode}: {done.stderr[-400:]}"
    return {**dict.fromkeys(COLUMNS, 0), "files": count, "tracebacks": 1, "slowest": 0.0, "faults": [crash]}


@contextlib.contextmanager
def grounds() -> Iterator[Path]:
    """A working folder, in which the process stands, and beside it a tree that nothing may touch."""
    before, variables = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name).resolve()
        for folder in ("work", "cache", "sentinel"):
            (base / folder).mkdir()
        (base / "sentinel" / "secret.txt").write_text("nobody reads this\n")
        (base / "sentinel" / "secret.yaml").write_text("task: stolen\n")
        cache = str(base / "cache")
        os.environ.update(HF_HOME=cache, TTMBENCH_DATA=f"{cache}/data", TMPDIR=cache, XDG_CACHE_HOME=cache)
        os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="120")
        tempfile.tempdir = None
        os.chdir(base / "work")
        try:
            yield base
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)
            tempfile.tempdir = None


def fuzz(one: Format, count: int, seed: int) -> dict:
    """Mutates and reads files of a format; the counts of the table, the slowest file's seconds, and what was found.

    A file's number and the seed give its content again.
    """
    from ttmbench._util import machine

    tally: Counter[str] = Counter(dict.fromkeys(COLUMNS, 0))
    faults: list[str] = []
    slowest = 0.0
    machine.git_hash, kept = (lambda: None), machine.git_hash  # the one process that a run starts itself
    try:
        with grounds() as base:
            watch = Watch(base)
            for warm in ("a", "b"):  # imports, caches; and a format whose valid files are refused would test nothing
                first = one.put(_fresh(base), one.make(random.Random(warm)))
                if not first.accepted or first.wrong or first.tracebacks:
                    raise RuntimeError(f"a valid file of {one.name} is not read as it should be: {first}")
            before = _snapshot(base)
            for number in range(count):
                key = f"{seed} {one.name} {number}"
                content, good, kind = _draw(one, random.Random(key))
                folder = _fresh(base)
                with watch.on():
                    clock = time.perf_counter()
                    outcome, trouble = _guarded(one, folder, content)
                    seconds = time.perf_counter() - clock
                slowest = max(slowest, seconds)
                found: dict[str, list[str]] = {
                    "tracebacks": outcome.tracebacks if outcome else [],
                    "wrong numbers": outcome.wrong if outcome else [],
                    "too long or large": trouble,
                    "touched outside": list(watch.seen),
                }
                if kind == "neutral" and outcome and not trouble:
                    expected = one.put(_fresh(base), good)
                    if (expected.accepted, expected.numbers) != (outcome.accepted, outcome.numbers):
                        found["wrong numbers"].append(f"a change without meaning changed what came out: {outcome.said}")
                after = _snapshot(base)
                if after != before:
                    found["touched outside"].append("the tree beside the working folder changed")
                    before = after
                tally["files"] += 1
                tally["accepted" if outcome and outcome.accepted else "refused"] += 1
                for name, what in found.items():
                    tally[name] += bool(what)
                    faults += [f"{name}: file {number} ({kind}): {text}" for text in what[:1]]
    finally:
        machine.git_hash = kept
    return {**tally, "slowest": slowest, "faults": faults}


def _draw(one: Format, rng: random.Random) -> tuple[bytes, bytes, str]:
    good = one.make(rng)
    kinds = ["bytes"] * 5 + ["meaning"] * (4 if one.meaning else 0) + ["neutral"] * (1 if one.neutral else 0)
    kind = rng.choice(kinds)
    if kind == "bytes":
        return mutations.bytes_mutated(good, one.make(rng), rng), good, kind
    return (one.meaning if kind == "meaning" else one.neutral)(good, rng), good, kind


def _guarded(one: Format, folder: Path, content: bytes) -> tuple[Outcome | None, list[str]]:
    """The outcome of a file, or what it took too much of."""

    def ring(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, ring)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        outcome = one.put(folder, content)
    except TooSlow:
        return None, [f"more than {SECONDS:g} s"]
    except MemoryError:
        return None, [f"more than {BYTES} bytes"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    if any("MemoryError" in text for text in (*outcome.tracebacks, outcome.said)):
        return outcome, [f"more than {BYTES} bytes"]
    return outcome, []


_made = 0


def _fresh(base: Path) -> Path:
    """An empty folder of its own below the working folder: names are not used again, since some caches go by them."""
    global _made
    for old in (base / "work").iterdir():
        shutil.rmtree(old)
    _made += 1
    folder = base / "work" / f"file{_made}"
    folder.mkdir()
    return folder


def _snapshot(base: Path) -> list[tuple[str, str]]:
    """Everything beside the working folder and the caches: names and digests."""
    listed = [path for path in base.iterdir() if path.name not in ("work", "cache")]
    listed += [path for folder in listed for path in folder.rglob("*")]
    return sorted(
        (str(path), hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "") for path in listed
    )
