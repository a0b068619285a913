"""Python's collector of garbage, out of the way while libraries are imported."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 100_000  # objects more than were freed; by default a few hundred

_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []  # the thresholds that each thread found; the first's are everybody's
_frozen: list[bool] = []  # whether others froze something, once that is known: a million objects count for 0.1 s


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Inside, garbage is looked for seldom; also a decorator.

    Imports make millions of objects that stay, and looking through them again and again is a tenth of their time.
    """
    blocks = sys.getallocatedblocks()
    with _lock:
        _inside.append(gc.get_threshold())
        first, *others = _inside[0]
        if 0 < first < SELDOM:  # 0: a program collects when it wants to
            gc.set_threshold(SELDOM, *others)
    try:
        yield
    finally:
        if sys.getallocatedblocks() - blocks > SELDOM:
            _all_are_old()
        with _lock:
            before = _inside[0]
            _inside.pop()
            if not _inside:
                gc.set_threshold(*before)


def _all_are_old() -> None:
    """What there is counts as having outlived collections: the next, of what is young, need not look through it."""
    if any(_frozen):
        return
    if gc.get_freeze_count():  # it would thaw
        _frozen.append(True)
    else:
        gc.freeze()
        gc.unfreeze()
