"""Processes of ``multiprocessing`` without paying for the same imports again and again.

Inside ``from_the_server`` what the start method "spawn" starts is forked from a server of ``processes.py``: it has the
arguments, the descriptors and the pickled work of a spawned process and nothing else of this one, but begins with the
libraries imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import popen_spawn_posix, util
from typing import Any

import pytest

from support import processes

# Its standard input is a socket, from which it takes its descriptors under the numbers that they have in the parent.
BEGIN = """
import fcntl, json, os, socket
with socket.socket(fileno=os.dup(0)) as given:
    numbers, received, _, _ = socket.recv_fds(given, 4096, 64)
apart = [fcntl.fcntl(one, fcntl.F_DUPFD, 4096) for one in received]
for one in received:
    os.close(one)
for one, number in zip(apart, json.loads(numbers), strict=True):
    os.dup2(one, number)
    os.close(one)
"""


class Spawned(popen_spawn_posix.Popen):
    """``multiprocessing``'s view of such a process, which is no child of this one, so its server waits for it."""

    _started: processes.Forked | subprocess.Popen[Any]

    def _launch(self, process_obj: Any) -> None:
        def spawn(path: bytes, words: Sequence[str], descriptors: Sequence[int]) -> int:
            begin = words.index("-c")
            mine, its = socket.socketpair()
            with mine, its:
                started = processes.start(["-c", BEGIN + words[begin + 1], *words[begin + 2 :]], stdin=its)
                numbers = sorted(set(descriptors))
                socket.send_fds(mine, [json.dumps(numbers).encode()], numbers)
            self._started = started
            return started.pid

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(util, "spawnv_passfds", spawn)
            super()._launch(process_obj)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, once there is one; with no flag it waits for it."""
        self.returncode = self._started.poll() if flag else self._started.wait()
        return self.returncode


@contextlib.contextmanager
def from_the_server() -> Iterator[None]:
    """Inside, spawned processes begin warm; where there is no server they are spawned as ever."""
    with pytest.MonkeyPatch.context() as patched:
        if sys.platform == "linux":
            patched.setattr(popen_spawn_posix, "Popen", Spawned)
        yield
