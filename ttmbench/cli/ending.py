"""The end of the command's process: nothing is left undone, and memory is left to the system.

To free all that torch and transformers made, object by object, takes Python a second and more, for nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedRandom, BufferedWriter, IOBase, TextIOWrapper
from itertools import compress
from typing import Any

from ttmbench.errors import INTERRUPTED

_WRITTEN = (BufferedRandom, BufferedWriter, TextIOWrapper)
UNWRITTEN = 120
"""What Python itself exits with if the output cannot be written."""


class QuickEnd:
    """Ends the process once Python has waited for its threads and called every other exit handler.

    Made before anything else: handlers are called from the last to the first. Where one is there already (a debugger's,
    that of a measurement of coverage), Python ends as ever. It does so, too, unless ``code`` is told.

    Attributes:
        code: what the process ends with.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        if not atexit._ncallbacks():
            atexit.register(self)

    def __call__(self) -> None:
        """Ends the process; returns, so that Python ends as ever, if an open file needs more than to be flushed."""
        if self.code is None:
            return
        try:
            for one in _open_files():
                if type(one) not in _WRITTEN:
                    return  # that of a format whose end is written when it is closed (gzip), or an address
                one.flush()
        except Exception:
            return
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
        os._exit(self.code)


def _open_files() -> Iterator[Any]:
    """Files to write that nobody closed; the output is written first, and ends the process if it cannot be."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception as error:  # a second try may find nothing left to write, and would call that well
            with suppress(Exception):
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(UNWRITTEN)
    gc.unfreeze()  # what is frozen is not listed
    objects = gc.get_objects()
    written = {*_WRITTEN, *(kind for kind in _below(_IO) if kind.__module__ != _IO.__module__)}
    for one in compress(objects, map(written.__contains__, map(type, objects))):  # hundreds of thousands
        if not one.closed and one.writable():
            yield one


def _below(kind: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(kind)
    for one in below:
        yield one
        yield from _below(one)


_IO = IOBase.__mro__[1]  # what all files are derived from, those of C too
