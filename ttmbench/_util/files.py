"""Files of ours: written in one step, named so that every system can hold them, and told apart by digest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from ttmbench._util.console import DEVICES
from ttmbench.errors import UsageError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LONGEST_NAME = 100  # characters; files and folders have 255 bytes at most


def file_digest(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Replaces a file of the user's by what ``write`` puts at the path it is given: readers see the old or the new one.

    The content is on the disk before the name is, so that neither a kill nor a power cut leaves half a file. UsageError
    if the file cannot be written.
    """
    try:
        replace_file(path, write, to_disk=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Writes a text whole or not at all, into a folder that is made if need be; UsageError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written to: {error.strerror or error}") from None
    write_atomically(path, lambda place: place.write_text(text, encoding="utf-8", newline="\n"))


def replace_file(path: Path, write: Callable[[Path], object], *, to_disk: bool) -> None:
    """Lets ``write`` fill a temporary file beside ``path``, then renames it.

    Without ``to_disk``, which waits until the content is on the disk, a power cut may leave half a file under the name:
    for files whose reader checks them.
    """
    # Not by tempfile, whose files only their owner may read; and no two writers take one name, on whatever machines.
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
    """Makes a folder whole or not at all; UsageError if it cannot be written, or exists and is not empty.

    ``write`` makes and fills the folder that it is given.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --output_path names another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is there and not empty, and nothing is overwritten; --output_path names another folder"
        )
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


def take_lock(path: Path) -> BaseFileLock:
    """Takes a lock for this process alone; who has it may remove its folder, which is made if need be.

    Raises:
        filelock.Timeout: another process has it.
        OSError: the folder cannot be made or written to.
    """
    import filelock

    lock = filelock.FileLock(path)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        if lock_holds(lock):
            return lock
        lock.release()  # who had it has just removed the folder


def lock_holds(lock: BaseFileLock) -> bool:
    """Whether a lock that was taken is one on the file that others will find.

    Who had it before may have removed the file between its opening and its locking: such a lock keeps nobody out.
    """
    descriptor = lock._context.lock_file_fd
    return descriptor is None or _is_open(descriptor, Path(lock.lock_file))


def _is_open(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that has a name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def share_lock(path: Path) -> AbstractContextManager[object]:
    """Takes a lock together with others who share it, against who wants it alone (`take_lock`).

    It is held until it is left as a context. Where the system has no locks to share (Windows), it keeps nobody out.

    Raises:
        BlockingIOError: another process has it alone.
        OSError: the folder cannot be made or written to, or its disk has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return nullcontext()
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            file = stack.enter_context(path.open("ab+"))  # a network disk wants it open for reading, to share it
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as `filelock` does, so that the two see each other
            if _is_open(file.fileno(), path):
                stack.pop_all()
                return file


def to_json(document: Mapping[str, object]) -> str:
    """JSON as results files have it; a number that is not finite is a mistake of ours and raises ValueError."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no text that a file can hold


def safe_name(name: str) -> str:
    """A model's name as a folder name.

    >>> safe_name("google/siglip-base"), safe_name("../nul"), safe_name("NUL")
    ('google__siglip-base', '__nul', '_NUL')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("/", "__")).lstrip(".").rstrip(".") or "model"
    if len(plain) > _LONGEST_NAME:
        plain = f"{plain[:_LONGEST_NAME]}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"_{plain}" if plain.partition(".")[0].upper() in DEVICES else plain
