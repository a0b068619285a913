"""Progress bars: on stderr, silent when it is not a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def progress_iter(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """Yields the items and shows how far they are, counting ``unit``."""
    from tqdm import tqdm

    yield from tqdm(items, desc=what, total=total, unit=f" {unit}", leave=False, disable=None, dynamic_ncols=True)


def progress_bar(total: int, what: str, unit: str) -> Any:
    """A bar to move by hand (``update``, ``set_postfix_str``), counting ``unit``; a context manager."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=f" {unit}", leave=False, disable=None, dynamic_ncols=True)
