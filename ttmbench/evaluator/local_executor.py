"""The local executor: worker processes on this machine, which exchange lines of JSON with this one.

`multiprocessing` would import the caller's main module again, send pickles, and leave workers behind when the parent is
killed. A worker notices by the end of its stdin that its driver is gone, and the driver by the end of its output.
"""

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
from ttmbench.evaluator.unit import UNIT, Unit, UnitResult

OWN = ".sweep"
"""Below a sweep's folder: the sweep's own files."""
STACKS: signal.Signals | None = getattr(signal, "SIGUSR1", None)
"""At this signal a worker writes the stack of each thread to its log."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_BEGIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ttmbench.evaluator.worker_process import main
main()
"""
_MAX_FAILED_STARTS = 3  # in a row; the next process would fail too
_STOP = 6.0  # seconds for a process to end, more than it gives its unit
_STACKS_SECONDS = 0.2  # for a hung process to write its stacks


@dataclass(frozen=True)
class WorkerSlot:
    """The environment variables of a worker process and its replacements, and a device instead of the runs' own."""

    environment: Mapping[str, str]
    device: str | None = None


@dataclass(frozen=True)
class _Message:
    """A line from a worker process: it is ready, a step of work ended, what it is doing, or its unit's result."""

    ready: bool = False
    step: bool = False
    progress: str | None = None
    result: UnitResult | None = None


_MESSAGE = TypeAdapter(_Message)


@dataclass(eq=False)
class _Process:
    """A worker process, and the thread that listens to it."""

    name: str
    slot: WorkerSlot
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
    """An executor with worker processes on this machine, one per slot.

    A process that shows no progress at a unit for ``stall`` seconds is ended; None for no limit.
    """

    def __init__(self, root: Path, slots: Sequence[WorkerSlot], stall: float | None = None) -> None:
        self._root, self._slots = root, slots
        self._processes: dict[str, _Process] = {}
        self._messages: queue.SimpleQueue[tuple[_Process, _Message | None]] = queue.SimpleQueue()
        self._started = self._failed_starts = 0
        self._watch = Watch(stall)

    def start(self) -> None:
        """Starts the processes; each joins when it listens."""
        for slot in self._slots:
            self._begin(slot)

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to a process; one that has just died is reported in the next events."""
        process = self._processes[worker]
        process.unit = unit
        self._watch.begin(worker, unit.name)
        self._send(process, {"unit": UNIT.dump_python(unit, mode="json")})

    def wait(self, timeout: float) -> list[Event]:
        """Events of the processes; TtmbenchError if none can be started."""
        events = [event for received in self._received(timeout) if (event := self._event(*received)) is not None]
        for name, why in self._watch.hung().items():
            self._kill(self._processes[name], why)
        return events

    def stop(self, at_once: bool) -> None:
        """Ends all processes; units under way are interrupted and save their state."""
        for process in self._processes.values():
            self._send(process, {"stop": at_once})
            with suppress(OSError):
                process.orders.close()
        for process in self._processes.values():
            process.listener.join(_STOP)  # which waits for the process
            if process.listener.is_alive():
                process.process.kill()
                process.listener.join()
            process.close()
        self._processes.clear()

    def _received(self, timeout: float) -> Iterator[tuple[_Process, _Message | None]]:
        with suppress(queue.Empty):
            yield self._messages.get(timeout=timeout)
            while True:
                yield self._messages.get_nowait()

    def _begin(self, slot: WorkerSlot) -> None:
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
                env={**os.environ, **slot.environment},
                start_new_session=True,  # Ctrl-C is for the driver, which stops its workers
            )
        assert process.stdin is not None and process.stdout is not None
        begun = _Process(name, slot, process, log, process.stdin, process.stdout)
        begun.listener = threading.Thread(target=self._listen, args=(begun,), daemon=True)
        self._processes[name] = begun
        self._watch.begin(name, "its start", START)
        self._send(begun, {"root": str(self._root), "device": slot.device})
        begun.listener.start()

    def _listen(self, process: _Process) -> None:
        """Queues the messages of a process, then None when it has ended; runs in a thread."""
        for line in process.answers:
            try:
                self._messages.put((process, _MESSAGE.validate_json(line)))
            except ValueError:  # half a line, of a process that was killed
                break
        process.process.wait()
        self._messages.put((process, None))

    def _send(self, process: _Process, order: Mapping[str, object]) -> None:
        with suppress(OSError, ValueError):  # it is gone, which its thread reports
            process.orders.write(json.dumps(order).encode() + b"\n")
            process.orders.flush()

    def _kill(self, process: _Process, why: str) -> None:
        """Ends a hung process, which writes its stacks first if it can; its thread reports the end."""
        process.hung = f"{why}; {process.log} has where it stood"
        self._watch.end(process.name)
        if STACKS is not None:
            process.process.send_signal(STACKS)
            process.listener.join(_STACKS_SECONDS)
        process.process.kill()

    def _event(self, process: _Process, message: _Message | None) -> Event | None:
        name = process.name
        if message is None:
            return self._lost(process)
        self._watch.heard(name)
        if message.ready:
            process.ready, self._failed_starts = True, 0
            self._watch.end(name)
            return WorkerJoined(name, process.slot.device or "this machine")
        if message.progress is not None:
            return Progress(name, message.progress)
        if message.result is None:
            return None
        self._watch.end(name)
        unit, process.unit = process.unit, None
        assert unit is not None, "a result is of a unit"
        return Finished(name, unit, message.result)

    def _lost(self, process: _Process) -> Event | None:
        """Replaces a process that has ended."""
        del self._processes[process.name]
        self._watch.end(process.name)
        process.close()
        why = process.hung or _why(process.process.returncode, process.log)
        if not process.ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise TtmbenchError(f"worker processes fail to start: {why}; see {process.log}")
        self._begin(process.slot)
        return WorkerLost(process.name, process.unit, why, process.hung is not None) if process.ready else None


def worker_slots(workers: int | None, devices: Sequence[str], most: int) -> list[WorkerSlot]:
    """Slots for ``workers`` processes (None: one per device, at most ``most``) that share devices and threads."""
    count = max(1, min(workers or len(devices), most))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {}
    for name in _THREADS if count > 1 else ():
        variable, share = os.environ.get(name, ""), max(1, cores // count)
        threads[name] = str(min(share, int(variable)) if variable.isdecimal() and int(variable) else share)
    visible = [{_VISIBLE: devices[number % len(devices)]} if devices else {} for number in range(count)]
    return [WorkerSlot({**threads, **variables}) for variables in visible]


def device_slot(device: str, threads: int) -> WorkerSlot:
    """The slot of a worker on one of the devices that this process sees."""
    return WorkerSlot(dict.fromkeys(_THREADS, str(threads)), device)


def accelerators() -> list[str]:
    """The devices of this process as CUDA numbers them; none without CUDA."""
    import torch

    visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return visible[:count] if visible else [str(number) for number in range(count)]


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
