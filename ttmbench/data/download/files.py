"""Files and folders of the data folder: are they here and whole, and fetching them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ttmbench._util.files import file_digest
from ttmbench._util.redact import scrub
from ttmbench.data.availability import amount
from ttmbench.data.download import manifest
from ttmbench.data.download.archive import Unpacked, unpack
from ttmbench.data.download.http import Web
from ttmbench.data.download.part import forget
from ttmbench.data.origin import Origin
from ttmbench.data.paths import below
from ttmbench.errors import DataError, OutOfReachError


@dataclass(frozen=True)
class DataFile:
    """A file or folder of the data folder, as a `DataNeed`.

    What is there without a record is the user's own and is taken as it is, unless the task file states size or digest.
    A link is the user's arrangement and is never replaced.

    Attributes:
        data_dir: the data folder.
        path: below it.
        origin_of: where it comes from, if the task file says so.
        lacking: of a file of rows, what is missing of the images that it names, and what to do; None where nothing is,
            or where it is another need that is missing. Images are not fetched into a folder of the user's own.
    """

    data_dir: Path
    path: str
    origin_of: Origin | None
    lacking: Callable[[], str | None] = lambda: None

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
        """Why it cannot be used: it is not there, or not what was fetched or stated, or images of it are missing."""
        return self._wrong() or self.lacking()

    def _wrong(self) -> str | None:
        """Whether it is not there, or is not what was fetched or what the task file states."""
        if not self.target.exists():
            return "it is not there"
        known = manifest.read(self.data_dir).get(self.path, {})
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
        """A folder that was fetched has at least the files that were unpacked; any other has at least one."""
        if not known or self.target.is_symlink():
            return None if next(self.target.iterdir(), None) else "the folder is empty"
        wanted = Unpacked(**known.get("unpacked", {"files": 1, "bytes": 0}))
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
        """Fetches it, unpacks it if it is an archive, and writes down what came; says what that was.

        Raises:
            OutOfReachError: it cannot be reached, nobody says where it is, or images in the user's own folder are
                missing.
            DataError: what came is wrong, or cannot be unpacked or written.
        """
        why = self.lacking() if self._wrong() is None else None
        if why is not None:
            raise OutOfReachError(f"{self.path}: {why}")
        if self.origin_of is None:
            raise OutOfReachError(f"the task file does not say where {self.path} comes from; put it into {self.where}")
        if self.origin_of.page is not None:
            raise OutOfReachError(f"{self.path} is fetched by hand: {self.origin_of.page}; put it at {self.target}")
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with manifest.locked(self.data_dir, self.path):
                if self.missing() is None:  # another process has just fetched it
                    return "present"
                return self._fetch(web, self.origin_of)
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None

    def _fetch(self, web: Web, origin: Origin) -> str:
        if self.target.is_symlink():
            raise DataError(f"{self.target} is a link, and {self.missing()}; mend what it leads to, or remove it")
        part = self.target.with_name(f"{self.target.name}.part")
        check_no_link(part)
        got = web.fetch(origin, part, self.path)
        about: dict[str, object] = {"url": scrub(got.url), "bytes": got.bytes, "sha256": got.sha256}
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
        manifest.write(self.data_dir, self.path, about)
        return detail


def check_no_link(part: Path) -> None:
    """DataError if a part is a link: its name can be foreseen, so nothing is written to where it leads."""
    if part.is_symlink():
        raise DataError(f"{part} is a link, which no download makes and none follows; remove it")
