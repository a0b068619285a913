"""What a task needs on this machine, for ``ttmbench download`` and ``doctor``: its locations, and what each lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ttmbench.errors import OutOfReachError


class DataNeed(Protocol):
    """A file, a folder or a dataset: its name in messages, the address or page it comes from, and where it should be.

    Equal names are the same thing.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def origin(self) -> str: ...  # noqa: D102

    @property
    def where(self) -> str: ...  # noqa: D102

    def missing(self) -> str | None:
        """Why it cannot be used; None if it is here and complete. Never touches the network."""

    def size(self) -> int | None:
        """Bytes to fetch, if known."""

    def fetch(self) -> str:
        """Fetches it and returns a description of what came; TtmbenchError if that fails."""


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


@dataclass(frozen=True)
class LocalFile:
    """A file or folder of the user's own; ``lacking`` returns what is missing of its content."""

    path: Path
    lacking: Callable[[], str | None] = lambda: None
    origin = "next to the task file"

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def where(self) -> str:
        """The folder it should be in."""
        return str(self.path.parent)

    def missing(self) -> str | None:
        """Why it cannot be used."""
        return self.lacking() if self.path.exists() else f"it is not in {self.path.parent}"

    def size(self) -> int | None:
        """None: nothing is fetched."""
        return None

    def fetch(self) -> str:
        """Raises OutOfReachError: it is not downloaded."""
        raise OutOfReachError(f"{self.path} is part of the task and is not downloaded: {self.missing()}")


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
