"""The end of the command's process: nothing is left undone, and memory is left to the system.

To free all that torch and transformers made, object by object, takes Python a second and more, for nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from io import BufferedRandom, BufferedWriter, TextIOWrapper

_WRITTEN = {BufferedRandom, BufferedWriter, TextIOWrapper}


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
        """Ends the process; returns if Python has to say that something cannot be written."""
        if self.code is None:
            return
        try:
            for one in gc.get_objects():  # files that nobody closed, beside the output
                if type(one) in _WRITTEN and not one.closed:
                    one.flush()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
        except Exception:
            return
        os._exit(self.code)
