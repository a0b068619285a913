"""Mutation tests of the code that decides numbers.

Draws changes of single places (`mutation_operators.py` says which) in the files of `AREAS`, applies each to a copy of
the checkout and runs the tests of that file there. A mutant is caught if a test fails, or if the tests exceed their
time limit: three times what they take of a CPU without a mutant, and ten seconds.

Survivors that change no result are listed, each with its reason, in `mutants_equivalent.yaml`. The exit code is 1 if
fewer than 95 % of all mutants are caught, or if a survivor has no reason there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from mutation_operators import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.yaml")
REQUIRED = 0.95
Stages = Sequence[Sequence[str]]


def _tests(folder: str, *names: str) -> list[str]:
    return [f"tests/{folder}/test_{name}.py" for name in names]


_CORE = _tests("ttm", "core", "core_training", "core_variants", "algorithm", "naive_variants")
AREAS: tuple[tuple[str, Stages], ...] = (
    ("ttmbench/metrics.py", [_tests("array_api", "bounds", "metrics", "group_shapes", "matching")]),
    ("ttmbench/matching.py", [_tests("array_api", "bounds", "matching", "group_shapes", "metrics")]),
    ("ttmbench/chance.py", [_tests("array_api", "bounds", "metrics", "group_shapes")]),
    ("ttmbench/schedules.py", [_tests("array_api", "bounds", "schedules")]),
    ("ttmbench/stats.py", [_tests("array_api", "stats", "clustered_stats")]),
    ("ttmbench/_arrays.py", [_tests("array_api", "bounds", "matching", "group_shapes", "metrics")]),
    *(
        (f"ttmbench/methods/{name}.py", [_CORE, _tests("ttm", "variants", "pair_models", "checkpoint", "ties")])
        for name in ("ttm", "overfit", "oracle", "controls", "model_task", "parts", "training", "parameters")
    ),
    ("ttmbench/evaluator/output.py", [_tests("evaluator", "run_key"), _tests("evaluator", "resume")]),
    ("ttmbench/evaluator/score_cache*.py", [_tests("cache", "key")]),
)
"""Files, and the tests that are run for them, one stage after the other until one fails; doctests come first."""

# Imported once, before the processes that run tests are forked.
WARM = (
    "scipy.stats scipy.optimize scipy.sparse.csgraph torch torchvision transformers pandas pydantic PIL.Image yaml "
    "pytest jaxtyping beartype hypothesis.extra.numpy pluggy filelock"
).split()


def files(root: Path = ROOT) -> dict[str, Stages]:
    """Path of every file that is mutated -> the tests that are run for it."""
    return {
        path.relative_to(root).as_posix(): stages for pattern, stages in AREAS for path in sorted(root.glob(pattern))
    }


def read_equivalent(path: Path = EQUIVALENT) -> dict[tuple[str, str, str, str], str]:
    """Key of a mutant -> why it changes no result.

    An entry names a file, the function, the line as it is and what it becomes, spaces and line breaks as single spaces.
    """
    return {
        (file, entry["in"], entry["line"], after): entry["reason"]
        for file, entries in yaml.safe_load(path.read_text(encoding="utf-8")).items()
        for entry in entries
        for after in ([entry["after"]] if isinstance(entry["after"], str) else entry["after"])
    }


@dataclass
class Worker:
    """A copy of the checkout, and the tests that run in it."""

    folder: Path
    mutant: Mutant | None = None
    stages: list[tuple[str, ...]] = field(default_factory=list)
    pid: int = 0
    source: bytes = b""

    @property
    def log(self) -> Path:
        """What the last tests printed."""
        return self.folder.with_suffix(".log")

    def apply(self, mutant: Mutant) -> None:
        """Changes the copy."""
        path, self.mutant = self.folder / mutant.file, mutant
        self.source = path.read_bytes()
        path.write_bytes(mutant.apply(self.source))
        os.utime(path, (1, 1))  # no compiled file is of that time

    def restore(self) -> Mutant:
        """Takes the mutant back and returns it."""
        assert self.mutant is not None, "one was applied"
        (self.folder / self.mutant.file).write_bytes(self.source)
        return self.mutant

    def start(self, seconds: int) -> None:
        """Forks a process for the next stage, with a limit of CPU time, and one of the clock in case it waits."""
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
                signal.alarm(60 + 20 * seconds)
                code = _run_tests(self.folder, self.log, self.stages[0])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)

    def end(self) -> None:
        """Ends what the tests have left behind."""
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.killpg(self.pid, signal.SIGKILL)
        self.pid = 0


def _run_tests(folder: Path, log: Path, tests: Sequence[str]) -> int:
    """In a forked process: pytest's exit code of these tests of a copy."""
    os.chdir(folder)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    sys.path[0], sys.dont_write_bytecode = str(folder), True
    import pytest

    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", f"--basetemp={folder}.tmp"]
    return int(pytest.main([*options, *tests], plugins=[_SameExamples()]))


class _SameExamples:
    """A plugin of pytest: the same examples of hypothesis for every mutant, and the first that fails is enough."""

    @staticmethod
    def pytest_configure() -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")


def copy_of_checkout(folder: Path) -> None:
    """Copies the files that git knows or would add, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "ttmbench", "tests"], cwd=folder, stdout=-3, check=False)


def stages_of(mutant: Mutant, tests: dict[str, Stages]) -> list[tuple[str, ...]]:
    """The tests for a mutant: doctests of its file with the first of them."""
    first, *others = tests[mutant.file]
    return [(mutant.file, *first), *(tuple(stage) for stage in others)]


def check(workers: Sequence[Worker], stages: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """Runs tests without a mutant, which must pass; how many seconds on a CPU each stage may take with one."""
    limits = {}
    for first in range(0, len(stages), len(workers)):
        together = list(zip(workers, stages[first : first + len(workers)], strict=False))
        for worker, stage in together:
            worker.stages = [stage]
            worker.start(3600)
        for worker, stage in together:
            _, status, used = os.wait4(worker.pid, 0)
            worker.end()
            if status:
                raise SystemExit(f"tests fail without a mutant:\n{worker.log.read_text(encoding='utf-8')[-3000:]}")
            limits[stage] = 10 + math.ceil(3 * (used.ru_utime + used.ru_stime))
    return limits


def run(
    mutants: Sequence[Mutant], workers: Sequence[Worker], tests: dict[str, Stages], limits: dict[tuple[str, ...], int]
) -> Iterator[tuple[Mutant, str]]:
    """Yields each mutant with what became of it: caught, slow (caught by the time limit) or survived."""
    waiting, idle, busy = list(mutants)[::-1], list(workers), dict[int, Worker]()
    while waiting or busy:
        while waiting and idle:
            worker = idle.pop()
            worker.apply(waiting.pop())
            assert worker.mutant is not None, "it was applied"
            worker.stages = stages_of(worker.mutant, tests)
            worker.start(limits[worker.stages[0]])
            busy[worker.pid] = worker
        pid, status = os.wait()
        worker = busy.pop(pid)
        worker.end()
        worker.stages.pop(0)
        if status == 0 and worker.stages:
            worker.start(limits[worker.stages[0]])
            busy[worker.pid] = worker
            continue
        idle.append(worker)
        slow = os.waitstatus_to_exitcode(status) in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL)
        yield worker.restore(), "slow" if slow else "caught" if status else "survived"


def report(outcome: dict[Mutant, str], known: dict[tuple[str, str, str, str], str], seed: int) -> int:
    """Prints what became of the mutants; returns the exit code."""
    caught = {mutant for mutant, became in outcome.items() if became != "survived"}
    survived = sorted(set(outcome) - caught, key=lambda mutant: (mutant.file, mutant.line, mutant.after))
    equivalent = [mutant for mutant in survived if mutant.key in known]
    for title, of in (("file", lambda mutant: mutant.file), ("operator", lambda mutant: mutant.operator)):
        total, killed = Counter(map(of, outcome)), Counter(map(of, caught))
        print(
            f"\n{title:36} caught  of",
            *(f"{name:36} {killed[name]:6} {total[name]:3}" for name in sorted(total)),
            sep="\n",
        )
    for title, some in (
        ("Survivors without a reason", [mutant for mutant in survived if mutant.key not in known]),
        ("Survivors that change no result", equivalent),
    ):
        print(f"\n{title}: {len(some)}")
        for mutant in some:
            print(
                f"{mutant.file}:{mutant.line} in {mutant.place or 'the module'}\n"
                f"  - {mutant.before}\n  + {mutant.after}"
            )
            print(*([f"  because {known[mutant.key]}"] if mutant.key in known else []), sep="\n")
    share, slow = len(caught) / len(outcome), sum(became == "slow" for became in outcome.values())
    others = len(outcome) - len(equivalent)
    print(
        f"\nseed {seed}: caught {len(caught)} of {len(outcome)} mutants, {share:.1%} ({slow} by the time limit); ",
        end="",
    )
    print(f"without those that change no result {len(caught)} of {others}, {len(caught) / max(1, others):.1%}")
    return int(share < REQUIRED or len(survived) > len(equivalent))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws mutants, runs them and prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--draw", type=int, default=400, help="how many mutants (default 400)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="tests at a time (default: one a CPU)")
    parser.add_argument("--only", default="", help="draw from files whose path contains this")
    options = parser.parse_args(arguments)
    tests, known = files(), read_equivalent()
    every = [
        mutant for name in tests if options.only in name for mutant in mutants_of(name, (ROOT / name).read_bytes())
    ]
    mutants = random.Random(options.seed).sample(every, min(options.draw, len(every)))
    print(f"{len(mutants)} of {len(every)} mutants, seed {options.seed}, {options.workers} at a time", flush=True)
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workers = [Worker(Path(folder).resolve() / f"copy{index}") for index in range(options.workers)]
        for worker in workers:
            copy_of_checkout(worker.folder)
        outcome: dict[Mutant, str] = {}
        try:
            limits = check(workers, sorted({stage for mutant in mutants for stage in stages_of(mutant, tests)}))
            for mutant, became in run(mutants, workers, tests, limits):
                outcome[mutant] = became
                if became == "survived":
                    print(f"survived: {mutant.file}:{mutant.line}  {mutant.before}  ->  {mutant.after}", flush=True)
                if len(outcome) % 50 == 0:
                    print(f"{len(outcome)} of {len(mutants)}", flush=True)
        finally:
            for worker in workers:
                worker.end()
    return report(outcome, known, options.seed)


if __name__ == "__main__":
    sys.exit(main())
