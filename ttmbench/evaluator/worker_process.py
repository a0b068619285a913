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
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from ttmbench.evaluator.local_executor import OWN, WHERE

GRACE = 4.0  # seconds for a unit to stop and to say where it stands
_SIGNS = 1.0  # seconds between two signs of progress


class _Orders:
    """What is read from stdin, by a thread: units for the main thread, and the order to stop, which interrupts it."""

    def __init__(self, stream: IO[str]) -> None:
        self._units: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> object:
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

    def answer(**content: object) -> None:
        with writing:
            answers.write(json.dumps(content) + "\n")
            answers.flush()

    if WHERE is not None:
        faulthandler.register(WHERE, file=2)
    with suppress(KeyboardInterrupt, BrokenPipeError):  # it is to stop, or nobody listens any more
        settings = json.loads(stream.readline())
        from ttmbench._util.console import steps_told
        from ttmbench._util.rate_limit import FolderPauses, sharing_pauses
        from ttmbench.evaluator.executor import Signs
        from ttmbench.evaluator.unit import unit_from_json
        from ttmbench.evaluator.worker import Worker

        root = Path(settings["root"])
        worker = Worker(root, device=settings["device"])
        signs = Signs(lambda: answer(step=True), _SIGNS)
        answer(ready=True)
        orders = _Orders(stream)
        while (given := orders.next()) is not None:
            with sharing_pauses(FolderPauses(root / OWN / "pauses")), steps_told(signs):
                result = worker.do(unit_from_json(given), tell=lambda line: answer(progress=line))
            answer(result=vars(result))
    sys.stderr.flush()
    os._exit(0)  # threads of libraries have nothing to finish
