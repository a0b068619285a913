"""Progress bars on stderr, silent when it is not a terminal, and the small steps by which a process is seen to move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

T = TypeVar("T")
_told: Callable[[], object] | None = None


def step_done() -> None:
    """Says that something has moved; called often, from any thread, and free where nobody listens."""
    if _told is not None:
        _told()


@contextmanager
def steps_told(listener: Callable[[], object]) -> Iterator[None]:
    """Inside, ``listener`` is called after every step, in the thread that has done it; it serves the whole process."""
    global _told
    before, _told = _told, listener
    try:
        yield
    finally:
        _told = before


class Bar:
    """A bar to move by hand; a context manager.

    Args:
        bar: what draws it.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update(self, steps: int = 1) -> None:
        """So many more are done."""
        step_done()
        self._bar.update(steps)

    def set_postfix_str(self, text: str) -> None:
        """Shows a text behind it."""
        self._bar.set_postfix_str(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


def progress_iter(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """Yields the items and shows how far they are, counting ``unit``."""
    from tqdm import tqdm

    for item in tqdm(items, desc=what, total=total, unit=f" {unit}", leave=False, disable=None, dynamic_ncols=True):
        yield item
        step_done()


def progress_bar(total: int | None, what: str, unit: str, /, **drawn: Any) -> Bar:
    """A bar to move by hand, counting ``unit``; ``drawn`` is for ``tqdm``."""
    from tqdm import tqdm

    how = {"unit": f" {unit}", "leave": False, "disable": None, "dynamic_ncols": True, **drawn}
    return Bar(tqdm(total=total, desc=what, **how))
