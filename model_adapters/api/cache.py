"""Answers kept as they arrive, so that nothing is asked, or paid for, twice: one SQLite file in WAL mode."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from ttmbench._util.console import warn
from ttmbench.errors import UsageError
from ttmbench.model_adapters.api.answers import Answer

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


def request_key(request: Mapping[str, object]) -> str:
    """sha256 of a request: model, server, prompt, parameters and digests of the images, in whatever order."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class AnswerCache:
    """Answers by the key of their request. Several processes may use one file at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def opened(self) -> Iterator[OpenAnswerCache]:
        """The cache, open for as long as the block lasts; UsageError if the file cannot be used."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One thread at a time uses it, but in a notebook that is not the one that opens it.
            connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from None
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_TABLE)
            if "sha256" not in [column[1] for column in connection.execute("PRAGMA table_info(answers)")]:
                connection.execute("ALTER TABLE answers ADD COLUMN sha256 TEXT")  # a file of an older version
            yield OpenAnswerCache(connection, self.path)
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        finally:
            connection.close()

    def _unusable(self, error: Exception) -> UsageError:
        return UsageError(f"answers cannot be kept in {self.path}: {error}; choose another file with cache=PATH")


class OpenAnswerCache:
    """An `AnswerCache` with its file open."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def get(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The answers that are there, by key; one that is not what was written is none, which is said."""
        wanted, found = list(dict.fromkeys(keys)), {}
        damaged = 0
        for start in range(0, len(wanted), _MANY):
            part = wanted[start : start + _MANY]
            marks = ",".join("?" * len(part))
            rows = self._connection.execute(f"SELECT key, answer, sha256 FROM answers WHERE key IN ({marks})", part)
            for key, answer, digest in rows:
                read = _read(key, answer, digest)
                damaged += read is None
                if read is not None:
                    found[key] = read
        if damaged:
            warn(f"{damaged} of the answers in {self._path} do not fit their digest; they are asked for again")
        return found

    def put(self, key: str, request: Mapping[str, object], answer: Answer) -> None:
        """Keeps an answer; it is on the disk when this returns."""
        text = json.dumps(answer, ensure_ascii=False)
        row = (
            key,
            str(request.get("model")),
            json.dumps(request, sort_keys=True, ensure_ascii=False),
            text,
            datetime.now(UTC).isoformat(timespec="seconds"),
            _digest(key, text),
        )
        self._connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)


def _read(key: str, answer: str, digest: str | None) -> Answer | None:
    """A kept answer; None if it is not what was written. Older versions wrote no digest."""
    try:
        if digest is not None and digest != _digest(key, answer):
            return None
        value = json.loads(answer)
    except (TypeError, ValueError, AttributeError):
        return None
    return cast(Answer, value) if isinstance(value, dict) else None


def _digest(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}:{answer}".encode()).hexdigest()
