"""Files and folders of the data folder: whether they are present and complete, and fetching them."""

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
from ttmbench.data.download.http import Web, forget
from ttmbench.data.origin import Origin
from ttmbench.data.paths import below
from ttmbench.errors import DataError, OutOfReachError


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
        known = manifest.read(self.data_dir).get(self.name, {})
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
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with manifest.locked(self.data_dir, self.name):
                if self.missing() is None:  # another process has just fetched it
                    return "present"
                return self._fetch(web, self.origin_of)
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None

    def _fetch(self, web: Web, origin: Origin) -> str:
        if self.target.is_symlink():
            raise DataError(f"{self.target} is a link, and {self.missing()}; fix its target, or remove it")
        part = self.target.with_name(f"{self.target.name}.part")
        check_no_link(part)
        got = web.fetch(origin, part, self.name)
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
        manifest.write(self.data_dir, self.name, about)
        return detail


def check_no_link(part: Path) -> None:
    """DataError if a part is a link: its name can be foreseen, so a link is never followed."""
    if part.is_symlink():
        raise DataError(f"{part} is a link, which no download makes and none follows; remove it")
