"""The server of ``processes.py``: imports modules, then forks for every Python program that is requested.

Run as ``python fork_server.py SOCKET MODULE ...`` with the number of an open stream socket. A request is four file
descriptors (stdin, stdout, stderr and the report) and JSON: the words after ``python`` on a command line, the
environment and the working folder. The report is the child's process id, and its exit code once it ended.

Before a fork no tensors are computed, so that no pool of threads exists, which a fork would lose.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
from pathlib import Path

Request = dict[str, list[str] | dict[str, str] | str]
HEADER = 8
NO_THREAD = ("JE_ARROW_MALLOC_CONF", "background_thread:false")  # pyarrow begins one when it is imported


def receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """The next request and its descriptors; None after the last."""
    header, descriptors, _, _ = socket.recv_fds(control, HEADER, 4)
    if not header:
        return None
    size, content = int.from_bytes(header, "big"), b""
    while len(content) < size:
        content += control.recv(size - len(content))
    return json.loads(content), descriptors


def reap(running: dict[int, int]) -> None:
    """Reports the exit codes of children."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        report = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the test process has ended
            os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(report)


def serve(control: socket.socket) -> tuple[Request, list[int]] | None:
    """Forks for each request. Returns the request in a child, and None in the server, at the end."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; the server ends when they close the socket
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        reap(running)
        if control not in ready:
            continue
        asked = receive(control)
        if asked is None:
            return None
        request, (*streams, report) = asked
        pid = os.fork()
        if pid:
            for one in streams:
                os.close(one)
            os.write(report, b"%d\n" % pid)
            running[pid] = report
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        control.close()
        for one in (woken, wake, report, *running.values()):
            os.close(one)
        return request, streams


def become(request: Request, streams: list[int]) -> None:
    """Gives this process the streams, environment, folder and fresh state of one that was started."""
    for number, one in enumerate(streams):
        os.dup2(one, number)
        os.close(one)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        mode, errors = ("w" if number else "r"), before.errors
        fresh = open(number, mode, encoding=before.encoding, errors=errors, closefd=False)
        if number:
            fresh.reconfigure(line_buffering=number == 2 or os.isatty(1), write_through=before.write_through)
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None
    sys.path[:0] = [one for one in request["path"] if one not in sys.path]
    if "numpy" in sys.modules:  # or the children of a server would all draw the same
        sys.modules["numpy"].random.seed()


def execute(words: list[str]) -> None:
    """Runs what follows ``python``: any ``-W``, then ``-m MODULE``, ``-c CODE`` or a script, and its arguments."""
    first, *rest = words
    while first == "-W":
        sys.warnoptions.append(rest[0])
        warnings._processoptions([rest[0]])  # type: ignore[attr-defined]
        _, first, *rest = rest
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if first == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        sys.argv = [first, *rest]
        main.__file__ = first
        exec(compile(Path(first).read_bytes(), first, "exec"), main.__dict__)


def end(words: list[str]) -> None:
    """Runs a program and ends as an interpreter does, without freeing all modules, which takes seconds."""
    code, interrupted = 0, False
    try:
        execute(words)
    except SystemExit as wanted:
        code = wanted.code if isinstance(wanted.code, int) else int(wanted.code is not None)
        if code and not isinstance(wanted.code, int):
            print(wanted.code, file=sys.stderr)
    except BaseException as error:
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
        code = code or 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    gc.disable()  # what is imported lives to the end
    os.environ.setdefault(*NO_THREAD)
    os.fsync = lambda descriptor: None  # as in the tests' own process: no test cuts the power
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if "transformers.conversion_mapping" in sys.modules:  # of transformers 5: compiles patterns of weights' names
        sys.modules["transformers.conversion_mapping"].get_checkpoint_conversion_mapping("clip")
    gc.freeze()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208
        sys.exit(f"{threads} threads after the imports: a child would have one of them")
    gc.enable()
    mine = serve(socket.socket(fileno=int(sys.argv[1])))
    if mine is not None:
        become(*mine)
        end(mine[0]["words"])
