"""Python processes of our own: each ends with the process that began it, even if that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from ttmbench._util import machine
from ttmbench._util.console import one_line

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_BEGIN = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from ttmbench._util.child import main; main()"
_GRACE = 6.0  # seconds for a process to save its state


def start(
    function: str, words: Sequence[str], log: Path, environment: Mapping[str, str], folder: str | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process that calls ``module:function`` with ``words`` in ``sys.argv``; Ctrl-C does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", _BEGIN, json.dumps(sys.path), function, *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=folder,
            start_new_session=True,
        )


def why_failed(process: subprocess.Popen[bytes], log: Path) -> str | None:
    """Waits for a process; returns in one line why it failed: its signal, or what it wrote last. None if it did not."""
    code = process.wait()
    assert process.stdin is not None, "it was begun with a pipe"
    with suppress(OSError):
        process.stdin.close()
    if code == 0:
        return None
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}" + " (out of memory?)" * (
            code == -signal.SIGKILL
        )
    lines = log.read_text("utf-8", "replace").split("\n") if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    return one_line(last.removeprefix("ttmbench: "), 500)


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Asks processes to end as SIGTERM does, and kills those that take longer than a few seconds."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()


def shared_threads(processes: int) -> dict[str, str]:
    """Variables by which so many processes share the cores of this machine; none for a single one."""
    if processes < 2:
        return {}
    given = {name: os.environ.get(name, "") for name in THREADS}
    most = max(1, machine.cores() // processes)
    return {name: str(min(most, int(value)) if value.isdecimal() else most) for name, value in given.items()}


def main() -> None:
    """Calls the function that `start` names, and ends the process when its stdin does: its parent is gone then."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, _, name = sys.argv.pop(1).partition(":")
    function: Callable[[], object] = getattr(import_module(module), name)
    function()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(130)
