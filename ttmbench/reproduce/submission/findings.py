"""What is wrong with a submission, a line each: where it stands, what was found, and what should be there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ttmbench._util.console import one_line

TOLERANCE = 1e-12
"""By how much two floats may differ, relative to the larger one and to 1: another CPU may round the last bits."""

_SHOWN = 160  # characters of a value in a line
_PLACE = 200  # of the place


@dataclass(frozen=True)
class SubmissionFinding:
    """One thing that is not as it should be, or that cannot be checked.

    Attributes:
        place: keys of the document joined by dots, or the file.
        words: what was found and what should be there.
        unchecked: nothing is known to be wrong, but what would show it is missing.
    """

    place: str
    words: str
    unchecked: bool = False

    @property
    def line(self) -> str:
        """The finding as one line."""
        return f"{one_line(self.place, _PLACE)}: {'cannot be checked: ' if self.unchecked else ''}{self.words}"


@dataclass
class Findings:
    """Collects what is found.

    Attributes:
        found: in the order of the checks.
        compared: how many values were computed again and compared.
        notes: what a reader should know and nothing is wrong with.
        checkpoint: what the document says of the model's weights.
        raw_scores: task -> the raw model's scores, by which copies are recognised.
    """

    found: list[SubmissionFinding] = field(default_factory=list)
    compared: int = 0
    notes: list[str] = field(default_factory=list)
    checkpoint: str = ""
    raw_scores: dict[str, np.ndarray] = field(default_factory=dict)
    _known: set[SubmissionFinding] = field(default_factory=set, repr=False)

    @property
    def wrong(self) -> list[SubmissionFinding]:
        """Those that refuse the submission whatever is allowed."""
        return [finding for finding in self.found if not finding.unchecked]

    @property
    def unchecked(self) -> list[SubmissionFinding]:
        """Those of what could not be checked."""
        return [finding for finding in self.found if finding.unchecked]

    def refuse(self, place: str, words: str, unchecked: bool = False) -> None:
        """Adds what is wrong."""
        finding = SubmissionFinding(place, words, unchecked)
        if finding not in self._known:
            self._known.add(finding)
            self.found.append(finding)

    def leave_open(self, place: str, words: str) -> None:
        """Adds what cannot be checked."""
        self.refuse(place, words, unchecked=True)

    def same(self, place: str, found: object, expected: object, by: str) -> bool:
        """Compares a value with what it should be.

        Args:
            place: where the value stands; of a mapping the key that differs is added.
            found: the value.
            expected: what it should be.
            by: who says so, before the value: "its scores give".

        Returns:
            Whether they agree.
        """
        if isinstance(found, Mapping) and isinstance(expected, Mapping):
            agreed = True
            for key in dict.fromkeys([*expected, *found]):
                if key not in found:
                    self.refuse(f"{place}.{key}", f"is missing; {by} {_shown(expected[key])}")
                elif key not in expected:
                    self.refuse(f"{place}.{key}", f"is {_shown(found[key])}; {by} no value for it")
                elif self.same(f"{place}.{key}", found[key], expected[key], by):
                    continue
                agreed = False
            return agreed
        self.compared += 1
        if agree(found, expected):
            return True
        self.refuse(place, f"is {_shown(found)}; {by} {_shown(expected)}")
        return False


def agree(found: object, expected: object) -> bool:
    """Whether two JSON values are the same: of one type, floats within `TOLERANCE`.

    >>> agree(0.1 + 0.2, 0.3), agree(0.95, 0.925), agree(None, 0.0), agree([1, 2.0], [1, 2]), agree(True, 1)
    (True, False, False, False, False)
    """
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(agree, found, expected))
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(agree(found[key], expected[key]) for key in found)
    if type(found) is not type(expected):
        return False
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return found == expected


def _shown(value: object) -> str:
    return one_line("null" if value is None else str(value), _SHOWN)
