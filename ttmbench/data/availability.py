"""What a task needs on this machine: the places that have it, and what of it is here or can be fetched.

Each module of `ttmbench.data.sources` has a function ``locations``: a request -> the places that have the data, in the
order in which its reader tries them. `ttmbench download` and `ttmbench doctor` ask it; it never touches the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ttmbench.errors import OutOfReachError


class DataNeed(Protocol):
    """A file, a folder or a dataset."""

    @property
    def name(self) -> str:
        """What lines and messages call it; equal names are the same thing."""
        ...

    @property
    def origin(self) -> str:
        """Where it comes from."""
        ...

    @property
    def where(self) -> str:
        """Where it is looked for on this machine."""
        ...

    def missing(self) -> str | None:
        """Why it cannot be used as it is; None if it is here and whole. Never touches the network."""
        ...

    def size(self, web: Any) -> int | None:
        """Bytes to fetch, as far as the task file or the server tells; ``web`` is a `data.download.http.Web`."""
        ...

    def fetch(self, web: Any) -> str:
        """Fetches it; says what came.

        Raises:
            TtmbenchError: it cannot be had, and why.
        """
        ...


@dataclass(frozen=True)
class DataLocation:
    """One place that has all of a task's data.

    Attributes:
        name: what lines call it.
        needs: everything of it that has to be here; None if only the source's reader knows.
    """

    name: str
    needs: Sequence[DataNeed] | None

    def missing(self) -> dict[str, str]:
        """What is not here -> why."""
        reasons = ((need.name, need.missing()) for need in self.needs or ())
        return {name: why for name, why in reasons if why is not None}

    @property
    def is_here(self) -> bool | None:
        """Whether nothing is missing; None if that cannot be told."""
        return None if self.needs is None else not self.missing()


@dataclass(frozen=True)
class LocalFile:
    """A file or folder of the user's own, beside the task file or where that says.

    Attributes:
        path: of it.
        lacking: what is not there of its content; None if nothing.
    """

    path: Path
    lacking: Callable[[], str | None] = lambda: None
    origin = "beside the task file"

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def where(self) -> str:
        """The folder it should be in."""
        return str(self.path.parent)

    def missing(self) -> str | None:
        """Whether it is there, whole."""
        return self.lacking() if self.path.exists() else f"it is not in {self.path.parent}"

    def size(self, web: Any) -> int | None:
        """None: nothing is fetched."""
        return None

    def fetch(self, web: Any) -> str:
        """Cannot be fetched."""
        if not self.path.exists():
            raise OutOfReachError(f"{self.path} is part of the task and does not exist; put it there")
        raise OutOfReachError(f"{self.path} is part of the task and is not downloaded: {self.missing()}")


def amount(size: int | None) -> str:
    """Bytes as people read them.

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
