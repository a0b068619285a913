"""Memory that a process freed and soon wants again: kept, where the C library would give it back to the system."""

from __future__ import annotations

import ctypes
import os

KEPT = 1 << 30
"""Bytes: a larger piece goes back to the system once it is freed, and so does what is free beyond this at the end."""
# glibc's variables, and numbers in its malloc.h
_OPTIONS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
_OTHERS = ("MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Has glibc keep up to `KEPT` bytes of freed memory, here and in processes that this one starts, for good.

    By default it asks the system for each piece above 32 MB and gives it back, so that a batch of pixels or
    activations is cleared, page by page, each time it is made: the time of a pass over it, and more on a virtual
    machine. Another C library, and whoever has set that up by variables of glibc's, is left alone.

    Returns:
        Whether anything was changed.
    """
    asked = any(name in os.environ for name in (*_OPTIONS, *_OTHERS))
    asked = asked or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if asked or "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}) or not os.confstr("CS_GNU_LIBC_VERSION"):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    for name, number in _OPTIONS.items():
        mallopt(number, KEPT)
        os.environ[name] = str(KEPT)
    return True
