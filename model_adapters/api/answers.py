"""Answers of a chat-completions server: read, checked, and stored so that nothing is asked, or paid for, twice."""

from __future__ import annotations

import email.utils
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from ttmbench._util.console import warn
from ttmbench._util.digests import json_digest
from ttmbench.errors import UsageError

_REFUSALS = ("content_policy", "content_filter", "moderation_blocked", "responsibleaipolicyviolation")
_ROUNDING = 0.01  # by so much may a log-probability, and the logarithm of the sum of all probabilities, be above 0
_MOST_TOKENS = 10**12  # a larger count is an error
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    request TEXT NOT NULL,
    answer TEXT NOT NULL,
    asked_at TEXT NOT NULL,
    sha256 TEXT
)
"""
_MANY = 500  # keys in one query


class Answer(TypedDict):
    """An answer as it is stored.

    ``refusal`` is the reason, if the server or the model refused; ``top_logprobs`` are (token, log-probability) of the
    first token, ``top_logprobs_asked`` is how many were asked for, if fewer than were wanted.
    """

    text: str | None
    refusal: str | None
    top_logprobs: list[tuple[str, float]]
    top_logprobs_asked: NotRequired[int]
    finish_reason: str | None
    usage: dict[str, int] | None
    model: str | None
    system_fingerprint: str | None


class BadAnswerError(ValueError):
    """A well-formed answer without usable content; another try is likely to give the same."""


@dataclass(frozen=True)
class Reply:
    """A response, read to its end."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def error(self) -> dict[str, object]:
        """``message`` and ``code`` of an error, where the body has them."""
        try:
            content = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        error = content.get("error")
        return error if isinstance(error, dict) else {"message": str(error or content.get("message") or "")}

    @property
    def message(self) -> str:
        """The error's message, or else the beginning of the body."""
        return str(self.error.get("message") or self.content[:4000].decode("utf-8", "replace"))

    @property
    def refusal(self) -> str | None:
        """Why the server refused the content of the question; None if it did not."""
        if self.status not in (400, 403):
            return None
        inner = self.error.get("innererror")
        codes = [self.error.get("code"), self.error.get("type"), inner.get("code") if isinstance(inner, dict) else None]
        if any(sign in str(code).casefold() for sign in _REFUSALS for code in codes):
            return str(self.error.get("message") or "content policy")
        return None

    @property
    def seconds_to_wait(self) -> float:
        """Seconds of its Retry-After header, which holds seconds or a date; 0 without one."""
        value = self.headers.get("retry-after", "")
        readers: tuple[Callable[[], float], ...] = (
            lambda: float(self.headers.get("retry-after-ms", "")) / 1000,
            lambda: float(value),
            lambda: email.utils.parsedate_to_datetime(value).timestamp() - time.time(),
        )
        for read in readers:
            with suppress(TypeError, ValueError):
                return max(0.0, read())
        return 0.0


def read_answer(content: bytes, clean: Callable[[str], str]) -> Answer:
    """The answer in the body of a chat completion.

    Args:
        content: the body.
        clean: removes the key from a text.

    Raises:
        BadAnswerError: there is no text, or a log-probability is impossible.
        ValueError: or KeyError and the like: it is not a chat completion.
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
        raise BadAnswerError(f"has no text {reason}")
    if not refusal and not isinstance(text, str):
        raise TypeError(f"its content must be text, got {type(text).__name__}")
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
    return {
        "text": clean(_writable(text)) if isinstance(text, str) else None,
        "refusal": _cleaned(refusal, clean) if refusal else None,
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
        token, value = clean(_writable(str(entry["token"]))), entry["logprob"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:  # NaN is not <=
            shown = value if isinstance(value, float) else json.dumps(value)[:40]
            raise BadAnswerError(
                f"gives {shown} as the log-probability of {token[:40]!r}; a log-probability is a number of at most 0"
            )
        if value != -math.inf:
            tokens[token, float(value)] = None
    total = math.fsum(math.exp(value) for _, value in tokens)
    if total > math.exp(_ROUNDING):
        raise BadAnswerError(f"lists tokens whose probabilities add up to {total:.4f}; they can be 1 at most")
    return list(tokens)


def _usage(usage: object) -> dict[str, int] | None:
    """The token counts; None where one of them is missing or implausible."""
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
        # One thread at a time uses it, but in a notebook that is not the one that opens it.
        connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(_TABLE)
        if "sha256" not in [column[1] for column in connection.execute("PRAGMA table_info(answers)")]:
            connection.execute("ALTER TABLE answers ADD COLUMN sha256 TEXT")  # a file of an older version
    except (OSError, sqlite3.Error) as error:
        if connection is not None:
            connection.close()
        raise _unusable(path, error) from None
    try:
        yield AnswerCache(connection, path)
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    finally:
        connection.close()


def _unusable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"answers cannot be stored in {path}: {error}; choose another file with cache=PATH")


class AnswerCache:
    """Answers by the key of their request, in an open file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def get(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The stored answers, by key; damaged ones are reported and skipped."""
        wanted, answers, damaged = list(dict.fromkeys(keys)), {}, 0
        for start in range(0, len(wanted), _MANY):
            part = wanted[start : start + _MANY]
            marks = ",".join("?" * len(part))
            rows = self._connection.execute(f"SELECT key, answer, sha256 FROM answers WHERE key IN ({marks})", part)
            for key, stored, digest in rows:
                answer = _read(key, stored, digest)
                if answer is None:
                    damaged += 1
                else:
                    answers[key] = answer
        if damaged:
            warn(f"{damaged} of the answers in {self._path} do not match their digest; they are asked for again")
        return answers

    def put(self, key: str, request: Mapping[str, object], answer: Answer) -> None:
        """Stores an answer; it is on the disk when this returns."""
        text, asked = json.dumps(answer, ensure_ascii=False), json.dumps(request, sort_keys=True, ensure_ascii=False)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = (key, str(request.get("model")), asked, text, now, _digest(key, text))
        self._connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)


def _read(key: str, stored: str, digest: str | None) -> Answer | None:
    """A stored answer; None if it is damaged. Older versions wrote no digest."""
    try:
        if digest is not None and digest != _digest(key, stored):
            return None
        value = json.loads(stored)
    except (TypeError, ValueError, AttributeError):
        return None
    return cast(Answer, value) if isinstance(value, dict) else None


def _digest(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}:{answer}".encode()).hexdigest()
