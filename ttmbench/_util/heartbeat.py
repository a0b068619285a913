"""Small steps of work, as they end: a batch, a block of a download. By them a process is seen to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_told: Callable[[], object] | None = None


def step_done() -> None:
    """Says that something has moved; called often, from any thread, and free where nobody listens."""
    if _told is not None:
        _told()


@contextmanager
def steps_told(listener: Callable[[], object]) -> Iterator[None]:
    """Inside, ``listener`` is called after every step, in the thread that has done it; it serves the whole process."""
    global _told
    before, _told = _told, listener
    try:
        yield
    finally:
        _told = before
