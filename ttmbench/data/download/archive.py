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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from ttmbench._util.escape import DEVICES, plain
from ttmbench._util.limits import limit
from ttmbench._util.progress import progress_bar
from ttmbench.errors import DataError

CHUNK = 1 << 20
MOST_AT_ONCE = 16 << 20
_ZIP = (b"PK\3\4", b"PK\5\6")  # files follow; none does
_LONGEST_LINK = 4096
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
class _Entry:
    """What an archive says of one member, not checked yet; ``link``: the path that it leads to, from the top."""

    name: str
    size: int
    kind: Literal["file", "folder", "link", "other"]
    open: Callable[[], IO[bytes] | None]
    link: str = ""


@dataclass(frozen=True)
class _Member:
    """A file of an archive, checked: its path, and its content or the path that it is a copy of."""

    path: PurePosixPath
    open: Callable[[], IO[bytes] | None]
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
            written = _write(chosen, new, limits, archive)
        if target.exists():
            target.rename(old)
        new.rename(target)
        return written
    except _BROKEN as error:
        raise DataError(
            f"archive {archive.name} is damaged or of an unknown kind ({error}); download it again"
        ) from None
    except OSError as error:
        raise DataError(f"archive {archive.name} cannot be unpacked to {target} ({error.strerror or error})") from None
    finally:
        _remove(new)
        _remove(old)


@contextmanager
def _members(archive: Path, limits: Limits) -> Iterator[list[_Member]]:
    """The files of an archive; refused before anything is written if their names or sizes are wrong."""
    with _entries(archive) as entries:
        members = [one for one in _checked(entries, archive, limits) if not _LITTER.search(str(one.path))]
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


def _checked(entries: Iterable[_Entry], archive: Path, limits: Limits) -> Iterator[_Member]:
    """Files and links, one after the other, so that what is wrong is refused before the rest is looked at."""
    files = size = 0
    packed = archive.stat().st_size
    for entry in entries:
        path = _safe(entry, archive)
        if entry.kind == "folder":
            continue
        files, size = files + 1, size + entry.size
        if files > limits.members:
            raise DataError(f"archive {archive.name} has more than {limits.members} files")
        if size > limits.most(packed):
            raise _bomb(archive, limits)
        if entry.kind == "other":
            raise DataError(f"archive {archive.name}: {path} is neither a file nor a folder")
        yield _Member(path, entry.open, _inner(entry.link, path, archive) if entry.kind == "link" else None)


@contextmanager
def _entries(archive: Path) -> Iterator[Iterable[_Entry]]:
    """What an archive lists, whatever kind it is of; its content can be read as long as the block lasts."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(_ZIP):
        with zipfile.ZipFile(archive) as packed:
            yield (_zip_entry(packed, one, archive) for one in packed.infolist())
        return
    openers: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    opener = next((one for start, one in openers.items() if magic.startswith(start)), lambda path: path.open("rb"))
    with opener(archive) as stream:
        short: Any = ShortReads(stream, archive)  # tarfile asks for less of a file than its type says
        with tarfile.open(fileobj=short, mode="r:") as tar:
            yield _tar_entries(tar)


def _zip_entry(file: zipfile.ZipFile, one: zipfile.ZipInfo, archive: Path) -> _Entry:
    if one.flag_bits & 1:
        raise DataError(f"archive {archive.name}: {one.filename!r:.200} is encrypted")
    mode = stat.S_IFMT(one.external_attr >> 16)
    if one.is_dir():
        return _Entry(one.filename, 0, "folder", lambda: None)
    if mode != stat.S_IFLNK:
        kind: Literal["file", "other"] = "file" if mode in (0, stat.S_IFREG) else "other"
        return _Entry(one.filename, one.file_size, kind, partial(file.open, one))
    if one.file_size > _LONGEST_LINK:
        raise DataError(f"archive {archive.name}: {one.filename!r:.200} is a link of no sensible length")
    link = PurePosixPath(one.filename).parent / file.read(one).decode("utf-8", "replace")
    return _Entry(one.filename, 0, "link", lambda: None, str(link))


def _tar_entries(file: tarfile.TarFile) -> Iterator[_Entry]:
    for one in file:
        yield _tar_entry(file, one)
    check_end(file)


def check_end(tar: tarfile.TarFile) -> None:
    """Checks that a tar ends where its reading stopped, and reads its file to the end.

    tarfile takes a damaged header, other than the first one, and a missing one for the end of the archive. POSIX ends
    it with two blocks of zeros, and writers fill up their last record with more. Of a packed file, the checksum comes
    last.

    Args:
        tar: with all of its members read.

    Raises:
        tarfile.ReadError: there is no such end, or something else than zeros after it.
    """
    stream: Any = tar.fileobj
    stream.seek(tar.offset)
    zeros, other = 0, False
    while not other and zeros <= MOST_AT_ONCE and (block := stream.read(CHUNK)):
        stripped = block.lstrip(b"\0")
        zeros, other = zeros + len(block) - len(stripped), bool(stripped)
    if zeros >= 2 * tarfile.BLOCKSIZE and not other and zeros <= MOST_AT_ONCE:
        return
    found = "other bytes" if other and zeros < tarfile.BLOCKSIZE else f"{min(zeros, MOST_AT_ONCE)} zero bytes"
    if other and zeros >= tarfile.BLOCKSIZE:
        found += " and then others (an overwritten header, or tars joined without `tar -A`)"
    elif zeros > MOST_AT_ONCE:
        found += " and more"
    elif not other:
        found = f"{found} and then the end of the file" if zeros else "the end of the file"
    raise tarfile.ReadError(
        f"expected a file header or the end of the archive ({2 * tarfile.BLOCKSIZE} zero bytes) at byte {tar.offset}, "
        f"found {found}"
    )


def _tar_entry(file: tarfile.TarFile, one: tarfile.TarInfo) -> _Entry:
    if one.isdir():
        return _Entry(one.name, 0, "folder", lambda: None)
    if one.issym() or one.islnk():  # a symbolic one starts at its own folder
        start = PurePosixPath(one.name).parent if one.issym() else PurePosixPath()
        return _Entry(one.name, 0, "link", lambda: None, str(start / one.linkname))
    return _Entry(one.name, one.size, "file" if one.isreg() else "other", partial(file.extractfile, one))


class ShortReads:
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


def _bomb(archive: Path, limits: Limits) -> DataError:
    packed = archive.stat().st_size
    return DataError(
        f"archive {archive.name} has {packed} bytes and unpacks to more than {limits.most(packed)}: no images do that, "
        "so it is refused as an archive bomb"
    )


def _safe(entry: _Entry, archive: Path) -> PurePosixPath:
    """A member's path, checked: relative, going down only, and meaning the same on every system."""
    name, path = entry.name, PurePosixPath(entry.name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or _DRIVE.match(name)
    if outside or not (path.parts or entry.kind == "folder"):
        raise DataError(f"archive {archive.name}: member {name!r:.200} leads out of its folder")
    if plain(name, keep="") != name or any(_is_device(part) for part in path.parts):
        raise DataError(f"archive {archive.name}: member {name!r:.200} has a name that not every system can hold")
    return path


def _is_device(part: str) -> bool:
    return part.partition(".")[0].upper() in DEVICES or part.endswith((" ", "."))


def _folded(path: PurePosixPath) -> str:
    """A path as file systems see it that know neither case nor ways to write an accent."""
    return unicodedata.normalize("NFC", str(path)).casefold()


def _inner(link: str, path: PurePosixPath, archive: Path) -> PurePosixPath:
    """The file of the archive that a link means."""
    inner = PurePosixPath(os.path.normpath(link))
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


def _write(chosen: list[tuple[PurePosixPath, _Member]], target: Path, limits: Limits, archive: Path) -> Unpacked:
    """Writes files; their true sizes are counted, whatever the archive says: copies of one file count each."""
    total, most = 0, limits.most(archive.stat().st_size)
    with progress_bar(len(chosen), f"unpacking {archive.name.removesuffix('.part')}", "files") as shown:
        for relative, one in chosen:
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            content = one.open()
            assert content is not None, "a file, or what a link leads to"
            with content, path.open("xb") as file:
                while block := content.read(CHUNK):
                    total += len(block)
                    if total > most:
                        raise _bomb(archive, limits)
                    file.write(block)
            shown.update(1)
    return Unpacked(len(chosen), total)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
