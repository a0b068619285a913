"""Files: atomic writes, locks, digests, and names that every system accepts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from ttmbench._util.console import DEVICES
from ttmbench.errors import UsageError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LONGEST_NAME = 100  # characters; files and folders have 255 bytes at most


def file_digest(*paths: Path) -> str:
    """sha256 of a file, or of several one after the other, hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Replaces a user's file by what ``write`` writes to the path it gets; UsageError if that fails.

    Readers see the old or the new file, also after a kill or a power cut.
    """
    try:
        replace_file(path, write, to_disk=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Writes a text atomically, creating its folder; UsageError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written to: {error.strerror or error}") from None
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))


def replace_file(path: Path, write: Callable[[Path], object], *, to_disk: bool) -> None:
    """Lets ``write`` fill a temporary file beside ``path``, then renames it.

    Without ``to_disk``, a power cut may leave half a file: for files whose reader checks them.
    """
    # Files of tempfile are readable by their owner only; the name is unique among all machines.
    temporary = path.with_name(f".{path.name}.{token_hex(6)}.tmp")
    try:
        write(temporary)
        if to_disk:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def new_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Lets ``write`` make and fill a folder atomically; UsageError if that fails, or it exists and is not empty."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --output_path names another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} already exists and is not empty; choose another folder with --output_path")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            write(made)
            if folder.is_dir():
                folder.rmdir()
            shutil.move(made, folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror or error})") from None


def take_lock(path: Path, timeout: float = 0.0) -> BaseFileLock:
    """Takes an exclusive lock, creating its folder, which the holder may remove.

    Raises:
        filelock.Timeout: another process holds it, and does so after ``timeout`` seconds.
        OSError: the folder cannot be created or written to.
    """
    import filelock

    lock = filelock.FileLock(path)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout)
        descriptor = lock._context.lock_file_fd
        with suppress(FileNotFoundError):  # the previous holder may have removed the folder before it was locked
            if descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat()):
                return lock
        lock.release()


def to_json(document: Mapping[str, object]) -> str:
    """JSON as in results files; ValueError for a number that is not finite."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is not a text that a file can hold


def safe_name(name: str) -> str:
    """A model's name as a folder name; names that differ have folders that differ.

    >>> safe_name("google/siglip-base"), safe_name("google__siglip-base"), safe_name("../nul")
    ('google__siglip-base', 'google__siglip-base-64c1363f', '__nul-a790f930')
    """
    plain = plain_name(name)
    if plain.replace("__", "/") == name:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def plain_name(name: str) -> str:
    """A name that every file system can hold, which several names may share.

    >>> plain_name("google/siglip-base"), plain_name("../nul"), plain_name("NUL")
    ('google__siglip-base', '__nul', '_NUL')
    """
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", name.replace("/", "__")[:_LONGEST_NAME]).lstrip(".").rstrip(".") or "model"
    return f"_{plain}" if plain.partition(".")[0].upper() in DEVICES else plain
