"""How many pairs a model left undecided when it was asked for yes or no, and what it said instead."""

from __future__ import annotations

from collections import Counter

from ttmbench.model import UndecidedPairs

LEAST_MASS = 0.01  # P(yes) + P(no); below it their ratio says little, since the model was about to say something else


class Decisions:
    """Counts pairs until they are taken."""

    def __init__(self) -> None:
        self._undecided, self._masses, self._instead = 0, list[float](), Counter[str]()

    def add(self, mass: float, first: str, undecided: bool = False) -> None:
        """Counts a pair: P(yes) + P(no), the most probable first token, and whether its score is undecided anyway."""
        is_low = mass < LEAST_MASS
        self._undecided += undecided or is_low
        self._masses.append(mass)
        if is_low and first:
            self._instead[first] += 1

    def take(self) -> UndecidedPairs:
        """All pairs since the last call."""
        count = len(self._masses)
        mass = sum(self._masses) / count if count else None
        instead = next((token for token, _ in self._instead.most_common(1)), None)
        taken = UndecidedPairs(self._undecided, count, mass, instead)
        Decisions.__init__(self)
        return taken
