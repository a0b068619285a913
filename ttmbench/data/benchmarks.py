"""The benchmarks that tasks belong to: name, what is tested, and notes, from ``tasks/_benchmarks.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from ttmbench._util.file_io import read_yaml


@dataclass(frozen=True)
class Benchmark:
    """A dataset with one or several tasks.

    Attributes:
        name: key of the file, and name of its page.
        title: as its authors write it.
        tests: what it tests, in a few words; ``about``: the same as a sentence.
        run: what ``--tasks`` takes to run it.
        tasks: names of its tasks, with ``*`` for any letters.
        notes: what a user should know of its numbers and data, a paragraph each.
    """

    name: str
    title: str
    tests: str
    about: str
    run: str
    tasks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def has(self, task: str) -> bool:
        """Whether a task of this name belongs to the benchmark."""
        return any(fnmatchcase(task, pattern) for pattern in self.tasks)


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """All benchmarks, in the order of tables."""
    entries: dict[str, dict[str, Any]] = read_yaml(files("ttmbench.tasks") / "_benchmarks.yaml")
    return tuple(
        Benchmark(name=name, **{**entry, "tasks": tuple(entry["tasks"]), "notes": tuple(entry.get("notes", ()))})
        for name, entry in entries.items()
    )


def benchmark_of(task: str) -> Benchmark | None:
    """The benchmark of a task; None for tasks of plugins and of the user."""
    return next((benchmark for benchmark in benchmarks() if benchmark.has(task)), None)
