"""Python programs in processes of their own, without paying for the same imports again and again.

``run`` and ``start`` do what ``subprocess.run`` and ``subprocess.Popen`` do with ``[sys.executable, *words]``. The
process is forked from a server (``fork_server.py``, begun when first asked) that has imported torch, transformers and
the package, but has its own arguments, environment, folder, streams, exit code and signals, and knows nothing of the
test's process. ``test_processes.py`` holds the two to the same behaviour.

A first server has imported what reads no variable. Those that have imported everything are forked from it: one for the
variables of the suite, and one for others as soon as they are asked for again (or are expected, ``expect``, which can
say what its processes will import as well).

A process is started cold, from nothing, with ``cold=True`` (what a test of start-up, of imports or of memory wants), if
a variable differs that is read while Python starts or a library is imported (``PYTHONHASHSEED``, ``OMP_NUM_THREADS``,
...), and everywhere but on Linux, where libraries do not survive a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("fork_server.py")
BEFORE = dict(os.environ)
"""What servers get; ``conftest.py`` imports this module after it has set its variables, and before any test."""

# Variables that are looked up when they are needed: a child with others is as good as a cold one.
LATER = ("TTMBENCH_", "PYTEST_", "COVERAGE_", "COMP_", "_ARGCOMPLETE", "TORCHINDUCTOR_")
SET_BY_THE_COMMAND = "GOMP_SPINCOUNT"  # for itself, also where a test calls it in this process
LATER_NAMES = {
    *(SET_BY_THE_COMMAND, "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TMPDIR", "PWD", "OLDPWD", "_"),
    *("NO_PROXY", "no_proxy", "HF_TOKEN", "OPENAI_API_KEY", "MPLBACKEND", "CUBLAS_WORKSPACE_CONFIG"),
}
# Read when the package or huggingface_hub is imported: fine for a server that has imported neither.
NOT_YET = ("HF_", "HUGGING_FACE_", "TRANSFORMERS_", "XDG_", "PYTHONPATH")

LIBRARIES = ("torch", "torchvision.transforms.v2", "scipy.optimize", "scipy.stats", "yaml", "pydantic", "PIL.Image")
EVERYTHING = (
    *LIBRARIES,
    *("transformers.models.clip.modeling_clip", "transformers.models.clip.image_processing_clip"),
    *("transformers.models.siglip.modeling_siglip", "transformers.models.clip.tokenization_clip"),
    *(
        "ttmbench.cli",
        "ttmbench.cli.run",
        "ttmbench.evaluator.run",
        "ttmbench.evaluator.simple_evaluate",
        "ttmbench.ttm.variants",
    ),
    *("ttmbench.model_adapters.tiny_clip", "ttmbench.data.memory", "ttmbench.data.sources.rendered"),
    *("ttmbench.report.terminal", "ttmbench.cli.run", "rich.console", "rich.table", "jsonlines", "platformdirs"),
)


class Server:
    """A process that has imported modules and forks on demand; with ``of``, itself forked, under other variables."""

    process: subprocess.Popen[Any] | Forked

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str] | None = None, of: Server | None = None
    ) -> None:
        self._mine, its = socket.socketpair()
        environment = BEFORE if environment is None else environment
        with its, Path(os.devnull).open("r+b") as null:
            if of is None:
                words = [sys.executable, str(SERVER), str(its.fileno()), *modules]
                streams: dict[str, Any] = {"stdin": null, "stdout": null, "pass_fds": [its.fileno()]}
                self.process = subprocess.Popen(words, env=environment, **streams)
            else:
                words = [str(SERVER), "0", *modules]
                told = of.fork(request_for(words, environment, "/"), [its.fileno(), null.fileno(), 2])
                self.process = Forked(told, words, [None, None, None])

    def close(self) -> None:
        """Ends the server; what it forked goes on."""
        self._mine.close()

    def fork(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Asks for a process; returns the descriptor on which its id and its exit code arrive."""
        told, report = os.pipe()
        try:
            content = json.dumps(request).encode()
            socket.send_fds(self._mine, [len(content).to_bytes(8, "big")], [*streams, report])
            self._mine.sendall(content)
        finally:
            os.close(report)
        return told


def request_for(words: Sequence[str], environment: Mapping[str, str], cwd: str | Path | None) -> dict[str, Any]:
    """What a server is told of a process."""
    path = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    return {"words": words, "environment": dict(environment), "path": path, "folder": str(Path(cwd or ".").resolve())}


Early = frozenset[tuple[str, str | None]]
FIRST = "first"
_servers: dict[str | Early, Server] = {}
_asked: set[Early] = set()
_wanted: dict[Early, tuple[str, ...]] = {}


@atexit.register
def close_servers() -> None:
    """Ends all; the next request begins them again."""
    for key in [*reversed(_servers)]:  # the first, which forked them, tells when they end
        _close(key)


def _close(key: str | Early) -> None:
    server = _servers.pop(key)
    server.close()
    server.process.wait()


def expect(environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
    """Several processes will be started under these variables: they have a server of their own from the first on.

    Args:
        environment: added to that of this process.
        modules: what most of them import beside EVERYTHING.
    """
    early = _early({**os.environ, **environment})
    _asked.add(early)
    _wanted[early] = tuple(modules)


def _early(environment: Mapping[str, str]) -> Early:
    """What differs from the suite's variables and is read before a process looks it up."""
    names = {name for name in {*environment, *BEFORE} if environment.get(name) != BEFORE.get(name)}
    names = {name for name in names if not name.startswith(LATER) and name not in LATER_NAMES}
    return frozenset((name, environment.get(name)) for name in names)


def server_for(environment: Mapping[str, str]) -> Server | None:
    """The server that has imported the most under the same variables; None if none is as good as a cold start.

    Variables that differ from the suite's have a server of their own when they are asked for again, or expected.
    """
    if sys.platform != "linux":
        return None
    early = _early(environment)
    names = {name for name, _ in early}
    if any(not name.startswith(NOT_YET) for name in names):
        return None
    if FIRST not in _servers:
        _servers[FIRST] = Server(LIBRARIES)
    once = "PYTHONPATH" in names or (names and early not in _asked)  # what lies on a path may change
    _asked.add(early)
    if once:
        return _servers[FIRST]
    if early not in _servers:
        for other in [key for key in _servers if key != FIRST and key and early]:
            _close(other)  # nobody has asked for these variables of late
        alike = {name: value for name, value in {**BEFORE, **dict(early)}.items() if value is not None}
        _servers[early] = Server([*EVERYTHING, *_wanted.get(early, ())], alike, _servers[FIRST])
    return _servers[early]


class Forked:
    """A process that a server forked, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(self, told: int, words: Sequence[str], streams: Sequence[IO[Any] | None]) -> None:
        self._told, self._said = told, b""
        self._readers: list[threading.Thread] = []
        self._read: dict[str, Any] = {}
        self.args = list(words)
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        while b"\n" not in self._said:
            self._hear(None)
        pid, _, self._said = self._said.partition(b"\n")
        self.pid = int(pid)

    def _hear(self, timeout: float | None) -> None:
        ready, _, _ = select.select([self._told], [], [], timeout)
        if ready:
            said = os.read(self._told, 100)
            if not said:
                raise RuntimeError("the server that forks has died")
            self._said += said

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._wait(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._hear(timeout)
            if b"\n" in self._said:
                self.returncode = int(self._said)
                os.close(self._told)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Writes all input, reads all output, and waits for the end."""
        end = None if timeout is None else time.monotonic() + timeout
        pipes = {name: one for name, one in (("out", self.stdout), ("err", self.stderr)) if one is not None}
        if not self._readers:  # after a time limit the same ones read on
            self._readers = [threading.Thread(target=self._drain, args=one, daemon=True) for one in pipes.items()]
            for one in self._readers:
                one.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                if input is not None:
                    self.stdin.write(input)
                self.stdin.close()
        for one in self._readers:
            one.join(None if end is None else max(end - time.monotonic(), 0))
            if one.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        for stream in pipes.values():
            stream.close()
        self.wait(None if end is None else max(end - time.monotonic(), 0))
        return self._read.get("out"), self._read.get("err")

    def _drain(self, name: str, stream: IO[Any]) -> None:
        self._read[name] = stream.read()

    def send_signal(self, number: int) -> None:
        """Sends a signal to a process that still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    text: bool = False,
    encoding: str | None = None,
    cold: bool = False,
) -> Forked | subprocess.Popen[Any]:
    """Starts ``python WORDS``; streams are as in ``subprocess.Popen``."""
    words = [str(word) for word in words]
    environment = dict(os.environ if env is None else env)
    server = None if cold else server_for(environment)
    if server is None:
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return subprocess.Popen(
            [sys.executable, *words], env=environment, cwd=cwd, text=text, encoding=encoding, **streams
        )
    given, mine = [], []
    with contextlib.ExitStack() as ours:
        for number, stream in enumerate((stdin, stdout, stderr)):
            kept = None
            if stream is None:
                its = number
            elif stream == subprocess.PIPE:
                read, write = os.pipe()
                its, kept = (write, read) if number else (read, write)
                ours.callback(os.close, its)
            elif stream == subprocess.DEVNULL:
                its = os.open(os.devnull, os.O_RDWR)
                ours.callback(os.close, its)
            elif stream == subprocess.STDOUT:
                its = given[1]
            else:
                its = stream if isinstance(stream, int) else stream.fileno()
            given.append(its)
            mine.append(kept)
        told = server.fork(request_for(words, environment, cwd), given)
    modes = ("w", "r", "r") if text or encoding else ("wb", "rb", "rb")
    files = [one if one is None else open(one, mode, encoding=encoding) for one, mode in zip(mine, modes, strict=True)]  # noqa: PTH123
    return Forked(told, words, files)


def run(
    words: Sequence[str | Path],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs ``python WORDS`` to its end, as ``subprocess.run`` does."""
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        how["stdin"] = subprocess.PIPE
    process = start(words, **how)
    try:
        out, err = process.communicate(input, timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    done: subprocess.CompletedProcess[Any] = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
