"""A worker: does units one after the other and keeps what it has loaded. It knows of no process and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ttmbench.sweep.units import Unit, UnitResult

Tell = Callable[[str], None]
"""Takes a short line on what is being done."""


class Worker:
    """Does units; the same object from first to last, in one thread.

    Args:
        root: the sweep's folder; of a worker that has none in common with the driver, an own one for a while.
        common: whether ``root`` is the driver's own.
        cache: folder of raw scores in place of that of the configurations; below ``root`` it travels with the files.
        keep: how many models stay loaded.
    """

    def __init__(self, root: Path, *, common: bool = True, cache: str | None = None, keep: int = 1) -> None:
        self.root, self.common, self._cache, self._keep = root, common, cache, keep

    def do(self, unit: Unit, files: Mapping[str, bytes] | None = None, tell: Tell = lambda line: None) -> UnitResult:
        """Does a unit. Whatever goes wrong is in the result; KeyboardInterrupt means that it is to stop.

        Args:
            unit: what to do.
            files: path below ``root`` -> content of what earlier units have left; put there first. None where the
                folder is common.
            tell: is told what is going on.

        Returns:
            How it ended, and without a common folder the files that it wrote.
        """
        raise NotImplementedError
