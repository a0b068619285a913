"""Files and folders of the data folder: whether they are complete, fetching them, records of that, and locks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ttmbench._util.console import warn
from ttmbench._util.files import file_digest, write_atomically
from ttmbench.data.availability import amount
from ttmbench.data.download.archive import Unpacked, unpack
from ttmbench.data.download.http import Web, forget
from ttmbench.data.paths import Origin, below
from ttmbench.errors import DataError, OutOfReachError, UsageError

RECORDS = "downloads.json"
LOCKS = ".locks"
FORMAT = 1


@dataclass(frozen=True)
class DataFile:
    """A file or folder of the data folder, as a `DataNeed`.

    One without a record is the user's own and used as it is, unless the task file states size or digest. A link is the
    user's arrangement and is never replaced.

    Attributes:
        lacking: for a file of rows: which of its images are missing, and what to do. Images are not fetched into a
            folder of the user's own.
    """

    data_dir: Path  # the data folder
    name: str  # path below it
    origin_of: Origin | None  # where it comes from, if the task file states it
    lacking: Callable[[], str | None] = lambda: None

    @property
    def origin(self) -> str:
        """Address or page."""
        return str(self.origin_of) if self.origin_of else "unknown"

    @property
    def where(self) -> str:
        """The data folder."""
        return str(self.data_dir)

    @cached_property
    def target(self) -> Path:
        """The file or folder itself."""
        return below(self.data_dir, self.name, "source.get")

    def missing(self) -> str | None:
        """Why it cannot be used: missing, not what was fetched or stated, or without some of its images."""
        return self._wrong() or self.lacking()

    def _wrong(self) -> str | None:
        if not self.target.exists():
            return "it is not there"
        known = read_records(self.data_dir).get(self.name, {})
        if self.target.is_dir():
            return self._missing_of_folder(known)
        stated = self.origin_of
        if stated is not None and stated.unpack:  # size and digest are the archive's, not the file's
            stated = None
        size, wanted = self.target.stat().st_size, known.get("unpacked", known).get("bytes")
        if stated is not None and stated.bytes is not None:
            wanted = stated.bytes
        if wanted is not None and size != wanted:
            return f"it has {size} bytes in place of {wanted}"
        if stated is not None and stated.sha256 is not None and file_digest(self.target) != stated.sha256:
            return "its sha256 is not that of the task file"
        return None

    def _missing_of_folder(self, known: Mapping[str, Any]) -> str | None:
        """A fetched folder has at least the files that were unpacked; any other has at least one."""
        if not known or self.target.is_symlink():
            return None if next(self.target.iterdir(), None) else "the folder is empty"
        wanted = Unpacked(**known.get("unpacked", {"files": 1, "bytes": 0}))
        sizes = [file.stat().st_size for file in self.target.rglob("*") if file.is_file()]
        if len(sizes) < wanted.files or sum(sizes) < wanted.bytes:
            return f"{len(sizes)} files of {wanted.files} are there, {sum(sizes)} bytes of {wanted.bytes}"
        return None

    def size(self, web: Web) -> int | None:
        """Bytes to fetch, from the task file or the server."""
        if self.origin_of is None or self.origin_of.url is None:
            return None
        return self.origin_of.bytes if self.origin_of.bytes is not None else web.size(self.origin_of.url)

    def fetch(self, web: Web) -> str:
        """Fetches it, unpacks it if it is an archive, and records it.

        Raises:
            OutOfReachError: it cannot be reached, has no address, or images in the user's own folder are missing.
            DataError: what came is wrong, or cannot be unpacked or written.
        """
        why = self.lacking() if self._wrong() is None else None
        if why is not None:
            raise OutOfReachError(f"{self.name}: {why}")
        if self.origin_of is None:
            raise OutOfReachError(f"the task file does not say where {self.name} comes from; put it into {self.where}")
        if self.origin_of.page is not None:
            raise OutOfReachError(f"{self.name} is fetched by hand: {self.origin_of.page}; put it at {self.target}")
        with self.writing(self.target.parent):
            if self.missing() is None:  # another process has just fetched it
                return "present"
            return self._fetch(web, self.origin_of)

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        """Makes the folder and locks the file or folder of this need; DataError if it cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(self.data_dir, self.name):
                yield
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None

    def _fetch(self, web: Web, origin: Origin) -> str:
        if self.target.is_symlink():
            raise DataError(f"{self.target} is a link, and {self.missing()}; fix its target, or remove it")
        part = self.target.with_name(f"{self.target.name}.part")
        check_no_link(part)
        got = web.fetch(origin, part, self.name)
        about: dict[str, object] = {"url": got.url, "bytes": got.bytes, "sha256": got.sha256}
        detail = amount(got.bytes)
        if origin.unpack:
            try:
                unpacked = unpack(part, self.target, origin.member)
            except DataError:
                forget(part)
                raise
            about["unpacked"] = unpacked._asdict()
            detail += f", unpacked to {unpacked.files} files of {amount(unpacked.bytes)}"
        else:
            if self.target.is_dir():
                raise DataError(f"{self.target} is a folder, but {origin.url} is a file; move it away")
            part.replace(self.target)
        forget(part)
        write_record(self.data_dir, self.name, about)
        return detail


def check_no_link(part: Path) -> None:
    """DataError if a part is a link: its name can be foreseen, so a link is never followed."""
    if part.is_symlink():
        raise DataError(f"{part} is a link, which no download makes and none follows; remove it")


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
            lock.acquire()
    except OSError as error:
        raise UsageError(
            f"the data folder {data_dir} cannot be written to ({error.strerror or error}); --data_dir names another one"
        ) from None
    try:
        yield
    finally:
        lock.release()


def read_records(data_dir: Path) -> dict[str, dict[str, Any]]:
    """Path -> its record: url, bytes, sha256, time, and for archives what was unpacked; DataError if damaged."""
    file = data_dir / RECORDS
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


def write_record(data_dir: Path, path: str, about: Mapping[str, object]) -> None:
    """Records what was fetched to a path below the data folder, with the time."""
    with locked(data_dir, RECORDS):
        files = read_records(data_dir) | {path: {**about, "time": datetime.now(UTC).isoformat(timespec="seconds")}}
        text = json.dumps({"format": FORMAT, "files": dict(sorted(files.items()))}, indent=2) + "\n"
        write_atomically(data_dir / RECORDS, lambda file: file.write_text(text, encoding="utf-8"))
