"""The folder of the score cache: where it is, what it holds, and what is removed from it.

``scores/KEY/DATA`` has ``scores.safetensors``, or finished ``block-NNNNNN.safetensors`` of an unfinished pair scoring.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench.errors import TtmbenchError

CACHE_VARIABLE = "TTMBENCH_CACHE"
OFF = "off"
SCORES = "scores"
ENDING = ".safetensors"
_FILE = re.compile(r"scores/[0-9a-f]{32}/[0-9a-f]{64}/((scores|block-\d{6})\.safetensors|\.[\w.-]+\.tmp)")


def cache_folder(given: str | Path | None) -> Path | None:
    """Path of the cache; None if it is off.

    Args:
        given: a folder or ``off``; None takes TTMBENCH_CACHE, else a folder in the user's cache folder.

    >>> cache_folder("off") is None
    True
    """
    detail = given if given is not None else os.environ.get(CACHE_VARIABLE)
    if detail is not None and str(detail):
        return None if str(detail).lower() == OFF else Path(detail).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("ttmbench", appauthor=False) / "store"


@dataclass(frozen=True)
class Entry:
    """The scores of a model on a task, or finished blocks of them."""

    model: str  # empty for blocks
    task: str  # empty if no file can be read
    blocks: int  # finished blocks of an unfinished run
    bytes: int  # of all files
    used: float  # when it was written or used last, seconds since 1970
    files: tuple[Path, ...]


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, by task and model; TtmbenchError if it cannot be read. Links are not followed."""

    def cannot(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise TtmbenchError(f"{error.filename} cannot be read: {error.strerror or error}") from None

    found: dict[Path, list[Path]] = {}
    root = folder / SCORES
    for parent, _, names in () if root.is_symlink() else os.walk(root, onerror=cannot):
        for path in (Path(parent) / name for name in sorted(names)):
            if _FILE.fullmatch(path.relative_to(folder).as_posix()) and not path.is_symlink():
                found.setdefault(path.parent, []).append(path)
    return sorted(map(_entry, found.values()), key=lambda entry: (entry.task, entry.model, entry.files))


def remove(removed: Iterable[Entry]) -> None:
    """Removes entries; TtmbenchError if a file cannot be removed."""
    for entry in removed:
        for path in entry.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise TtmbenchError(f"{path} cannot be removed: {error.strerror or error}") from None
        with suppress(OSError):  # other files lie there
            entry.files[0].parent.rmdir()
            entry.files[0].parent.parent.rmdir()


def _entry(files: Sequence[Path]) -> Entry:
    stats, headers = [], [_header(path) for path in files]
    for path in files:
        with suppress(FileNotFoundError):  # removed meanwhile
            stats.append(path.stat())
    return Entry(
        model=next((str(about["model_name"]) for about in headers if "model_name" in about), ""),
        task=next((str(about["task"]) for about in headers if "task" in about), ""),
        blocks=sum(path.name.startswith("block-") for path in files),
        bytes=sum(stat.st_size for stat in stats),
        used=max((stat.st_mtime for stat in stats), default=0.0),
        files=tuple(files),
    )


def _header(path: Path) -> dict[str, Any]:
    """What a file states about itself; nothing if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["ttmbench"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return {}
    return about if isinstance(about, dict) else {}
