"""Archives, unpacked so that nothing of them can reach outside its folder or fill the disk.

Files and folders alone are written. A link to a file of the same archive becomes a copy; every other link, a device or
a path that leads out refuses the whole archive. What is unpacked appears at once, or not at all.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ttmbench._util.escape import DEVICES, plain
from ttmbench._util.limits import limit
from ttmbench._util.progress import bar
from ttmbench.errors import DataError

CHUNK = 1 << 20
MOST_AT_ONCE = 16 << 20
_ZIP = (b"PK\3\4", b"PK\5\6")  # files follow; none does
_DRIVE = re.compile(r"^[A-Za-z]:")
_LITTER = re.compile(r"(^|/)(__MACOSX(/|$)|\._[^/]*$|\.DS_Store$)")
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    NotImplementedError,
    UnicodeError,
    RuntimeError,
    ValueError,
    struct.error,
    IndexError,
    KeyError,
    OverflowError,
)


@dataclass(frozen=True)
class Limits:
    """What is too much for an honest archive of images and captions.

    Attributes:
        members: files.
        bytes: of all files together.
        ratio: bytes of all files for each byte of the archive, beyond ``free``.
        free: bytes that need no such ratio: a small archive of text packs well.
    """

    members: int = field(default_factory=partial(limit, "archive_files"))
    bytes: int = field(default_factory=partial(limit, "archive_bytes"))
    ratio: float = field(default_factory=partial(limit, "archive_ratio"))
    free: int = field(default_factory=partial(limit, "archive_free"))

    def most(self, packed: int) -> int:
        """Bytes that an archive of this size may hold."""
        return int(min(self.bytes, max(self.free, self.ratio * packed)))


@dataclass(frozen=True)
class Unpacked:
    """How many files there are, and their bytes together."""

    files: int
    bytes: int


@dataclass(frozen=True)
class _Member:
    """A file of an archive: its path, and its content or the path that it is a copy of."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]] | None = None
    copy_of: PurePosixPath | None = None


def unpack(archive: Path, target: Path, member: str | None = None, limits: Limits | None = None) -> Unpacked:
    """Unpacks an archive into a new file or folder.

    Args:
        archive: zip, or tar packed by gzip, bzip2, xz or not at all; told apart by content.
        target: what is made; replaced if it is there.
        member: file or folder of the archive that becomes the target; without it everything, less the folders that
            hold it all.
        limits: what is too much.

    Returns:
        What was written.

    Raises:
        DataError: the archive is broken, unsafe or too large, or does not have the member. Nothing is written then.
    """
    limits = limits or Limits()
    new, old = (target.with_name(f".{target.name}.{word}.{os.getpid()}") for word in ("unpacking", "replaced"))
    for word in ("unpacking", "replaced"):  # of a process that was killed
        for stale in target.parent.glob(f".{escape(target.name)}.{word}.*"):
            _remove(stale)
    try:
        with _members(archive, limits) as members:
            chosen = _chosen(members, member, archive)
            written = _write(chosen, new, limits.most(archive.stat().st_size), archive)
        if target.exists():
            target.rename(old)
        new.rename(target)
        return written
    except _BROKEN as error:
        raise DataError(f"archive {archive.name} is damaged or of an unknown kind ({error})") from None
    except OSError as error:
        raise DataError(f"archive {archive.name} cannot be unpacked to {target} ({error.strerror or error})") from None
    finally:
        _remove(new)
        _remove(old)


@contextmanager
def _members(archive: Path, limits: Limits) -> Iterator[list[_Member]]:
    """The files of an archive; refused before anything is written if their names or sizes are wrong."""
    with archive.open("rb") as file:
        kind = _from_zip if file.read(4) in _ZIP else _from_tar
    with kind(archive, limits) as found:
        members = [one for one in found if not _LITTER.search(str(one.path))]
        if not members:
            raise DataError(f"archive {archive.name} has no files")
        paths = {one.path for one in members}
        if len({_folded(path) for path in paths}) < len(members):
            raise DataError(f"archive {archive.name} has two files of one name, but for case or accents")
        inside = next((parent for path in paths for parent in path.parents if parent in paths), None)
        if inside is not None:
            raise DataError(f"archive {archive.name}: {inside} is both a file and a folder")
        for one in members:
            if one.copy_of is not None and one.copy_of not in paths:
                raise DataError(
                    f"archive {archive.name}: {one.path} is a link to {one.copy_of}, which is no file of the archive"
                )
        yield members


@contextmanager
def _from_zip(archive: Path, limits: Limits) -> Iterator[list[_Member]]:
    with zipfile.ZipFile(archive) as file:
        entries = [entry for entry in file.infolist() if not entry.is_dir()]
        count = _Count(archive, limits)
        members = []
        for entry in entries:
            path = _safe(entry.filename, archive)
            mode = entry.external_attr >> 16
            count.add(entry.file_size)
            if entry.flag_bits & 1:
                raise DataError(f"archive {archive.name}: {path} is encrypted")
            if stat.S_ISLNK(mode):
                if entry.file_size > 4096:
                    raise DataError(f"archive {archive.name}: {path} is a link of no sensible length")
                link = file.read(entry).decode("utf-8", "replace")
                members.append(_Member(path, 0, copy_of=_inner(path.parent, link, path, archive)))
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise DataError(f"archive {archive.name}: {path} is neither a file nor a folder")
            else:
                members.append(_Member(path, entry.file_size, partial(file.open, entry)))
        yield members


@contextmanager
def _from_tar(archive: Path, limits: Limits) -> Iterator[list[_Member]]:
    with _unpacked_stream(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as file:
        count = _Count(archive, limits)
        members = []
        for entry in file:
            if entry.isdir():
                _safe(entry.name, archive, folder=True)
                continue
            path = _safe(entry.name, archive)
            count.add(entry.size)
            if entry.issym() or entry.islnk():
                start = path.parent if entry.issym() else PurePosixPath()
                members.append(_Member(path, 0, copy_of=_inner(start, entry.linkname, path, archive)))
            elif not entry.isreg():
                raise DataError(f"archive {archive.name}: {path} is neither a file nor a folder")
            else:
                members.append(_Member(path, entry.size, partial(_tar_file, file, entry)))
        yield members


@contextmanager
def _unpacked_stream(archive: Path) -> Iterator[Any]:
    """The bytes of a tar file, however it is packed."""
    with archive.open("rb") as file:
        magic = file.read(6)
    openers: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    opener = next((one for start, one in openers.items() if magic.startswith(start)), lambda path: path.open("rb"))
    with opener(archive) as stream:
        yield _ShortReads(stream, archive)


class _ShortReads:
    """A stream that gives a little at a time: an honest tar never asks for more, and a long header is no honest one."""

    def __init__(self, stream: Any, archive: Path) -> None:
        self.stream = stream
        self.archive = archive
        self.seek = stream.seek
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        """So many bytes."""
        if not 0 <= size <= MOST_AT_ONCE:
            raise DataError(f"archive {self.archive.name} has a header of {size} bytes, so it is refused")
        block: bytes = self.stream.read(size)
        return block


def _tar_file(file: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = file.extractfile(entry)
    assert content is not None, "a regular file"
    return content


@dataclass
class _Count:
    """Adds up what an archive says of itself, and refuses a bomb."""

    archive: Path
    limits: Limits
    members: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """One more file."""
        self.members += 1
        self.bytes += size
        if self.members > self.limits.members:
            raise DataError(f"archive {self.archive.name} has more than {self.limits.members} files")
        packed = self.archive.stat().st_size
        if self.bytes > self.limits.most(packed):
            raise _bomb(self.archive, packed, self.limits.most(packed))


def _bomb(archive: Path, packed: int, most: int) -> DataError:
    return DataError(
        f"archive {archive.name} has {packed} bytes and unpacks to more than {most}: no images do that, so it is "
        "refused as an archive bomb"
    )


def _safe(name: str, archive: Path, folder: bool = False) -> PurePosixPath:
    """A member's path, checked: relative, going down only, and meaning the same on every system."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or _DRIVE.match(name)
    if outside or not (path.parts or folder):
        raise DataError(f"archive {archive.name}: member {name!r:.200} leads out of its folder")
    if plain(name, keep="") != name or any(_is_device(part) for part in path.parts):
        raise DataError(f"archive {archive.name}: member {name!r:.200} has a name that not every system can hold")
    return path


def _is_device(part: str) -> bool:
    return part.partition(".")[0].upper() in DEVICES or part.endswith((" ", "."))


def _folded(path: PurePosixPath) -> str:
    """A path as file systems see it that know neither case nor ways to write an accent."""
    return unicodedata.normalize("NFC", str(path)).casefold()


def _inner(start: PurePosixPath, link: str, path: PurePosixPath, archive: Path) -> PurePosixPath:
    """The file of the archive that a link means."""
    inner = PurePosixPath(os.path.normpath(start / link))
    if inner.is_absolute() or ".." in inner.parts or "\\" in link or "\0" in link or inner == path:
        raise DataError(f"archive {archive.name}: {path} is a link to {link!r:.200}, which leads out of its folder")
    return inner


def _chosen(members: list[_Member], member: str | None, archive: Path) -> list[tuple[PurePosixPath, _Member]]:
    """Which files are written, each with its path below the target; ``.`` for the target itself."""
    by_path = {one.path: one for one in members}

    def content(one: _Member) -> _Member:
        seen = set()
        while one.copy_of is not None:
            if one.path in seen:
                raise DataError(f"archive {archive.name}: {one.path} is a link in a circle")
            seen.add(one.path)
            one = by_path[one.copy_of]
        return one

    if member is None:
        root = PurePosixPath(os.path.commonpath([one.path.parent for one in members]))
    else:
        root = PurePosixPath(member)
        if root in by_path:
            return [(PurePosixPath(), content(by_path[root]))]
    chosen = [(path.relative_to(root), content(one)) for path, one in by_path.items() if path.is_relative_to(root)]
    if not chosen:
        raise DataError(f"archive {archive.name} has no '{member}'; it has {', '.join(_top(members))}")
    return chosen


def _top(members: list[_Member]) -> list[str]:
    return sorted({one.path.parts[0] for one in members})[:5]


def _write(chosen: list[tuple[PurePosixPath, _Member]], target: Path, most: int, archive: Path) -> Unpacked:
    """Writes files; their true sizes are counted, whatever the archive says."""
    total = 0
    with bar(len(chosen), f"unpacking {archive.name.removesuffix('.part')}", "files") as shown:
        for relative, one in chosen:
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            assert one.open is not None, "links are followed"
            with one.open() as content, path.open("xb") as file:
                while block := content.read(CHUNK):
                    total += len(block)
                    if total > most:
                        raise _bomb(archive, archive.stat().st_size, most)
                    file.write(block)
            shown.update(1)
    return Unpacked(len(chosen), total)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
