"""SIGTERM, as schedulers send it, stops a run as Ctrl-C does: what is finished is saved first."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM is passed on as SIGINT; a second signal during the saving ends the process without it.

    Where SIGINT is ignored, as in what a script starts in the background, it stays so until SIGTERM comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    ctrl_c = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Raised as a signal, not as an exception: asyncio lets requests under way end only if it sees the signal.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with _not_lost_in_finalizers():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if ctrl_c == signal.SIG_IGN:
            signal.signal(signal.SIGINT, ctrl_c)


def _interrupt_main_thread() -> None:
    """By a signal where there are such, which also ends the sleep of a program that waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def _not_lost_in_finalizers() -> Iterator[None]:
    """Inside, an interrupt that comes while a ``__del__`` runs, where Python reports and drops it, comes once more."""
    before, again = sys.unraisablehook, list[threading.Timer]()

    def report(what: UnraisableHookArgs) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            before(what)
            return
        again.append(threading.Timer(0.05, _interrupt_main_thread))
        again[-1].daemon = True
        again[-1].start()

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in again:
            timer.cancel()
