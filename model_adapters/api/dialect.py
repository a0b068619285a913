"""What servers want to be asked otherwise, learnt from how they refuse: names of parameters, and how many tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]  # of a request
_LIMITS = (
    r"max(?:imum)?(?: value)?(?: allowed| of| is|imum)*[\s:='\"]+(\d+)",
    r"(?:less than or equal to|at most|up to|no more than|more than|not exceed|<=?)\s*(\d+)",
    r"(?:between|from)\s+\d+\s+(?:and|to)\s+(\d+)|[\[(]\d+\s*,\s*(\d+)[\])]",
    r"(?:allows|only)\s+(\d+)",
)
_TOO_MANY = re.compile(
    r"max|less than|at most|exceed|too (?:large|many|big|high)|greater|more than|between|range|limit"
)
_LADDER = (10, 5, 2, 1)  # tried where a server says that it is too many, and not how many are not


@dataclass
class Dialect:
    """How a server is asked; kept for a whole run.

    Attributes:
        limit_name: of the parameter that limits the answer.
        top_logprobs: tokens that it lists at most; None as long as it refuses none.
        lists_tokens: whether an answer with log-probabilities came: then one without is a mishap.
    """

    limit_name: str = "max_tokens"
    top_logprobs: int | None = None
    lists_tokens: bool = False

    def said(self, body: Body) -> dict[str, Any]:
        """A request in the words that the server takes."""
        sent = {self.limit_name if name == "max_tokens" else name: value for name, value in body.items()}
        if self.top_logprobs is not None and "top_logprobs" in sent:
            sent["top_logprobs"] = min(sent["top_logprobs"], self.top_logprobs)
        return sent

    def learn(self, message: str, sent: Body) -> bool:
        """Whether a refusal tells how the same question can be asked otherwise; then it is asked so from now on.

        Args:
            message: of the server.
            sent: the request that it refuses.
        """
        if "max_completion_tokens" in message and "max_tokens" in sent:
            self.limit_name = "max_completion_tokens"
            return True
        asked = sent.get("top_logprobs")
        if asked is None or "logprob" not in message.casefold():
            return False
        most = most_logprobs(message, asked)
        if most is not None:
            self.top_logprobs = most if self.top_logprobs is None else min(most, self.top_logprobs)
        return most is not None


def most_logprobs(message: str, asked: int) -> int | None:
    """How many tokens a server would list, by how it refuses to list more.

    Args:
        message: of the server.
        asked: how many it was asked for.

    Returns:
        A smaller number of at least 1; None if the message is about something else.

    >>> most_logprobs("Requested sample logprobs of 20, which is greater than max allowed: 5", 20)
    5
    >>> most_logprobs("Invalid value for 'top_logprobs': must be less than or equal to 8.", 20)
    8
    >>> most_logprobs("logprobs are not supported with this model", 20) is None
    True
    """
    text = message.casefold()
    for pattern in _LIMITS:
        for found in re.finditer(pattern, text):
            number = int(next(group for group in found.groups() if group))
            if 1 <= number < asked:
                return number
    if not _TOO_MANY.search(text) or "support" in text:
        return None
    return next((step for step in _LADDER if step < asked), None)
