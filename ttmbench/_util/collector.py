"""Python's collector of garbage, out of the way while libraries are imported."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 100_000  # objects more than were freed; by default a few hundred

_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []  # the thresholds that each thread found; the first's are everybody's
_frozen = threading.Event()  # by others, which is seen once: to count a million objects takes 0.1 s


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Inside, garbage is looked for seldom; also a decorator.

    Imports make millions of objects that stay, and looking through them again and again is a tenth of their time.
    """
    looks, young = _looks_and_young()
    with _lock:
        _inside.append(gc.get_threshold())
        first, *others = _inside[0]
        if 0 < first < SELDOM:  # 0: a program collects when it wants to
            gc.set_threshold(SELDOM, *others)
    try:
        yield
    finally:
        more_looks, more_young = _looks_and_young()
        if more_looks > looks or more_young - young > SELDOM // 3:
            _all_are_old()
        with _lock:
            before = _inside[0]
            _inside.pop()
            if not _inside:
                gc.set_threshold(*before)


def _looks_and_young() -> tuple[int, int]:
    """How often what is young was looked through, and how much there is since; allocated blocks take long to count."""
    return gc.get_stats()[0]["collections"], gc.get_count()[0]


def _all_are_old() -> None:
    """What there is counts as having outlived collections: the next, of what is young, need not look through it."""
    if _frozen.is_set():
        return
    if gc.get_freeze_count():  # it would thaw
        _frozen.set()
    else:
        gc.freeze()
        gc.unfreeze()
