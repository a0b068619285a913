"""What the process of a local worker does: it is told by JSON lines.

It reads stdin and answers on what was its stdout; whatever else is printed goes to stderr, which is its log. When stdin
ends, whoever started it is gone, and so is it.
"""

from __future__ import annotations

import _thread
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GRACE = 4.0  # seconds for a unit to stop and to say where it stands
WHERE: signal.Signals | None = getattr(signal, "SIGUSR1", None)
"""At this signal the process writes to its log where each of its threads stands."""
_SIGNS = 1.0  # seconds between two signs of progress


class Signs:
    """Passes on that steps of work end, now and then; called in any thread.

    Args:
        tell: says it.
        every: seconds between two times, at least.
    """

    def __init__(self, tell: Callable[[], object], every: float) -> None:
        self._tell, self._every, self._told = tell, every, -1e9

    def __call__(self) -> None:
        """A step has ended."""
        now = time.monotonic()
        if now - self._told >= self._every:
            self._told = now
            self._tell()


class _Orders:
    """What is read from stdin, by a thread: units for the main thread, and the order to stop, which interrupts it."""

    def __init__(self, stream: Any) -> None:
        self._units: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Mapping[str, Any] | None:
        """The next unit; None to end."""
        return self._units.get()

    def _read(self) -> None:
        for line in self._stream:
            order = json.loads(line)
            if "unit" not in order:
                break
            self._units.put(order["unit"])
        self._units.put(None)
        threading.Timer(GRACE, os._exit, [130]).start()
        _thread.interrupt_main()


def main() -> None:
    """Does units until it is told to stop, and ends the process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what adapters print is no answer
    stream = os.fdopen(os.dup(0), "r", encoding="utf-8")
    writing = threading.Lock()

    def answer(**content: Any) -> None:
        with writing:
            answers.write(json.dumps(content) + "\n")
            answers.flush()

    signs = Signs(lambda: answer(step=True), _SIGNS)
    if WHERE is not None:
        faulthandler.register(WHERE, file=2)
    try:
        settings = json.loads(stream.readline())
        from ttmbench._util.heartbeat import steps_told
        from ttmbench._util.rate_limit import FolderPauses, sharing_pauses
        from ttmbench.sweep.transfer import OWN
        from ttmbench.sweep.units import unit_from_json
        from ttmbench.sweep.worker import Worker

        worker = Worker(Path(settings["root"]), keep=settings["keep"])
        answer(ready=True)
        orders = _Orders(stream)
        while (given := orders.next()) is not None:
            pauses = FolderPauses(Path(settings["root"]) / OWN / "pauses")
            with sharing_pauses(pauses), steps_told(signs):
                result = worker.do(unit_from_json(given), tell=lambda line: answer(progress=line))
            answer(result=result.to_json())
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # nobody listens any more
        pass
    sys.stderr.flush()
    os._exit(0)  # threads of libraries have nothing to finish
