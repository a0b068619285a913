"""Answers of a chat-completions server: read, checked, and stored so that nothing is asked, or paid for, twice."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, cast

from ttmbench._util.console import warn
from ttmbench._util.digests import json_digest
from ttmbench.errors import UsageError

NO_ANSWER = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What `read_answer` raises for a body that is not an answer."""
_REFUSALS = ("content_policy", "content_filter", "moderation_blocked", "responsibleaipolicyviolation")
_ROUNDING = 0.01  # by so much may a log-probability, and the logarithm of the sum of all probabilities, be above 0
_MOST_TOKENS = 10**12  # a larger count is an error
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT, request TEXT, answer TEXT NOT NULL, asked_at TEXT, sha256 TEXT NOT NULL
)
"""


class Answer(TypedDict):
    """An answer as it is stored.

    ``refusal`` is the reason, if the server or the model refused; ``top_logprobs`` are (token, log-probability) of the
    first token.
    """

    text: str | None
    refusal: str | None
    top_logprobs: list[tuple[str, float]]
    finish_reason: str | None
    usage: dict[str, int] | None
    model: str | None
    system_fingerprint: str | None


def _error_in(content: str) -> Mapping[str, object]:
    """``message`` and ``code`` of an error, where the body has them."""
    try:
        body = json.loads(content)
        error = body.get("error")
        return error if isinstance(error, dict) else {"message": str(error or body.get("message") or "")}
    except NO_ANSWER:
        return {}


def message_of(content: str) -> str:
    """The message of an error, or else the beginning of its body."""
    return str(_error_in(content).get("message") or content[:4000])


def refusal_of(status: int, content: str) -> str | None:
    """Why the server refused the content of the question; None if it did not."""
    error = _error_in(content) if status in (400, 403) else {}
    inner = error.get("innererror")
    codes = [error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None]
    if any(sign in str(code).casefold() for sign in _REFUSALS for code in codes):
        return str(error.get("message") or "content policy")
    return None


def read_answer(content: str, clean: Callable[[str], str]) -> Answer:
    """The answer in the body of a chat completion; ``clean`` removes the key from a text.

    ValueError: there is no text, or a log-probability is impossible; an error of `NO_ANSWER`: it is not a chat
    completion.
    """
    body = json.loads(content)
    if body.get("error") and not body.get("choices"):
        raise ValueError(f"an error with status 200: {body['error']}")
    choice = body["choices"][0]
    message = choice["message"]
    text, refusal, finish = message.get("content"), message.get("refusal"), choice.get("finish_reason")
    if not refusal and finish == "content_filter":
        refusal = "content filter"
    if not refusal and text is None:
        hint = "; a model that thinks first needs room for it (max_tokens, with scorer=choice), or not to think"
        reason = f"(content: null, finish_reason: {_cleaned(finish, clean)}){hint if finish == 'length' else ''}"
        raise ValueError(f"it has no text {reason}")
    if not refusal and not isinstance(text, str):
        raise TypeError(f"its content must be text, got {type(text).__name__}")
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
    return {
        "text": _cleaned(text, clean) if isinstance(text, str) else None,
        "refusal": _cleaned(refusal or None, clean),
        "top_logprobs": _listed_tokens(listed, clean),
        "finish_reason": _cleaned(finish, clean),
        "usage": _usage(body.get("usage")),
        "model": _cleaned(body.get("model"), clean),
        "system_fingerprint": _cleaned(body.get("system_fingerprint"), clean),
    }


def refused(reason: str) -> Answer:
    """The answer for a refused question, which costs nothing."""
    return {
        "text": None,
        "refusal": reason,
        "top_logprobs": [],
        "finish_reason": None,
        "usage": {"prompt_tokens": 0, "completion_tokens": 0},
        "model": None,
        "system_fingerprint": None,
    }


def _listed_tokens(listed: Sequence[Mapping[str, object]], clean: Callable[[str], str]) -> list[tuple[str, float]]:
    """(token, log-probability) of each listed token that is possible; a repeated entry counts once.

    Two tokens may have the same text ("Yes" with and without a space before it, which some servers strip). They have
    different log-probabilities and both count.
    """
    tokens: dict[tuple[str, float], None] = {}
    for entry in listed:
        token, value = _cleaned(entry["token"], clean) or "", entry["logprob"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:  # NaN is not <=
            shown = value if isinstance(value, float) else json.dumps(value)[:40]
            raise ValueError(
                f"it gives {shown} as the log-probability of {token[:40]!r}; a log-probability is a number of at most 0"
            )
        if value != -math.inf:
            tokens[token, float(value)] = None
    total = math.fsum(math.exp(value) for _, value in tokens)
    if total > math.exp(_ROUNDING):
        raise ValueError(f"it lists tokens whose probabilities add up to {total:.4f}; they can be 1 at most")
    return list(tokens)


def _usage(usage: object) -> dict[str, int] | None:
    """The token counts; None where one of them is missing or implausible."""
    names = ("prompt_tokens", "completion_tokens")
    counts = {name: usage.get(name) for name in names} if isinstance(usage, dict) else {"": None}
    sound = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < _MOST_TOKENS}
    return sound if len(sound) == len(counts) else None


def _cleaned(value: object, clean: Callable[[str], str]) -> str | None:
    """A text without secrets and without halves of surrogate pairs, which JSON can hold and no file can."""
    return None if value is None else clean(str(value).encode("utf-8", "replace").decode("utf-8"))


def request_key(request: Mapping[str, object]) -> str:
    """sha256 of a request: model, server, prompt, parameters and digests of the images, in whatever order."""
    return json_digest(request)


@contextmanager
def open_answers(path: Path) -> Iterator[AnswerCache]:
    """Stored answers in one SQLite file in WAL mode, which several processes may use at once.

    Raises:
        UsageError: the file cannot be used.
    """
    connection = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", _TABLE):
            connection.execute(statement)
        yield AnswerCache(connection, path)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"answers cannot be stored in {path}: {error}; choose another file with cache=PATH") from None
    finally:
        if connection is not None:
            connection.close()


class AnswerCache:
    """Answers by the key of their request, in an open file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def get(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The stored answers, by key; damaged ones are reported and skipped."""
        answers, damaged = dict[str, Answer](), 0
        for key in dict.fromkeys(keys):
            row = self._connection.execute("SELECT answer, sha256 FROM answers WHERE key = ?", [key]).fetchone()
            if row is not None and _digest(key, row[0]) != row[1]:
                damaged += 1
            elif row is not None:
                answers[key] = cast(Answer, json.loads(row[0]))
        if damaged:
            warn(f"{damaged} of the answers in {self._path} do not match their digest; they are asked for again")
        return answers

    def put(self, key: str, request: Mapping[str, object], answer: Answer) -> None:
        """Stores an answer; it is on the disk when this returns."""
        text, asked = json.dumps(answer, ensure_ascii=False), json.dumps(request, sort_keys=True, ensure_ascii=False)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = (key, str(request.get("model")), asked, text, now, _digest(key, text))
        self._connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)


def _digest(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}:{answer}".encode()).hexdigest()
