"""VQAScore from listed tokens: how much more probable "yes" is than "no" (arXiv:2404.01291; arXiv:2510.07632, 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

UNLISTED = -9999.0  # what servers write for a token outside their list
YES_TOKEN = "Yes"  # the one token that t2v_metrics looks for
LEAST_LEFT = 2.0**-20  # log-probabilities are float32: what a list sums to is not known more closely
_SPACES = " \t\r\n\u0120\u2581\u010a"  # also the marks for spaces and line ends of byte-pair and SentencePiece tokens


@dataclass(frozen=True)
class YesNo:
    """Log-probabilities of the two answers.

    Attributes:
        yes: of all listed tokens that say yes, summed as probabilities.
        no: of all that say no.
        bounded: the side that was not listed and has an upper bound instead, if one was not.
    """

    yes: float
    no: float
    bounded: Literal["yes", "no"] | None = None

    @property
    def log_odds(self) -> float:
        """Logarithm of P(yes) / P(no); larger is a better fit."""
        return self.yes - self.no

    @property
    def probability(self) -> float:
        """P(yes), as VQAScore is defined; what other tokens have is neither yes nor no."""
        return math.exp(min(self.yes, 0.0))


def read_yes_no(listed: Sequence[tuple[str, float]]) -> YesNo | None:
    """Sums the listed tokens that say yes and those that say no, in any case and with any space around them.

    An entry that is repeated (the same token with the same log-probability) counts once: the formula sums over tokens.

    A side of which no token is listed has at most the probability of the least probable listed token, and all unlisted
    tokens together have what the listed ones leave of 1. It gets the less of the two: a bound, and marked as one.

    Args:
        listed: (token, natural log-probability) of the most probable first tokens of an answer.

    Returns:
        Both sides; None if neither is listed, so that nothing can be said.

    >>> round(math.exp(read_yes_no([("Yes", -0.6931472), (" yes", -1.3862944), ("No", -1.3862944)]).log_odds), 6)
    3.0
    >>> read_yes_no([("Yes", -0.01), ("The", -6.0)])
    YesNo(yes=-0.01, no=-6.0, bounded='no')
    >>> round(math.exp(read_yes_no([("Yes", math.log(0.9)), ("The", math.log(0.09))]).no), 6)
    0.01
    >>> read_yes_no([("The", -0.1)]) is None
    True
    """
    finite = [(token, value) for token, value in listed if math.isfinite(value) and value > UNLISTED]
    known = list(dict.fromkeys(finite))
    sides = {
        side: [value for token, value in known if token.strip(_SPACES).casefold() == side] for side in ("yes", "no")
    }
    if not sides["yes"] and not sides["no"]:
        return None
    left = 1.0 - math.fsum(math.exp(value) for _, value in known)
    most = min(min(value for _, value in known), math.log(max(left, LEAST_LEFT)))
    yes = _log_sum(sides["yes"]) if sides["yes"] else most
    no = _log_sum(sides["no"]) if sides["no"] else most
    return YesNo(yes, no, "yes" if not sides["yes"] else "no" if not sides["no"] else None)


def yes_token(listed: Sequence[tuple[str, float]]) -> float | None:
    """The probability of the token "Yes" as it is written; None if it is not listed."""
    return next((math.exp(min(value, 0.0)) for token, value in listed if token == YES_TOKEN and value > UNLISTED), None)


def _log_sum(values: Sequence[float]) -> float:
    """Log of the sum of exponentials; the value itself for one."""
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))
