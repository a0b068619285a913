"""Answers of chat-completions servers, stored so that nothing is asked, or paid for, twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from ttmbench._util.console import warn
from ttmbench.errors import UsageError
from ttmbench.model_adapters.api.server import Answer

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, sha256 TEXT NOT NULL)"


@contextmanager
def open_answers(path: Path) -> Iterator[AnswerStore]:
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
        yield AnswerStore(connection, path)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"answers cannot be stored in {path}: {error}; choose another file with cache=PATH") from None
    finally:
        if connection is not None:
            connection.close()


class AnswerStore:
    """Answers by the key of their request, in an open file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def get(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The stored answers, by key; damaged ones are reported and skipped."""
        answers, damaged = dict[str, Answer](), 0
        for key in keys:
            row = self._connection.execute("SELECT answer, sha256 FROM answers WHERE key = ?", [key]).fetchone()
            if row is not None and _digest(key, row[0]) != row[1]:
                damaged += 1
            elif row is not None:
                answers[key] = cast(Answer, json.loads(row[0]))
        if damaged:
            warn(f"{damaged} of the answers in {self._path} do not match their digest; they are asked for again")
        return answers

    def put(self, key: str, answer: Answer) -> None:
        """Stores an answer; it is on the disk when this returns."""
        text = json.dumps(answer, ensure_ascii=False)
        row = (key, text, _digest(key, text))
        self._connection.execute("INSERT OR REPLACE INTO answers (key, answer, sha256) VALUES (?, ?, ?)", row)


def _digest(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}:{answer}".encode()).hexdigest()
