"""What tests of sweeps and of several devices share: plans, and children forked from what has imported everything."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
import yaml

from support import processes
from ttmbench._util import child
from ttmbench.results.reader import read_document
from ttmbench.sweep.plan import Cell, expand, read_plan

TTM = {"ttm": True, "seeds": [0, 1], "ttm_args": {"iterations": 2, "epochs": 1}}
SMALL = {"limit": 12, "bootstrap_iters": 0}
_VOLATILE = {"date", "git_hash", "command", "total_evaluation_time_seconds", "timing", "artifacts", "config"}


def numbers(path: Path) -> str:
    """A document without its times, memory and places, and whether scores came from the cache."""
    document = read_document(path).to_dict()
    document["hardware"].pop("peak_memory_bytes", None)
    for dataset in document["datasets"].values():
        dataset.pop("from_store", None)
    for record in [one for of_task in document.get("methods", {}).values() for one in of_task.values()]:
        for line in (*record.get("iterations", ()), *record.get("cost", ())):
            line |= {"seconds": 0}
        for cost in record.get("cost", ()):
            cost |= {"view_seconds": 0}
    return json.dumps({key: value for key, value in document.items() if key not in _VOLATILE}, sort_keys=True)


def write_plan(folder: Path, **content: object) -> Path:
    """A plan's file; of one model and one task where the content names no others."""
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"models": ["tiny-clip"], "tasks": ["shapes_color"], **content}))
    return path


def cells_of(folder: Path, over: Mapping[str, object] = MappingProxyType({}), **content: object) -> list[Cell]:
    path = write_plan(folder, **content)
    return expand(read_plan(path), path.name, dict(over), folder / "board")


@contextmanager
def forked_children() -> Iterator[list[subprocess.Popen]]:
    """Inside, children are forked from what has imported everything; yields those that were begun."""
    begun: list[subprocess.Popen] = []
    one_at_a_time = threading.Lock()

    def popen(words: Sequence[str], *, start_new_session: bool, env: dict[str, str], **how: object):
        env = {name: value for name, value in env.items() if name != "MKL_NUM_THREADS"}
        with one_at_a_time:
            begun.append(processes.start(words[1:], env=env, **how))
            return begun[-1]

    with pytest.MonkeyPatch.context() as patched:
        names = ("PIPE", "STDOUT", "TimeoutExpired")
        patched.setattr(child, "subprocess", SimpleNamespace(Popen=popen, **{n: getattr(subprocess, n) for n in names}))
        yield begun
