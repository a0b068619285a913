"""SIGTERM, as schedulers send it, stops a run as Ctrl-C does: what is finished is saved first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM is passed on as SIGINT; a second signal during the saving ends the process without it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    # Raised as a signal, not as an exception: asyncio lets requests under way end only if it sees the signal.
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
