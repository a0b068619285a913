"""Which workers hang: those that are at work and have not ended the smallest step of it for too long.

How long a step may honestly take - a model that is loaded from a slow disk, one forward of a large one - only who gives
the command knows. So nothing is ended unless a limit was given; without one it is said, once for each unit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ttmbench._util.console import warn
from ttmbench.errors import UsageError

LEAST = 10.0  # seconds that can be asked for; signs take a few to arrive
START = 600.0  # seconds that a worker may take to start, at least: the limit is for what it does once it is ready
SAID_AFTER = 1800.0  # seconds of silence after which it is said where nobody gave a limit
_BLINK = 5.0  # the most that one look adds: a driver that was stopped itself, or a machine that slept, saw nothing


@dataclass
class _Silence:
    what: str
    at_least: float = 0.0
    seconds: float = 0.0
    said: bool = False


class Watch:
    """The silence of workers that are at work.

    Args:
        limit: seconds after which one is hung; None for none ever.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._silent: dict[str, _Silence] = {}
        self._looked = time.monotonic()

    def begin(self, worker: str, what: str, at_least: float = 0.0) -> None:
        """Starts the clock of a worker; ``what`` says to a person what it does, ``at_least`` raises a lower limit."""
        self._silent[worker] = _Silence(what, at_least)

    def heard(self, worker: str) -> None:
        """It has given a sign."""
        silence = self._silent.get(worker)
        if silence is not None:
            silence.seconds = 0.0

    def end(self, worker: str) -> None:
        """It is not at work any more, or gone."""
        self._silent.pop(worker, None)

    def hung(self) -> dict[str, str]:
        """Workers to end, each with the reason in a line; to be asked now and then, after all signs were passed on."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _BLINK), now
        found = {}
        for worker, silence in self._silent.items():
            silence.seconds += passed
            limit = None if self._limit is None else max(self._limit, silence.at_least)
            if limit is not None and silence.seconds > limit:
                found[worker] = f"it hung: no sign of progress for {limit:g} s"
            elif self._limit is None and silence.seconds > SAID_AFTER and not silence.said:
                silence.said = True
                warn(
                    f"{worker} has given no sign of progress for {SAID_AFTER / 60:.0f} minutes, at {silence.what}; "
                    "--executor_args stall=SECONDS would end it and have this done by another"
                )
        return found


def is_stall(value: Any) -> bool:
    """Whether a value can be a limit."""
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value < 1e6


STALL = f"a number of seconds from {LEAST:g}"


def read_stall(given: Mapping[str, Any]) -> float | None:
    """The limit for processes of this machine.

    Args:
        given: ``--executor_args``, read.

    Returns:
        Seconds; None if it was not given.

    Raises:
        UsageError: an unknown name, or a value that is none.
    """
    for name, value in given.items():
        if name != "stall":
            raise UsageError(f"--executor_args: processes of this machine have no '{name}'; they have: stall")
        if not is_stall(value):
            raise UsageError(f"--executor_args {name}={value}: must be {STALL}")
    return given.get("stall")
