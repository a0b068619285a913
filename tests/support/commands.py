"""Several commands of ttmbench in one process of its own, so that its imports are paid once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import processes

SCRIPT = """
import contextlib, io, json, sys
from ttmbench.cli import main
for argv in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str


def run_commands(
    commands: Sequence[str],
    environment: dict[str, str],
    cwd: Path,
    timeout: float = 600,
    python: str | Path = sys.executable,
) -> list[Done]:
    """Runs command lines, without the word ttmbench, one after another; each must end by itself."""
    lines = [line.split() for line in commands]
    how: dict[str, Any] = {
        "input": json.dumps(lines),
        "env": {**os.environ, "OMP_NUM_THREADS": "1", **environment},
        "cwd": cwd,
        "timeout": timeout,
    }
    if python == sys.executable:
        done = processes.run(["-c", SCRIPT], capture_output=True, text=True, **how)
    else:
        done = subprocess.run([python, "-c", SCRIPT], capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), done.stderr
    return [Done(tuple(line), *answer) for line, answer in zip(lines, answers, strict=True)]
