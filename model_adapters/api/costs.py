"""Costs of questions: an estimate before, the server's own count of tokens after, and a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MILLION = 1_000_000


@dataclass
class Tokens:
    """A sum over answers; ``uncounted`` answers came without token counts."""

    answers: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    uncounted: int = 0

    def add(self, usage: Mapping[str, int] | None) -> None:
        """Adds one answer's ``usage`` as the server states it."""
        self.answers += 1
        self.uncounted += usage is None
        self.tokens_in += (usage or {}).get("prompt_tokens", 0)
        self.tokens_out += (usage or {}).get("completion_tokens", 0)


@dataclass
class Account:
    """Requests and costs of a run, in dollars or whatever the server bills in.

    Attributes:
        price_in: of a million tokens sent; None if unknown.
        price_out: of a million tokens received; None if unknown.
        max_cost: limit of this run; None for none.
        requests: sent, retries included.
        asked: tokens of the answers that this run was given.
        stored: tokens of the answers that were stored before.
        estimate: tokens in and out that one question is expected to take.
    """

    price_in: float | None = None
    price_out: float | None = None
    max_cost: float | None = None
    requests: int = 0
    asked: Tokens = field(default_factory=Tokens)
    stored: Tokens = field(default_factory=Tokens)
    estimate: tuple[float, float] = (0.0, 0.0)

    def price(self, tokens_in: float, tokens_out: float) -> float | None:
        """The price of tokens, None if a price is unknown.

        >>> Account(2.0, 8.0).price(500_000, 1_000)
        1.008
        """
        if self.price_in is None or self.price_out is None:
            return None
        return (tokens_in * self.price_in + tokens_out * self.price_out) / MILLION

    @property
    def cost(self) -> float | None:
        """Cost of this run's answers, by the estimate where a count is missing."""
        return self.price(
            self.asked.tokens_in + self.asked.uncounted * self.estimate[0],
            self.asked.tokens_out + self.asked.uncounted * self.estimate[1],
        )

    def has_room(self, underway: int) -> bool:
        """Whether one more question fits under the limit, beside those underway."""
        if self.max_cost is None or self.cost is None:
            return True
        counted = max(1, self.asked.answers - self.asked.uncounted)
        mean = (self.price(self.asked.tokens_in, self.asked.tokens_out) or 0.0) / counted
        each = max(self.price(*self.estimate) or 0.0, mean)
        return self.cost + (underway + 1) * each <= self.max_cost

    def report(self) -> dict[str, float | None]:
        """For the results document; money in the currency of the prices, None if they are unknown."""
        return {
            "requests": self.requests,
            "answers": self.asked.answers,
            "answers_without_count": self.asked.uncounted,
            "prompt_tokens": self.asked.tokens_in,
            "completion_tokens": self.asked.tokens_out,
            "cost": self.cost,
            "stored_answers": self.stored.answers,
            "stored_cost": self.price(self.stored.tokens_in, self.stored.tokens_out),
            "price_in": self.price_in,
            "price_out": self.price_out,
        }


def money(amount: float | None) -> str:
    """Dollars, rounded for reading.

    >>> money(1.5), money(0.00042), money(None)
    ('$1.50', '$0.00042', 'unknown (give price_in and price_out)')
    """
    if amount is None:
        return "unknown (give price_in and price_out)"
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"
