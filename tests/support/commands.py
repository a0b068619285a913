"""Several commands of ttmbench in a separate process, so that its imports are paid once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import processes

SCRIPT = """
import contextlib, io, json, os, sys
from ttmbench.cli import main
if os.environ.get("TTMBENCH_TEST_ARCHITECTURES"):
    import open_clip
    open_clip.add_model_config(os.environ["TTMBENCH_TEST_ARCHITECTURES"])
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


def run_commands(commands: Sequence[str], environment: Mapping[str, str], cwd: Path, timeout: int = 600) -> list[Done]:
    """Runs command lines, without the word ttmbench, one after another; each must end by itself."""
    lines = [line.split() for line in commands]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    how = {"input": json.dumps(lines), "env": variables, "cwd": cwd, "timeout": timeout}
    done = processes.run(["-c", SCRIPT], capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), done.stderr
    return [Done(tuple(line), *answer) for line, answer in zip(lines, answers, strict=True)]
