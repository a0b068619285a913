"""Webdataset shards on the Hub or in a folder: tar files in which files that differ in their ending are a sample."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath

from ttmbench._util.images import open_image
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.text import Unreadable, check_no_pointer, parse_json
from ttmbench.data.archive import LITTER, Header, check_end
from ttmbench.data.availability import DataLocation
from ttmbench.data.hub_datasets import HubOptions, read_hub_options
from ttmbench.data.rows import Cell, Row, groups_from_rows
from ttmbench.errors import DataError
from ttmbench.types import ImageRef, Loaded, SourceRequest

COUNT = "nshards.txt"  # beside the shards, how many there are
IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp")
TEXTS = ("txt", "json", "cls")
MOST_TEXT = 1 << 20


@dataclass(frozen=True)
class TarMember:
    """A file in a tar: archive, name, first byte and number of bytes."""

    tar: Path
    name: str
    start: int
    size: int

    def read(self) -> bytes:
        """The bytes of the file; DataError if the archive ends before them."""
        if self.size > limit("image_bytes"):
            raise DataError(f"{self.tar}: {self.name} has {self.size} bytes; {raised_by('image_bytes')}")
        with self.tar.open("rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if len(content) < self.size:
            raise DataError(f"{self.tar} ends within {self.name}; it was not fetched whole")
        return content


class WebdatasetOptions(HubOptions):
    """Options of ``kind: webdataset``."""

    shards: str = "test/*.tar"  # pattern of the tar files of the split
    lines: tuple[str, ...] = ()  # columns of texts whose lines are a list: several captions of an image

    @property
    def patterns(self) -> list[str]:
        """Files to fetch."""
        return [self.shards, (PurePosixPath(self.shards).parent / COUNT).as_posix()]

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder has shards."""
        return folder.is_dir() and bool(self.found_in(folder))

    def found_in(self, folder: Path) -> list[str]:
        """Names of the shards in a folder, in order."""
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.tar") if file.is_file()]
        return in_order([name for name in names if fnmatchcase(name, self.shards)])

    def incomplete(self, folder: Path) -> str | None:
        """Which shards are missing; None if there are as many as the folder states, or it states none."""
        shards = self.found_in(folder)
        count = folder / PurePosixPath(self.shards).parent / COUNT
        text = count.read_text(encoding="utf-8").strip() if count.is_file() and count.stat().st_size < 100 else ""
        if text.isascii() and text.isdigit() and int(text) != len(shards):
            return f"{len(shards)} of {text} shards are there"
        return None if shards else f"there is no {self.shards}"

    def damaged(self, folder: Path) -> dict[str, str]:
        """Shards that cannot be read to their end -> why."""
        reasons: dict[str, str] = {}
        for name in self.found_in(folder):
            try:
                list(_members(folder / name))
            except DataError as error:
                reasons[name] = str(error)
        return reasons

    def unusable(self, folder: Path) -> str | None:
        """Which shards are missing, or why the first damaged one cannot be read."""
        why = self.incomplete(folder) or next(iter(self.damaged(folder).values()), None)
        return None if why is None else f"incomplete: {why}"


def read_webdataset(request: SourceRequest) -> Loaded:
    """Images with texts, from tar files; columns are ``image``, ``txt``, ``json.name``, ``cls`` and ``__key__``.

    OutOfReachError if the repository is neither cached nor downloadable; DataError if a shard is missing or wrong.
    """
    options = read_hub_options(WebdatasetOptions, request)
    folder, record = options.folder(request)
    lacking = options.incomplete(folder)
    if lacking is not None:
        raise DataError(f"{options.where}: {lacking} in {folder}; `ttmbench download` fetches it again")

    def image(cell: Cell) -> ImageRef:
        member = cell.value
        if not isinstance(member, TarMember):
            raise DataError(f"{cell.where} is not an image")
        name = f"{member.tar.relative_to(folder).as_posix()}/{member.name}"
        return ImageRef(name, lambda: open_image(io.BytesIO(member.read())), read=member.read, exif=options.exif)

    shards = [folder / name for name in options.found_in(folder)]
    groups = groups_from_rows(_rows(shards, options.lines), replace(request, limit=None), image)
    return Loaded(list(islice(groups, request.limit)), record)


def locate_webdataset(request: SourceRequest) -> list[DataLocation]:
    """Shards of a repository of the Hub, or a local folder of them."""
    options = read_hub_options(WebdatasetOptions, request)
    return options.locations(request, options.unusable)


def _rows(tars: Sequence[Path], lines: Sequence[str]) -> Iterator[Row]:
    """The samples of tar files, numbered throughout.

    Cells are ``__key__`` (the name without its ending), ``image`` (a `TarMember`), and by their endings ``txt`` and
    ``cls`` (texts) and ``json`` (parsed). Texts in ``lines`` become lists of lines.
    """
    samples = ((tar, key, cells) for tar in tars for key, cells in _samples(tar))
    for index, (tar, key, cells) in enumerate(samples):
        if "image" not in cells:
            dotted = next((ending for ending in cells if ending.rpartition(".")[2] in IMAGES), None)
            why = f"; a key ends at its first dot, so {dotted!r:.80} is an ending: rename the file" if dotted else ""
            raise DataError(f"{tar}: sample {key!r:.80} has no image ({', '.join(IMAGES)}){why}")
        for column in lines:
            text = cells.get(column)
            if isinstance(text, str):
                cells[column] = [line.strip() for line in text.splitlines() if line.strip()]
        yield Row(str(index), cells, index, str(tar))


def _samples(tar: Path) -> Iterator[tuple[str, dict[str, object]]]:
    key: str | None = None
    cells: dict[str, object] = {}
    for member in _members(tar):
        if LITTER.search(member.name):
            continue
        folder, slash, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        sample, ending = f"{folder}{slash}{stem}", ending.lower()
        if sample != key:
            if key is not None:
                yield key, cells
            key, cells = sample, {"__key__": sample}
        column = "image" if ending in IMAGES else ending
        if column in cells and (column == "image" or ending in TEXTS):
            raise DataError(f"{tar}: sample {sample!r:.80} has '{column}' twice")
        if column == "image":
            cells[column] = member
        elif ending in TEXTS:
            cells[column] = _text(member, ending)
        else:
            cells[column] = member
    if key is not None:
        yield key, cells


def _members(tar: Path) -> Iterator[TarMember]:
    """The files of an uncompressed tar; DataError if it is damaged, cut off, or has more than files and folders."""
    check_no_pointer(tar)
    try:
        with tarfile.open(tar, "r:", tarinfo=Header) as opened:
            for count, member in enumerate(opened):
                if count >= limit("archive_files"):
                    raise DataError(f"{tar} has more than {limit('archive_files')} files; {raised_by('archive_files')}")
                if member.isreg() and member.sparse is None:
                    yield TarMember(tar, member.name, member.offset_data, member.size)
                elif not member.isdir():
                    raise DataError(f"{tar}: {member.name!r:.80} is neither a file nor a folder")
            check_end(opened)
            if not opened.getmembers():
                raise tarfile.ReadError("it has no files")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(f"{tar} cannot be read as an uncompressed tar ({error}); download it again") from None


def _text(member: TarMember, ending: str) -> object:
    where = f"{member.tar}: {member.name}"
    if member.size > MOST_TEXT:
        raise DataError(f"{where} has {member.size} bytes, too many for a text")
    try:
        text = io.TextIOWrapper(io.BytesIO(member.read()), encoding="utf-8-sig").read()
        return parse_json(text) if ending == "json" else text.strip()
    except (UnicodeDecodeError, Unreadable) as error:
        raise DataError(f"{where}: {error}") from None


def in_order(names: Sequence[str]) -> list[str]:
    """Names by the numbers in them.

    >>> in_order(["test/10.tar", "test/2.tar"])
    ['test/2.tar', 'test/10.tar']
    """
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
