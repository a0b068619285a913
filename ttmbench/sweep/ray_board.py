"""The board of a cluster: a small actor by which workers tell the driver what they do, and keep pauses together."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

_AGAIN = 0.5  # seconds between two looks at the board


class BoardPauses:
    """Pauses that the board of a cluster keeps; a `ttmbench._util.rate_limit.Pauses`."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._known: dict[str, tuple[float, float]] = {}

    def left(self, server: str) -> float:
        """Seconds until a server may be asked; asks the board now and then."""
        now = time.monotonic()
        asked, until = self._known.get(server, (-1e9, 0.0))
        if now - asked > _AGAIN:
            import ray

            with suppress(ray.exceptions.RayError):  # without a board everyone waits for itself
                until = max(until, now + ray.get(self._board.left.remote(server), timeout=2.0))
            self._known[server] = (now, until)
        return max(0.0, until - now)

    def hold(self, server: str, seconds: float) -> None:
        """Nobody asks the server for so long."""
        now = time.monotonic()
        asked, until = self._known.get(server, (now, 0.0))
        self._known[server] = (asked, max(until, now + seconds))
        self._board.hold.remote(server, seconds)


def board_class() -> type:
    """The class of the board: the last line of each worker, and until when nobody asks which server."""

    class Board:
        def __init__(self) -> None:
            self._lines: dict[str, str | None] = {}
            self._until: dict[str, float] = {}

        def tell(self, worker: str, line: str | None) -> None:
            """A worker's line, or without one that it goes on."""
            self._lines[worker] = line or self._lines.get(worker)

        def take(self) -> dict[str, str | None]:
            """What was told since the last time."""
            lines, self._lines = self._lines, {}
            return lines

        def hold(self, server: str, seconds: float) -> None:
            import time

            self._until[server] = max(self._until.get(server, 0.0), time.monotonic() + seconds)

        def left(self, server: str) -> float:
            import time

            return max(0.0, self._until.get(server, 0.0) - time.monotonic())

    return Board
