"""Python programs in processes of their own, without paying for the same imports again and again.

``run`` and ``start`` do what ``subprocess.run`` and ``subprocess.Popen`` do with ``[sys.executable, *words]``. The
process is forked from a server (``fork_server.py``) that has imported torch, transformers and the package, but has its
own arguments, environment, folder, streams, exit code and signals. It is started cold with ``cold=True`` (for a test of
start-up, imports or memory), if a variable differs that is read while Python starts or a library is imported, and on
systems other than Linux, where libraries do not survive a fork.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")
BEFORE = dict(os.environ)
"""What servers get; ``conftest.py`` imports this module after it has set its variables, and before any test."""

# Variables that are looked up when they are needed: a child with others is as good as a cold one.
LATER = ("TTMBENCH_", "PYTEST_", "COVERAGE_", "COMP_", "_ARGCOMPLETE", "TORCHINDUCTOR_")
LATER_NAMES = {
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TMPDIR", "PWD", "OLDPWD", "_"),
    *("NO_PROXY", "no_proxy", "HF_TOKEN", "OPENAI_API_KEY", "MPLBACKEND", "CUBLAS_WORKSPACE_CONFIG"),
}
MODULES = (
    *("torch._dynamo", "torchvision.transforms.v2", "scipy.optimize", "scipy.stats", "yaml", "pydantic", "PIL.Image"),
    *("pandas", "pyarrow.dataset", "pyarrow.parquet", "rich.console", "rich.table", "jsonlines", "platformdirs"),
    *("transformers.models.clip.modeling_clip", "transformers.models.clip.image_processing_clip"),
    *("transformers.models.siglip.modeling_siglip", "transformers.models.clip.tokenization_clip"),
    *("ttmbench.cli.run", "ttmbench.evaluator.evaluate", "ttmbench.evaluator.public_api", "ttmbench.methods.runner"),
    *("ttmbench.model_adapters.hf", "ttmbench.data.memory", "ttmbench.data.sources.rendered"),
    "ttmbench.report.terminal",
)


class Server:
    """A process that has imported modules and forks on demand."""

    def __init__(self) -> None:
        self._mine, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, str(SERVER), str(theirs.fileno()), *MODULES]
            null, numbers = subprocess.DEVNULL, [theirs.fileno()]
            self.process = subprocess.Popen(words, env=BEFORE, stdin=null, stdout=null, pass_fds=numbers)

    def close(self) -> None:
        """Ends the server; what it forked goes on."""
        self._mine.close()
        self.process.wait()

    def fork(self, request: Mapping[str, object], streams: Sequence[int]) -> int:
        """Asks for a process; returns the descriptor on which its id and its exit code arrive."""
        report, write = os.pipe()
        try:
            content = json.dumps(request).encode()
            socket.send_fds(self._mine, [len(content).to_bytes(8, "big")], [*streams, write])
            self._mine.sendall(content)
        finally:
            os.close(write)
        return report


@functools.cache
def server() -> Server:
    """The server, started when it is first needed."""
    started = Server()
    atexit.register(started.close)
    return started


def is_cold(environment: Mapping[str, str]) -> bool:
    """Whether a child with these variables cannot be forked after the imports."""
    names = {name for name in {*environment, *BEFORE} if environment.get(name) != BEFORE.get(name)}
    return sys.platform != "linux" or any(not name.startswith(LATER) and name not in LATER_NAMES for name in names)


class Forked(subprocess.Popen):
    """A process that a server forked; who waits for it reads its exit code from the server's report."""

    _received = b""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more) -> None:
        pipes = more[3:9]
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        path = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
        folder = str(Path(cwd or ".").resolve())
        self._report = server().fork({"words": args, "environment": env, "path": path, "folder": folder}, streams)
        self._close_pipe_fds(*pipes)
        while b"\n" not in self._received:
            self._receive(None)
        pid, _, self._received = self._received.partition(b"\n")
        self.pid, self._child_created = int(pid), True

    def _receive(self, timeout: float | None) -> None:
        if select.select([self._report], [], [], timeout)[0]:
            content = os.read(self._report, 100)
            if not content:
                raise RuntimeError("the server that forks has died")
            self._received += content

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None:
            if b"\n" not in self._received:
                self._receive(0)
            if b"\n" in self._received:
                self.returncode = int(self._received)
                os.close(self._report)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._internal_poll() is None:
            self._receive(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def start(
    words: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cold: bool = False, **how: object
) -> subprocess.Popen:
    """Starts ``python WORDS``; all else is as in ``subprocess.Popen``."""
    words, environment = [str(word) for word in words], dict(os.environ if env is None else env)
    if cold or is_cold(environment):
        return subprocess.Popen([sys.executable, *words], env=environment, **how)
    return Forked(words, env=environment, **how)


def run(
    words: Sequence[str | Path],
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **how: object,
) -> subprocess.CompletedProcess:
    """Runs ``python WORDS`` to its end, as ``subprocess.run`` does."""
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        how["stdin"] = subprocess.PIPE
    with start(words, **how) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
