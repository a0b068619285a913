"""What a server sends, read: a chat completion, why it is none, an error, and how long it asks to wait."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

_REFUSALS = ("content_policy", "content_filter", "moderation_blocked", "responsibleaipolicyviolation")
_ROUNDING = 0.01  # by so much may a log-probability, and the logarithm of the sum of all probabilities, be above 0
_MOST_TOKENS = 10**12  # a larger count is none


class Answer(TypedDict):
    """What is known of an answer, and kept.

    ``refusal`` is why there is none, if the server or the model refused; ``top_logprobs`` are [token, log-probability]
    of the first token, ``top_logprobs_asked`` is how many were asked for, if fewer than were wanted.
    """

    text: str | None
    refusal: str | None
    top_logprobs: list[list[Any]]
    top_logprobs_asked: NotRequired[int]
    finish_reason: str | None
    usage: dict[str, int] | None
    model: str | None
    system_fingerprint: str | None


class BadAnswerError(ValueError):
    """An answer in the right form that says nothing; it is of no use, and likely to come again."""


@dataclass(frozen=True)
class Reply:
    """A response, read to its end."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The beginning of the body."""
        return self.content[:4000].decode("utf-8", "replace")

    @property
    def error(self) -> dict[str, Any]:
        """What it says of an error: ``message`` and ``code``, where it says so; empty if it does not."""
        try:
            content = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        error = content.get("error") if isinstance(content, dict) else None
        if isinstance(error, dict):
            return error
        if not isinstance(content, dict):
            return {}
        return {"message": str(error or content.get("message") or "")}

    @property
    def refusal(self) -> str | None:
        """Why the server refused for the content of the question; None if it did not."""
        if self.status not in (400, 403):
            return None
        inner = self.error.get("innererror")
        codes = [
            self.error.get("code"),
            self.error.get("type"),
            inner.get("code") if isinstance(inner, dict) else None,
        ]
        if any(sign in str(code).casefold() for sign in _REFUSALS for code in codes):
            return str(self.error.get("message") or "content policy")
        return None

    @property
    def seconds_to_wait(self) -> float:
        """Seconds of its Retry-After header, which holds seconds or a date; 0 if there is none."""
        if "retry-after-ms" in self.headers:
            try:
                return max(0.0, float(self.headers["retry-after-ms"]) / 1000)
            except ValueError:
                pass
        value = self.headers.get("retry-after", "")
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except (TypeError, ValueError):
            return 0.0


def read_answer(content: bytes, clean: Callable[[str], str]) -> Answer:
    """What matters of a chat completion.

    Args:
        content: the body.
        clean: takes the key out of a text.

    Returns:
        As `ChatClient.ask`.

    Raises:
        BadAnswerError: there is no text, or a log-probability is none.
        ValueError: or KeyError and the like: it is no chat completion.
    """
    found = json.loads(content)
    if found.get("error") and not found.get("choices"):
        raise ValueError(f"an error with status 200: {found['error']}")
    choice = found["choices"][0]
    message = choice["message"]
    text, refusal, finish = message.get("content"), message.get("refusal"), choice.get("finish_reason")
    if not refusal and finish == "content_filter":
        refusal = "content filter"
    if not refusal and text is None:
        room = "; a model that thinks first needs room for it (max_tokens, with scorer=choice), or not to think"
        raise BadAnswerError(
            f"has no text (content: null, finish_reason: {_cleaned(finish, clean)}){room if finish == 'length' else ''}"
        )
    if not refusal and not isinstance(text, str):
        raise TypeError(f"its content is {type(text).__name__} and no text")
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
    return {
        "text": clean(_writable(text)) if isinstance(text, str) else None,
        "refusal": _cleaned(refusal, clean) if refusal else None,
        "top_logprobs": _listed_tokens(listed, clean),
        "finish_reason": _cleaned(finish, clean),
        "usage": _usage(found.get("usage")),
        "model": _cleaned(found.get("model"), clean),
        "system_fingerprint": _cleaned(found.get("system_fingerprint"), clean),
    }


def refused(reason: str) -> Answer:
    """An answer that the server kept back; what it does not answer it does not bill."""
    return {
        "text": None,
        "refusal": reason,
        "top_logprobs": [],
        "finish_reason": None,
        "usage": {"prompt_tokens": 0, "completion_tokens": 0},
        "model": None,
        "system_fingerprint": None,
    }


def _listed_tokens(listed: Sequence[Mapping[str, Any]], clean: Callable[[str], str]) -> list[list[Any]]:
    """[token, log-probability] of each listed token that is possible; an entry that is repeated counts once.

    Two tokens may have the same text ("Yes" with and without a space before it, which some servers strip). They have
    different log-probabilities and both count.
    """
    found: dict[tuple[str, float], None] = {}
    for one in listed:
        token, value = clean(_writable(str(one["token"]))), one["logprob"]
        if isinstance(value, bool | str) or not value <= _ROUNDING:  # NaN is not <= either
            shown = value if isinstance(value, float) else json.dumps(value)[:40]
            raise BadAnswerError(
                f"gives {shown} as the log-probability of {token[:40]!r}; a log-probability is a number of at most 0"
            )
        if value != -math.inf:
            found[token, float(value)] = None
    total = math.fsum(math.exp(value) for _, value in found)
    if total > math.exp(_ROUNDING):
        raise BadAnswerError(f"lists tokens whose probabilities add up to {total:.4f}; they can be 1 at most")
    return [[token, value] for token, value in found]


def _usage(usage: object) -> dict[str, int] | None:
    """The counts of tokens; None where one of them is no count."""
    if not isinstance(usage, dict):
        return None
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    sound = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < _MOST_TOKENS}
    return sound if len(sound) == len(counts) else None


def _cleaned(value: object, clean: Callable[[str], str]) -> str | None:
    return None if value is None else clean(_writable(str(value)))


def _writable(text: str) -> str:
    """A text without halves of surrogate pairs, which JSON can hold and no file can."""
    return text.encode("utf-8", "replace").decode("utf-8")
