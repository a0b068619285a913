"""Pauses that several processes keep together: a server that limits one of them limits all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from ttmbench._util.files import replace_file

LONGEST = 3600.0  # seconds; what says more is a clock that was set, or a file of another day


class Pauses(Protocol):
    """Until when nobody asks a server; one of them serves all who share it."""

    def left(self, server: str) -> float:
        """Seconds until a server may be asked; 0 for at once."""
        ...

    def hold(self, server: str, seconds: float) -> None:
        """Nobody asks the server for so long; what is longer already stays."""
        ...


_SHARED: ContextVar[Pauses | None] = ContextVar("pauses that processes share", default=None)


@contextmanager
def sharing_pauses(pauses: Pauses) -> Iterator[None]:
    """Inside, models behind servers keep these pauses."""
    token = _SHARED.set(pauses)
    try:
        yield
    finally:
        _SHARED.reset(token)


def shared_pauses() -> Pauses | None:
    """The pauses to keep; None for a process that shares none."""
    return _SHARED.get()


class FolderPauses:
    """Pauses of the processes that see one folder: a file for each server, with the time until which to wait.

    Args:
        folder: need not exist. What cannot be written or read there is no pause.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def left(self, server: str) -> float:
        """Seconds until a server may be asked."""
        try:
            until = float(self._file(server).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0.0
        left = until - time.time()
        return left if 0 < left <= LONGEST else 0.0

    def hold(self, server: str, seconds: float) -> None:
        """Nobody asks the server for so long."""
        if seconds <= self.left(server):
            return
        until = f"{time.time() + min(seconds, LONGEST):.3f}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._file(server), lambda path: path.write_text(until, encoding="ascii"), to_disk=False)
        except OSError:
            pass

    def _file(self, server: str) -> Path:
        return self._folder / f"{hashlib.sha256(server.encode()).hexdigest()[:16]}.txt"
