"""Pauses shared by several processes: a server that limits one of them limits all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ttmbench._util.files import replace_file

LONGEST = 3600.0  # seconds; longer ones come from a changed clock or an old file


class FolderPauses:
    """Pauses of the processes that use one folder: a file for each server has the end of its pause.

    A file that cannot be written or read is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def left(self, server: str) -> float:
        """Seconds until a server may be used."""
        try:
            until = float(self._file(server).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0.0
        left = until - time.time()
        return left if 0 < left <= LONGEST else 0.0

    def hold(self, server: str, seconds: float) -> None:
        """Extends the pause of a server to so many seconds."""
        if seconds <= self.left(server):
            return
        until = f"{time.time() + min(seconds, LONGEST):.3f}"
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._file(server), lambda path: path.write_text(until, encoding="ascii"), to_disk=False)

    def _file(self, server: str) -> Path:
        return self._folder / f"{hashlib.sha256(server.encode()).hexdigest()[:16]}.txt"


_SHARED: ContextVar[FolderPauses | None] = ContextVar("pauses that processes share", default=None)


@contextmanager
def sharing_pauses(pauses: FolderPauses) -> Iterator[None]:
    """Inside, models behind servers use these pauses."""
    token = _SHARED.set(pauses)
    try:
        yield
    finally:
        _SHARED.reset(token)


def shared_pauses() -> FolderPauses | None:
    """The pauses of `sharing_pauses`; None outside."""
    return _SHARED.get()
