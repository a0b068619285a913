"""What a task needs on this machine, as types: what is here or can be fetched, and the places that have it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Need(Protocol):
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
class Place:
    """One place that has all of a task's data.

    Attributes:
        name: what lines call it.
        needs: everything of it that has to be here; None if only the source's reader knows.
    """

    name: str
    needs: Sequence[Need] | None

    def missing(self) -> dict[str, str]:
        """What is not here -> why."""
        found = ((need.name, need.missing()) for need in self.needs or ())
        return {name: why for name, why in found if why is not None}

    @property
    def is_here(self) -> bool | None:
        """Whether nothing is missing; None if that cannot be told."""
        return None if self.needs is None else not self.missing()
