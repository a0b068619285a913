"""What a task needs on this machine, for ``ttmbench download`` and ``doctor``: its locations, and what each lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttmbench.errors import OutOfReachError


@dataclass(frozen=True)
class DataNeed:
    """A file, a folder or a dataset that a task needs. Equal names are the same thing.

    Attributes:
        name: in messages.
        origin: the address or page it comes from.
        where: the folder it should be in.
        missing: returns why it cannot be used; None if it is here and complete. Never touches the network.
        fetch: fetches it and returns a description of what came; TtmbenchError if that fails.
        size: returns the bytes to fetch, if known.
        in_run: whether a run fetches it too, and not only ``ttmbench download``.
    """

    name: str
    origin: str
    where: str
    missing: Callable[[], str | None]
    fetch: Callable[[], str]
    size: Callable[[], int | None] = lambda: None
    in_run: bool = False


@dataclass(frozen=True)
class DataLocation:
    """A location that has all of a task's data; ``needs`` is None if only the source's reader knows what it needs."""

    name: str
    needs: Sequence[DataNeed] | None

    def missing(self) -> dict[str, str]:
        """Name of each missing need -> why it is missing."""
        reasons = ((need.name, need.missing()) for need in self.needs or ())
        return {name: why for name, why in reasons if why is not None}

    @property
    def is_here(self) -> bool | None:
        """Whether nothing is missing; None if unknown."""
        return None if self.needs is None else not self.missing()


def local_file(path: Path, lacking: Callable[[], str | None] = lambda: None) -> DataNeed:
    """A file or folder of the user's own, which is not downloaded; ``lacking``: what is missing of its content."""

    def missing() -> str | None:
        return lacking() if path.exists() else f"it is not in {path.parent}"

    def fetch() -> str:
        raise OutOfReachError(f"{path} is part of the task and is not downloaded: {missing()}")

    return DataNeed(str(path), "next to the task file", str(path.parent), missing, fetch)


def amount(size: int | None) -> str:
    """A number of bytes as text.

    >>> amount(815_585_330), amount(9_930), amount(12), amount(None)
    ('815.6 MB', '9.9 kB', '12 B', 'size unknown')
    """
    if size is None:
        return "size unknown"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} B"


def count_of_images(names: Sequence[str]) -> str:
    """How many images there are, and the first.

    >>> count_of_images(["a.jpg"]), count_of_images(["a.jpg", "b.jpg"])
    ('image a.jpg is', '2 images (a.jpg and others) are')
    """
    return f"image {names[0]} is" if len(names) == 1 else f"{len(names)} images ({names[0]} and others) are"
