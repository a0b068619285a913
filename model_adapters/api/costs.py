"""What questions cost: an estimate before, the server's own count of tokens after, and a limit in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """Per million tokens, in dollars or whatever the server bills in; None if unknown."""

    tokens_in: float | None = None
    tokens_out: float | None = None

    def of(self, tokens_in: float, tokens_out: float) -> float | None:
        """The price of so many tokens, None if a price is unknown.

        >>> Prices(2.0, 8.0).of(500_000, 1_000)
        1.008
        """
        if self.tokens_in is None or self.tokens_out is None:
            return None
        return (tokens_in * self.tokens_in + tokens_out * self.tokens_out) / MILLION


@dataclass
class Tokens:
    """A sum over answers; ``uncounted`` answers came without a count."""

    answers: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    uncounted: int = 0

    def add(self, usage: Mapping[str, int] | None) -> None:
        """Takes in one answer's ``usage`` as the server states it."""
        self.answers += 1
        counted = [(usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens")]
        if not all(isinstance(value, int) for value in counted):
            self.uncounted += 1
            return
        self.tokens_in += int(counted[0] or 0)
        self.tokens_out += int(counted[1] or 0)


@dataclass
class Account:
    """What a run has asked and spent.

    Attributes:
        prices: per million tokens.
        max_cost: what this run may spend; None for no limit.
        shares: among so many processes; each may spend its part.
        requests: sent, retries included.
        asked: tokens of the answers that this run was given.
        stored: tokens of the answers that were there before.
    """

    prices: Prices = field(default_factory=Prices)
    max_cost: float | None = None
    shares: int = 1
    requests: int = 0
    asked: Tokens = field(default_factory=Tokens)
    stored: Tokens = field(default_factory=Tokens)
    _underway: int = 0
    _estimate: tuple[float, float] = (0.0, 0.0)  # tokens in and out of one question

    def expect(self, tokens_in: float, tokens_out: float) -> None:
        """Sets what one question is expected to take, for the limit."""
        self._estimate = (tokens_in, tokens_out)

    def start(self) -> None:
        """A question is about to be asked."""
        self._underway += 1

    def finish(self, usage: Mapping[str, int] | None) -> None:
        """A question was answered."""
        self._underway -= 1
        self.asked.add(usage)

    def give_up(self) -> None:
        """A question got no answer."""
        self._underway -= 1

    @property
    def cost(self) -> float | None:
        """What this run's answers cost; those without a count go by the estimate."""
        return self.prices.of(
            self.asked.tokens_in + self.asked.uncounted * self._estimate[0],
            self.asked.tokens_out + self.asked.uncounted * self._estimate[1],
        )

    @property
    def has_room(self) -> bool:
        """Whether one more question fits under the limit, all that are underway taken into account."""
        cost = self.cost
        if self.max_cost is None or cost is None:
            return True
        each = self.prices.of(*self._estimate) or 0.0
        counted = self.asked.answers - self.asked.uncounted
        if counted:
            each = max(each, (self.prices.of(self.asked.tokens_in, self.asked.tokens_out) or 0.0) / counted)
        return cost + (self._underway + 1) * each <= self.max_cost / self.shares

    @property
    def limit(self) -> str:
        """The limit as the user gave it, and what is left of it for a share."""
        if self.max_cost is None:
            return "no max_cost"
        each = f", {money(self.max_cost / self.shares)} for each of {self.shares} shares" if self.shares > 1 else ""
        return f"max_cost={self.max_cost:g}{each}"

    def report(self) -> dict[str, float | None]:
        """For the results document; money in the currency of the prices, None if they are unknown."""
        before = self.prices.of(self.stored.tokens_in, self.stored.tokens_out)
        return {
            "requests": self.requests,
            "answers": self.asked.answers,
            "answers_without_count": self.asked.uncounted,
            "prompt_tokens": self.asked.tokens_in,
            "completion_tokens": self.asked.tokens_out,
            "cost": self.cost,
            "stored_answers": self.stored.answers,
            "stored_cost": before,
            "price_in": self.prices.tokens_in,
            "price_out": self.prices.tokens_out,
        }


def money(amount: float | None) -> str:
    """Dollars as people read them.

    >>> money(1.5), money(0.00042), money(None)
    ('$1.50', '$0.00042', 'unknown (give price_in and price_out)')
    """
    if amount is None:
        return "unknown (give price_in and price_out)"
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"
