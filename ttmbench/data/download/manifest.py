"""Records of downloads (``downloads.json``) and locks between processes that download."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ttmbench._util.console import step_done, warn
from ttmbench._util.files import write_atomically
from ttmbench.errors import DataError, UsageError

NAME = "downloads.json"
LOCKS = ".locks"
FORMAT = 1


@contextmanager
def locked(data_dir: Path, path: str) -> Iterator[None]:
    """Locks a path of the data folder; waits for another process, and says so. UsageError if it cannot be written."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.replace("/", "__"))
    try:
        (data_dir / LOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(data_dir / LOCKS / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            warn(f"{path} is being fetched by another process; waiting until it is done")
        while not lock.is_locked:
            try:
                lock.acquire(timeout=5)
            except Timeout:
                step_done()  # tells whoever watches this process that it waits
    except OSError as error:
        raise UsageError(
            f"the data folder {data_dir} cannot be written to ({error.strerror or error}); --data_dir names another one"
        ) from None
    try:
        yield
    finally:
        lock.release()


def read(data_dir: Path) -> dict[str, dict[str, Any]]:
    """Path -> its record: url, bytes, sha256, time, and for archives what was unpacked; DataError if damaged."""
    file = data_dir / NAME
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = content["files"]
        if content["format"] != FORMAT or not all(isinstance(about, dict) for about in files.values()):
            raise ValueError("another format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); move it away, and what is there counts as your own"
        ) from None
    return files


def write(data_dir: Path, path: str, about: Mapping[str, object]) -> None:
    """Records what was fetched to a path below the data folder, with the time."""
    with locked(data_dir, NAME):
        files = read(data_dir) | {path: {**about, "time": datetime.now(UTC).isoformat(timespec="seconds")}}
        text = json.dumps({"format": FORMAT, "files": dict(sorted(files.items()))}, indent=2) + "\n"
        write_atomically(data_dir / NAME, lambda file: file.write_text(text, encoding="utf-8"))
