"""The workers of one machine: a process a device, or several that share out its threads."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttmbench._util.escape import one_line
from ttmbench.errors import TtmbenchError
from ttmbench.sweep.executor import Event, Finished, Progress, WorkerJoined, WorkerLost
from ttmbench.sweep.process import WHERE
from ttmbench.sweep.transfer import OWN
from ttmbench.sweep.units import Unit, result_from_json
from ttmbench.sweep.watch import START, Watch

PLACE = "this machine"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_BEGIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from ttmbench.sweep.process import main; main()"
_STILLBORN = 3  # processes in a row that end before they begin: the next one would too
_STOP = 6.0  # seconds for a process to end, more than it gives its unit
_LAST_WORDS = 0.2  # seconds for one that hangs to write down where it stands


@dataclass(frozen=True)
class _Desk:
    """What a worker process has for itself, and its replacement after it: a device, and a share of the threads."""

    environment: Mapping[str, str]


@dataclass(eq=False)
class _Process:
    """A worker process."""

    name: str
    desk: _Desk
    process: subprocess.Popen[bytes]
    log: Path
    ready: bool = False
    unit: Unit | None = None
    hung: str | None = None
    heard: list[threading.Thread] = field(default_factory=list)


class LocalExecutor:
    """Worker processes of this machine; a `ttmbench.sweep.executor.Executor`.

    Args:
        root: the sweep's folder.
        workers: how many processes; None for one a device.
        devices: names of accelerators as CUDA numbers them, one of which each process sees; none to leave that.
        most: no more processes than this, whatever else is said: there are no more units.
        keep: how many models stay loaded in each.
        stall: seconds without a sign of progress at a unit after which a process is ended; None for none ever.
    """

    def __init__(
        self,
        root: Path,
        workers: int | None = None,
        devices: Sequence[str] = (),
        most: int | None = None,
        keep: int = 1,
        stall: float | None = None,
    ) -> None:
        count = workers or max(1, len(devices))
        count = count if most is None else max(1, min(count, most))
        self._root, self._keep = root, keep
        self._desks = [_Desk(_environment(place, count, devices)) for place in range(count)]
        self._processes: dict[str, _Process] = {}
        self._said: queue.SimpleQueue[tuple[_Process, dict[str, Any] | None]] = queue.SimpleQueue()
        self._started = self._stillborn = 0
        self._watch = Watch(stall)

    def start(self) -> Sequence[WorkerJoined]:
        """Starts the processes; each joins once it listens."""
        for desk in self._desks:
            self._begin(desk)
        return []

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to a process; one that has just died says so in the next events."""
        process = self._processes[worker]
        process.unit = unit
        self._watch.begin(worker, unit.name)
        self._tell(process, {"unit": unit.to_json()})

    def wait(self, timeout: float) -> list[Event]:
        """What the processes have said; TtmbenchError if none can be started."""
        events: list[Event] = []
        with suppress(queue.Empty):
            said = self._said.get(timeout=timeout)
            while True:
                event = self._event(*said)
                if event is not None:
                    events.append(event)
                said = self._said.get_nowait()
        for name, why in self._watch.hung().items():
            self._kill(self._processes[name], why)
        return events

    def stop(self, at_once: bool) -> None:
        """Ends all processes; units under way are interrupted and keep their state."""
        for one in self._processes.values():
            self._tell(one, {"stop": at_once})
            assert one.process.stdin is not None
            try:
                one.process.stdin.close()
            except OSError:  # it is gone
                pass
        for one in self._processes.values():
            one.heard[0].join(_STOP)  # which has waited for the process
            if one.heard[0].is_alive():
                one.process.kill()
                one.heard[0].join()
            assert one.process.stdout is not None
            one.process.stdout.close()
        self._processes.clear()

    def _begin(self, desk: _Desk) -> None:
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
        one = _Process(name, desk, process, log)
        self._processes[name] = one
        self._watch.begin(name, "its start", START)
        self._tell(one, {"root": str(self._root), "keep": self._keep})
        one.heard.append(threading.Thread(target=self._hear, args=(one,), daemon=True))
        one.heard[0].start()

    def _hear(self, one: _Process) -> None:
        """Passes on what a process says, and that it has ended; a thread of its own."""
        assert one.process.stdout is not None
        for line in one.process.stdout:
            try:
                self._said.put((one, json.loads(line)))
            except ValueError:  # the half of a line, of a process that was killed
                break
        one.process.wait()
        self._said.put((one, None))

    def _tell(self, one: _Process, order: Mapping[str, Any]) -> None:
        assert one.process.stdin is not None
        try:
            one.process.stdin.write(json.dumps(order).encode() + b"\n")
            one.process.stdin.flush()
        except (OSError, ValueError):  # it is gone, which its thread says
            pass

    def _kill(self, one: _Process, why: str) -> None:
        """Ends a process that hangs, which its thread then says; first it writes down where it stands, if it can."""
        one.hung = f"{why}; {one.log} has where it stood"
        self._watch.end(one.name)
        if WHERE is not None:
            one.process.send_signal(WHERE)
            one.heard[0].join(_LAST_WORDS)
        one.process.kill()

    def _event(self, one: _Process, said: dict[str, Any] | None) -> Event | None:
        if said is None:
            return self._lost(one)
        self._watch.heard(one.name)
        if "ready" in said:
            one.ready, self._stillborn = True, 0
            self._watch.end(one.name)
            return WorkerJoined(one.name, PLACE)
        if "progress" in said:
            return Progress(one.name, said["progress"])
        if "step" in said:
            return None
        self._watch.end(one.name)
        unit, one.unit = one.unit, None
        assert unit is not None, "a result is of a unit"
        return Finished(one.name, unit, result_from_json(said["result"]))

    def _lost(self, one: _Process) -> Event | None:
        """A process has ended by itself: another one takes its place."""
        del self._processes[one.name]
        self._watch.end(one.name)
        assert one.process.stdin is not None and one.process.stdout is not None
        for stream in (one.process.stdin, one.process.stdout):
            try:
                stream.close()
            except OSError:
                pass
        why = one.hung or _why(one.process.returncode, one.log)
        if not one.ready:
            self._stillborn += 1
            if self._stillborn >= _STILLBORN:
                raise TtmbenchError(f"worker processes end before they begin: {why}; see {one.log}")
        self._begin(one.desk)
        return WorkerLost(one.name, one.unit, why, one.hung is not None) if one.ready else None


def accelerators() -> list[str]:
    """The devices of this process as CUDA numbers them; none without CUDA."""
    import torch

    given = [one.strip() for one in os.environ.get(_VISIBLE, "").split(",") if one.strip()]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return given[:count] if given else [str(number) for number in range(count)]


def _environment(place: int, count: int, devices: Sequence[str]) -> dict[str, str]:
    """Variables of the process at a place: its device, and its share of the threads."""
    found = {_VISIBLE: devices[place % len(devices)]} if devices else {}
    if count > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for name in _THREADS:
            given = os.environ.get(name, "")
            share = max(1, cores // count)
            found[name] = str(min(share, int(given)) if given.isdecimal() and int(given) else share)
    return found


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
