"""Files and folders of the data folder: are they here and whole, and fetching them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ttmbench._util.files import file_digest
from ttmbench._util.redact import scrub
from ttmbench.data.download import manifest as record
from ttmbench.data.download.archive import Unpacked, unpack
from ttmbench.data.download.http import Web
from ttmbench.data.download.part import forget
from ttmbench.data.loading import below
from ttmbench.data.origin import Origin
from ttmbench.errors import DataError, OutOfReachError


@dataclass(frozen=True)
class DataFile:
    """A file or folder of the data folder.

    What is there without a record is the user's own and is taken as it is, unless the task file states size or digest.
    A link is the user's arrangement and is never replaced.

    Attributes:
        data_dir: the data folder.
        path: below it.
        origin_of: where it comes from, if the task file says so.
    """

    data_dir: Path
    path: str
    origin_of: Origin | None

    @property
    def name(self) -> str:
        """Its path below the data folder."""
        return self.path

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
        """Where it lies."""
        return below(self.data_dir, self.path, "source.get")

    def missing(self) -> str | None:
        """Whether it is not there, or is not what was fetched or what the task file states."""
        if not self.target.exists():
            return "it is not there"
        known = record.read(self.data_dir).get(self.path)
        if self.target.is_dir():
            return self._missing_of_folder(known)
        if self.origin_of is not None and self.origin_of.unpack and known is None:
            return None  # size and digest are the archive's, not the file's
        declared = None if self.origin_of is None or self.origin_of.unpack else self.origin_of
        size = self.target.stat().st_size
        wanted = (known or {}).get("unpacked", known or {}).get("bytes")
        if declared is not None and declared.bytes is not None:
            wanted = declared.bytes
        if wanted is not None and size != wanted:
            return f"it has {size} bytes in place of {wanted}"
        if declared is not None and declared.sha256 is not None and file_digest(self.target) != declared.sha256:
            return "its sha256 is not that of the task file"
        return None

    def _missing_of_folder(self, known: dict[str, Any] | None) -> str | None:
        """A folder that was fetched has at least the files that were unpacked; any other has at least one."""
        wanted = Unpacked(**known["unpacked"]) if known and "unpacked" in known else Unpacked(1, 0)
        if known is None or self.target.is_symlink():
            return None if next(self.target.iterdir(), None) else "the folder is empty"
        sizes = [file.stat().st_size for file in self.target.rglob("*") if file.is_file()]
        if len(sizes) < wanted.files or sum(sizes) < wanted.bytes:
            return f"{len(sizes)} files of {wanted.files} are there, {sum(sizes)} bytes of {wanted.bytes}"
        return None

    def size(self, web: Web) -> int | None:
        """Bytes to fetch, as the task file states or the server says."""
        if self.origin_of is None or self.origin_of.url is None:
            return None
        return self.origin_of.bytes if self.origin_of.bytes is not None else web.size(self.origin_of.url)

    def fetch(self, web: Web) -> str:
        """Fetches it, unpacks it if it is an archive, and writes down what came.

        Args:
            web: how.

        Returns:
            What came, for a line.

        Raises:
            OutOfReachError: it cannot be reached, or nobody says where it is.
            DataError: what came is wrong, or cannot be unpacked or written.
        """
        if self.origin_of is None:
            raise OutOfReachError(f"the task file does not say where {self.path} comes from; put it into {self.where}")
        if self.origin_of.page is not None:
            raise OutOfReachError(f"{self.path} is fetched by hand: {self.origin_of.page}; put it at {self.target}")
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with record.locked(self.data_dir, self.path):
                if self.missing() is None:  # another process has just fetched it
                    return "present"
                return self._fetch(web, self.origin_of)
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None

    def _fetch(self, web: Web, origin: Origin) -> str:
        if self.target.is_symlink():
            raise DataError(f"{self.target} is a link, and {self.missing()}; mend what it leads to, or remove it")
        part = self.target.with_name(f"{self.target.name}.part")
        if part.is_symlink():
            raise DataError(f"{part} is a link, which no download makes and none follows; remove it")
        got = web.fetch(origin, part, self.path)
        about: dict[str, Any] = {"url": scrub(got.url), "bytes": got.bytes, "sha256": got.sha256}
        detail = amount(got.bytes)
        if origin.unpack:
            try:
                unpacked = unpack(part, self.target, origin.member)
            except DataError:
                forget(part)
                raise
            about["unpacked"] = vars(unpacked)
            detail += f", unpacked to {unpacked.files} files of {amount(unpacked.bytes)}"
        else:
            if self.target.is_dir():
                raise DataError(f"{self.target} is a folder, but {origin.url} is a file; move it away")
            part.replace(self.target)
        forget(part)
        record.write(self.data_dir, self.path, about)
        return detail


@dataclass(frozen=True)
class RowsFile(DataFile):
    """A file of rows, or the folder that it comes in: not whole before the images that it names are there.

    Attributes:
        why_not_whole: what is missing of the images, and what to do; None where nothing is, or where it is the other
            needs that are missing.
    """

    why_not_whole: Callable[[], str | None]

    def missing(self) -> str | None:
        """As of any file; and which of the images are not there."""
        return super().missing() or self.why_not_whole()

    def fetch(self, web: Web) -> str:
        """As of any file; images that are missing in a folder of the user's own are not fetched into it.

        Raises:
            OutOfReachError: also then; the message says what to do.
        """
        why = self.why_not_whole() if super().missing() is None else None
        if why is not None:
            raise OutOfReachError(f"{self.path}: {why}")
        return super().fetch(web)


def amount(size: int | None) -> str:
    """Bytes as people read them.

    >>> amount(815_585_330), amount(9_930), amount(12), amount(None)
    ('815.6 MB', '9.9 kB', '12 B', 'size unknown')
    """
    if size is None:
        return "size unknown"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} B"


def count_of_images(names: list[str]) -> str:
    """How many images there are, and the first.

    >>> count_of_images(["a.jpg"]), count_of_images(["a.jpg", "b.jpg"])
    ('image a.jpg is', '2 images (a.jpg and others) are')
    """
    return f"image {names[0]} is" if len(names) == 1 else f"{len(names)} images ({names[0]} and others) are"
