"""Samples of uncompressed tar files as webdataset has them: files of one name and several endings are one sample."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench._util.limits import limit, raised_by
from ttmbench._util.text import Unreadable, parse_json
from ttmbench.data.cells import Row
from ttmbench.data.download.archive import ShortReads, check_end
from ttmbench.errors import DataError

IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp")
TEXTS = ("txt", "json", "cls")
MOST_TEXT = 1 << 20


@dataclass(frozen=True)
class TarMember:
    """A file of a tar, where its bytes are.

    Attributes:
        tar: the archive.
        name: in it.
        start: first byte.
        size: number of bytes.
    """

    tar: Path
    name: str
    start: int
    size: int

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            DataError: the archive ends before them.
        """
        if self.size > limit("image_bytes"):
            raise DataError(f"{self.tar}: {self.name} has {self.size} bytes; {raised_by('image_bytes')}")
        with self.tar.open("rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if len(content) < self.size:
            raise DataError(f"{self.tar} ends within {self.name}; it was not fetched whole")
        return content


def tar_rows(tars: Sequence[Path], lines: Sequence[str]) -> Iterator[Row]:
    """The samples of tar files, one after the other.

    Cells are ``__key__`` (the name without its ending), ``image`` (a `TarMember`), and by their endings ``txt`` and
    ``cls`` (texts) and ``json`` (what it holds).

    Args:
        tars: the files, in order.
        lines: columns of texts whose lines are the items of a list; empty lines are none.

    Yields:
        The samples, numbered through.

    Raises:
        DataError: a file is no such tar or is cut off, or a sample has two images or none.
    """
    index = 0
    for tar in tars:
        for key, cells in _samples(tar):
            if "image" not in cells:
                raise DataError(f"{tar}: sample {key!r:.80} has no image ({', '.join(IMAGES)})")
            for column in lines:
                if isinstance(cells.get(column), str):
                    cells[column] = [line.strip() for line in cells[column].splitlines() if line.strip()]
            yield Row(str(index), cells, index)
            index += 1


def tar_members(tar: Path) -> Iterator[TarMember]:
    """The files of a tar, one after the other, and at last whether it is whole.

    Args:
        tar: the archive, uncompressed.

    Yields:
        Where each file is.

    Raises:
        DataError: it is no such tar, is damaged or cut off, or has something else than files and folders.
    """
    try:
        with tar.open("rb") as stream:
            short: Any = ShortReads(stream, tar)  # tarfile asks for less of a file than its type says
            opened = tarfile.open(fileobj=short, mode="r:")
            for count, one in enumerate(opened):
                if count >= limit("archive_files"):
                    raise DataError(f"{tar} has more than {limit('archive_files')} files; {raised_by('archive_files')}")
                if one.isreg() and one.sparse is None:
                    yield TarMember(tar, one.name, one.offset_data, one.size)
                elif not one.isdir():
                    raise DataError(f"{tar}: {one.name!r:.80} is neither a file nor a folder")
            check_end(opened)
            if not opened.getmembers():
                raise tarfile.ReadError("it has no files")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(f"{tar} cannot be read as an uncompressed tar ({error}); download it again") from None


def in_order(names: Sequence[str]) -> list[str]:
    """Names by the numbers in them.

    >>> in_order(["test/10.tar", "test/2.tar"])
    ['test/2.tar', 'test/10.tar']
    """
    return sorted(names, key=lambda name: [int(one) if one.isdigit() else one for one in re.split(r"(\d+)", name)])


def _samples(tar: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    key: str | None = None
    cells: dict[str, Any] = {}
    for member in tar_members(tar):
        folder, slash, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        own, ending = f"{folder}{slash}{stem}", ending.lower()
        if own != key:
            if key is not None:
                yield key, cells
            key, cells = own, {"__key__": own}
        column = "image" if ending in IMAGES else ending
        if column in cells:
            raise DataError(f"{tar}: sample {own!r:.80} has '{column}' twice")
        if column == "image":
            cells[column] = member
        elif ending in TEXTS:
            cells[column] = _text(member, ending)
    if key is not None:
        yield key, cells


def _text(member: TarMember, ending: str) -> Any:
    where = f"{member.tar}: {member.name}"
    if member.size > MOST_TEXT:
        raise DataError(f"{where} has {member.size} bytes, too many for a text")
    try:
        text = io.TextIOWrapper(io.BytesIO(member.read()), encoding="utf-8-sig").read()
        return parse_json(text) if ending == "json" else text.strip()
    except (UnicodeDecodeError, Unreadable) as error:
        raise DataError(f"{where}: {error}") from None
