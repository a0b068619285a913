"""Progress bars: on stderr, silent when it is not a terminal. What moves them is a step for who watches the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeVar

from ttmbench._util.heartbeat import step_done

T = TypeVar("T")


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
