"""Python's collector of garbage, out of the way while libraries are imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 100_000  # objects more than were freed; by default a few hundred


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Inside, garbage is looked for seldom; also a decorator.

    Imports make millions of objects that stay, and looking through them again and again is a tenth of their time.
    """
    before, blocks = gc.get_threshold(), sys.getallocatedblocks()
    gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        if sys.getallocatedblocks() - blocks > SELDOM:
            _all_are_old()
        gc.set_threshold(*before)


def _all_are_old() -> None:
    """What there is counts as having outlived collections: the next, of what is young, need not look through it."""
    if not gc.get_freeze_count():  # else what others froze would thaw
        gc.freeze()
        gc.unfreeze()
