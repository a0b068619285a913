"""How much of a task a run has scored: all of its groups, or a part (``--limit``, ``--samples``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STORED_SCORES, STORED_ANSWERS = "stored_scores", "stored_answers"
"""Kinds of source of what ``ttmbench score`` reads: the data themselves were not seen."""
STORED_NOTE = (
    "scored from a file, without images and captions: comparable with results from files that have the same task, "
    "version, shape and group ids"
)


@dataclass(frozen=True)
class Extent:
    """How many groups a number is of."""

    groups: int | None = None  # that were scored; None if unknown
    of: int | None = None  # that the task has; None if unknown
    limited: bool = False  # the user asked for a part of the task; unavailable images do not count as that

    @property
    def words(self) -> str:
        """Both counts.

        >>> Extent(8, 200, True).words, Extent(8, None, True).words, Extent(None, None, False).words
        ('8 of 200', '8 of ?', '-')
        """
        return "-" if self.groups is None else f"{self.groups} of {'?' if self.of is None else self.of}"


def together(parts: Iterable[Extent]) -> Extent:
    """The extent of a mean over several tasks: limited if one of them is.

    >>> together([Extent(8, 200, True), Extent(100, 100, False)])
    Extent(groups=108, of=300, limited=True)
    """
    known = list(parts)
    groups = [part.groups for part in known if part.groups is not None]
    totals = [part.of for part in known if part.of is not None]
    return Extent(
        sum(groups) if groups and len(groups) == len(known) else None,
        sum(totals) if totals and len(totals) == len(known) else None,
        any(part.limited for part in known),
    )
