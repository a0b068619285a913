"""Ctrl-C and SIGTERM: the first saves what is finished, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def saving_first(keeps: bool) -> Iterator[None]:
    """Inside, an interruption is raised as KeyboardInterrupt once, and a second one exits with 130 without more ado.

    Args:
        keeps: whether there is a place to save to.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def at_once(number: int, frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    def first(number: int, frame: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, at_once)
        what = "saving; the same command goes on from here" if keeps else "nothing is kept without --output_path"
        print(f"\nttmbench: stopping: {what} (once more ends at once)", file=sys.stderr, flush=True)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, first) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
