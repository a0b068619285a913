"""The process of a local worker: reads orders from stdin and answers on what was its stdout, as lines of JSON.

Whatever else is printed goes to stderr, which is its log. It ends when stdin does: its driver is gone then.
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

from ttmbench.evaluator.local_executor import OWN, STACKS

GRACE = 4.0  # seconds for a unit to stop and save its state
_SIGNS = 1.0  # seconds between two signs of progress


def _read_orders(stream: IO[str], units: queue.SimpleQueue[object]) -> None:
    """Queues units for the main thread; at the order to stop queues None and interrupts the unit under way."""
    for line in stream:
        order = json.loads(line)
        if "unit" not in order:
            break
        units.put(order["unit"])
    units.put(None)
    threading.Timer(GRACE, os._exit, [130]).start()
    _thread.interrupt_main()


def main() -> None:
    """Does units until the order to stop, and ends the process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what adapters print is not an answer
    stream = os.fdopen(os.dup(0), "r", encoding="utf-8")
    writing = threading.Lock()

    def answer(**content: object) -> None:
        with writing:
            answers.write(json.dumps(content) + "\n")
            answers.flush()

    if STACKS is not None:
        faulthandler.register(STACKS, file=2)
    with suppress(KeyboardInterrupt, BrokenPipeError):  # it is to stop, or its driver is gone
        settings = json.loads(stream.readline())
        from ttmbench._util.console import steps_told
        from ttmbench._util.rate_limit import FolderPauses, sharing_pauses
        from ttmbench.evaluator.executor import Throttle
        from ttmbench.evaluator.unit import UNIT
        from ttmbench.evaluator.worker import Worker

        root = Path(settings["root"])
        worker = Worker(root, device=settings["device"])
        signs = Throttle(lambda: answer(step=True), _SIGNS)
        answer(ready=True)
        units: queue.SimpleQueue[object] = queue.SimpleQueue()
        threading.Thread(target=_read_orders, args=(stream, units), daemon=True).start()
        while (unit := units.get()) is not None:
            with sharing_pauses(FolderPauses(root / OWN / "pauses")), steps_told(signs):
                result = worker.do(UNIT.validate_python(unit), report=lambda line: answer(progress=line))
            answer(result=vars(result))
    sys.stderr.flush()
    os._exit(0)  # threads of libraries have nothing to finish
