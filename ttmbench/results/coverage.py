"""How much of a task a run has scored: all of its groups, or a part (``--limit``, ``--samples``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STORED_SCORES, STORED_ANSWERS = "stored_scores", "stored_answers"
"""Kinds of source of what ``ttmbench score`` reads: the data themselves were not seen."""


@dataclass(frozen=True)
class Extent:
    """How many groups a number is of.

    Attributes:
        groups: that were scored; None if unknown.
        of: that the task has; None if unknown.
        limited: the run was asked for a part of the task, so its numbers are no result of the task. Groups that are
            left out because their images cannot be had any more do not make it one.
    """

    groups: int | None
    of: int | None
    limited: bool

    @property
    def words(self) -> str:
        """Both counts.

        >>> Extent(8, 200, True).words, Extent(8, None, True).words, Extent(None, None, False).words
        ('8 of 200', '8 of ?', '-')
        """
        return "-" if self.groups is None else f"{self.groups} of {'?' if self.of is None else self.of}"


def extent_of(document: Mapping[str, Any], task: str) -> Extent:
    """How much of a task a results document is of.

    ``n-samples`` tells where the task file states its size. Where it does not, both counts of ``n-samples`` are what
    was scored: then a run with a limit that was reached, or with ``samples``, is one of a part of unknown size.

    Args:
        document: of results.
        task: one of its tasks.

    Returns:
        The extent.

    Raises:
        TypeError, ValueError, AttributeError: the document is not as its schema says.
    """
    counts = (document.get("n-samples") or {}).get(task) or {}
    scored, total = counts.get("effective"), counts.get("original")
    for count in (scored, total):
        if count is not None and (type(count) is not int or not 0 <= count < 2**53):
            raise ValueError(f"{count!r:.80} is no whole number from 0")
    coverage = ((document.get("datasets") or {}).get(task) or {}).get("coverage")
    if coverage is not None and scored is not None and scored == coverage["here"]:
        return Extent(scored, int(coverage["rows"]), False)
    if scored is None or total is None or scored != total:
        return Extent(scored, total, scored is not None and total is not None and scored < total)
    config = document.get("config") or {}
    limit = config.get("limit")
    cut = (type(limit) is int and scored >= limit) or config.get("samples") is not None
    # Of stored scores the limit itself was once written down as the task's size.
    if cut and (source_kind(document, task) == STORED_SCORES or not _states_size(document, task)):
        return Extent(scored, None, True)
    return Extent(scored, total, False)


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


def source_kind(document: Mapping[str, Any], task: str) -> str | None:
    """The kind of source that a document says a task was read from: ``folder``, ``stored_features``, ..."""
    source = ((document.get("datasets") or {}).get(task) or {}).get("source")
    kind = source.get("kind") if isinstance(source, Mapping) else None
    return kind if isinstance(kind, str) else None


def _states_size(document: Mapping[str, Any], task: str) -> bool:
    """Whether the task file, as the run had it, states how many groups there are."""
    group = ((document.get("configs") or {}).get(task) or {}).get("group") or {}
    return isinstance(group, Mapping) and group.get("n_groups") is not None


def is_stored(document: Mapping[str, Any], task: str) -> bool:
    """Whether a task's numbers are of a file of scores, ranks or answers, and not of a run on the data."""
    return source_kind(document, task) in (STORED_SCORES, STORED_ANSWERS)
