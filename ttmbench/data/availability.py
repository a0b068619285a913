"""What a task needs on this machine, as types: what is here or can be fetched, and the places that have it all.

Each module of `ttmbench.data.sources` has a function ``locations``: a request -> the places that have the data, in the
order in which its reader tries them. `ttmbench download` and `ttmbench doctor` ask it; it never touches the network.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        found = ((need.name, need.missing()) for need in self.needs or ())
        return {name: why for name, why in found if why is not None}

    @property
    def is_here(self) -> bool | None:
        """Whether nothing is missing; None if that cannot be told."""
        return None if self.needs is None else not self.missing()


@dataclass(frozen=True)
class LocalFile:
    """A file or folder that belongs to the task and lies beside its file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def origin(self) -> str:
        """The user."""
        return "beside the task file"

    @property
    def where(self) -> str:
        """The folder it should be in."""
        return str(self.path.parent)

    def missing(self) -> str | None:
        """Whether it is there."""
        return None if self.path.exists() else f"it is not in {self.path.parent}"

    def size(self, web: Any) -> int | None:
        """Nothing is fetched."""
        return None

    def fetch(self, web: Any) -> str:
        """Cannot be fetched."""
        if not self.path.exists():
            raise OutOfReachError(f"{self.path} is part of the task and does not exist; put it there")
        raise OutOfReachError(f"{self.path} is part of the task and is not downloaded: {self.missing()}")
