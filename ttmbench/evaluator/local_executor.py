"""The workers of one machine: processes that are told what to do by lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from ttmbench._util.console import one_line
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.executor import START, Event, Finished, Progress, Watch, WorkerJoined, WorkerLost
from ttmbench.evaluator.unit import Said, Unit

OWN = ".sweep"
"""Below a sweep's folder: what the sweep keeps for itself."""
PLACE = "this machine"
WHERE: signal.Signals | None = getattr(signal, "SIGUSR1", None)
"""At this signal a worker writes to its log where each of its threads stands."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_BEGIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ttmbench.evaluator.worker_process import main
main()
"""
_STILLBORN = 3  # processes in a row that end before they begin: the next one would too
_STOP = 6.0  # seconds for a process to end, more than it gives its unit
_SAID = TypeAdapter(Said)
_LAST_WORDS = 0.2  # seconds for one that hangs to write down where it stands


@dataclass(frozen=True)
class Desk:
    """What a worker process has for itself, and its replacement after it.

    Attributes:
        environment: its variables.
        device: on which it loads models in place of what their runs say; None to leave that.
    """

    environment: Mapping[str, str]
    device: str | None = None


@dataclass(eq=False)
class _Process:
    """A worker process, and the thread that listens to it."""

    name: str
    desk: Desk
    process: subprocess.Popen[bytes]
    log: Path
    orders: IO[bytes]
    answers: IO[bytes]
    listener: threading.Thread = field(init=False)
    ready: bool = False
    unit: Unit | None = None
    hung: str | None = None

    def close(self) -> None:
        for stream in (self.orders, self.answers):
            with suppress(OSError):  # it is gone
                stream.close()


class LocalExecutor:
    """Worker processes of this machine; a `ttmbench.evaluator.executor.Executor`.

    Args:
        root: the sweep's folder.
        desks: one for each process.
        stall: seconds without a sign of progress at a unit after which a process is ended; None for none ever.
    """

    def __init__(self, root: Path, desks: Sequence[Desk], stall: float | None = None) -> None:
        self._root, self._desks = root, desks
        self._processes: dict[str, _Process] = {}
        self._said: queue.SimpleQueue[tuple[_Process, Said | None]] = queue.SimpleQueue()
        self._started = self._stillborn = 0
        self._watch = Watch(stall)

    def start(self) -> None:
        """Starts the processes; each joins once it listens."""
        for desk in self._desks:
            self._begin(desk)

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to a process; one that has just died says so in the next events."""
        process = self._processes[worker]
        process.unit = unit
        self._watch.begin(worker, unit.name)
        self._tell(process, {"unit": unit.to_json()})

    def wait(self, timeout: float) -> list[Event]:
        """What the processes have said; TtmbenchError if none can be started."""
        events = [event for said in self._heard(timeout) if (event := self._event(*said)) is not None]
        for name, why in self._watch.hung().items():
            self._kill(self._processes[name], why)
        return events

    def stop(self, at_once: bool) -> None:
        """Ends all processes; units under way are interrupted and keep their state."""
        for process in self._processes.values():
            self._tell(process, {"stop": at_once})
            with suppress(OSError):
                process.orders.close()
        for process in self._processes.values():
            process.listener.join(_STOP)  # which waits for the process
            if process.listener.is_alive():
                process.process.kill()
                process.listener.join()
            process.close()
        self._processes.clear()

    def _heard(self, timeout: float) -> Iterator[tuple[_Process, Said | None]]:
        with suppress(queue.Empty):
            yield self._said.get(timeout=timeout)
            while True:
                yield self._said.get_nowait()

    def _begin(self, desk: Desk) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        log = self._root / OWN / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **desk.environment},
                start_new_session=True,  # Ctrl-C is for the driver, which tells its workers
            )
        assert process.stdin is not None and process.stdout is not None
        begun = _Process(name, desk, process, log, process.stdin, process.stdout)
        begun.listener = threading.Thread(target=self._hear, args=(begun,), daemon=True)
        self._processes[name] = begun
        self._watch.begin(name, "its start", START)
        self._tell(begun, {"root": str(self._root), "device": desk.device})
        begun.listener.start()

    def _hear(self, process: _Process) -> None:
        """Passes on what a process says, and that it has ended; a thread of its own."""
        for line in process.answers:
            try:
                self._said.put((process, _SAID.validate_json(line)))
            except ValueError:  # the half of a line, of a process that was killed
                break
        process.process.wait()
        self._said.put((process, None))

    def _tell(self, process: _Process, order: Mapping[str, object]) -> None:
        with suppress(OSError, ValueError):  # it is gone, which its thread says
            process.orders.write(json.dumps(order).encode() + b"\n")
            process.orders.flush()

    def _kill(self, process: _Process, why: str) -> None:
        """Ends a process that hangs, which its thread then says; first it writes down where it stands, if it can."""
        process.hung = f"{why}; {process.log} has where it stood"
        self._watch.end(process.name)
        if WHERE is not None:
            process.process.send_signal(WHERE)
            process.listener.join(_LAST_WORDS)
        process.process.kill()

    def _event(self, process: _Process, said: Said | None) -> Event | None:
        name = process.name
        if said is None:
            return self._lost(process)
        self._watch.heard(name)
        if said.ready:
            process.ready, self._stillborn = True, 0
            self._watch.end(name)
            return WorkerJoined(name, process.desk.device or PLACE)
        if said.progress is not None:
            return Progress(name, said.progress)
        if said.result is None:
            return None
        self._watch.end(name)
        unit, process.unit = process.unit, None
        assert unit is not None, "a result is of a unit"
        return Finished(name, unit, said.result)

    def _lost(self, process: _Process) -> Event | None:
        """A process has ended by itself: another one takes its place."""
        del self._processes[process.name]
        self._watch.end(process.name)
        process.close()
        why = process.hung or _why(process.process.returncode, process.log)
        if not process.ready:
            self._stillborn += 1
            if self._stillborn >= _STILLBORN:
                raise TtmbenchError(f"worker processes end before they begin: {why}; see {process.log}")
        self._begin(process.desk)
        return WorkerLost(process.name, process.unit, why, process.hung is not None) if process.ready else None


def desks_for(workers: int | None, devices: Sequence[str], most: int) -> list[Desk]:
    """Desks of the workers of a sweep, which share out accelerators and threads.

    Args:
        workers: how many; None for one a device.
        devices: names of accelerators as CUDA numbers them, one of which each process sees; none to leave that.
        most: no more than this, whatever else is said: there are no more units.
    """
    count = max(1, min(workers or len(devices), most))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {}
    for name in _THREADS if count > 1 else ():
        given, share = os.environ.get(name, ""), max(1, cores // count)
        threads[name] = str(min(share, int(given)) if given.isdecimal() and int(given) else share)
    seen = [{_VISIBLE: devices[place % len(devices)]} if devices else {} for place in range(count)]
    return [Desk({**threads, **variables}) for variables in seen]


def desk_on(device: str, threads: int) -> Desk:
    """The desk of a worker on one of the devices that this process sees."""
    return Desk(dict.fromkeys(_THREADS, str(threads)), device)


def accelerators() -> list[str]:
    """The devices of this process as CUDA numbers them; none without CUDA."""
    import torch

    given = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return given[:count] if given else [str(number) for number in range(count)]


def _why(code: int, log: Path) -> str:
    """Why a process ended, in one line: its signal, or its exit code and the last line it wrote."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    try:
        lines = log.read_bytes()[-4000:].decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process ended with exit code {code}" + (f": {one_line(last, 300)}" if last else "")
