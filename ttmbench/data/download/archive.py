"""Unpacks archives so that no member can reach outside its folder or fill the disk.

Only files and folders are written, into a new folder that holds no link. A link to a file of the same archive becomes a
copy; any other link, a device or a path that leads out refuses the whole archive. The result appears at the end, or not
at all.
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
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple, cast

from ttmbench._util.console import DEVICES, plain, progress_bar
from ttmbench._util.limits import limit
from ttmbench.errors import DataError

CHUNK = 1 << 20
MOST_AT_ONCE = 16 << 20
_ZIP = (b"PK\3\4", b"PK\5\6")  # files follow; none does
_OPENERS: dict[bytes, Callable[[Path], AbstractContextManager[object]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"": lambda path: path.open("rb"),
}
_LONGEST_LINK = 4096
_OUTSIDE = re.compile(r"^[A-Za-z]:|[\\\0]")
LITTER = re.compile(r"(^|/)(__MACOSX(/|$)|\._[^/]*$|\.DS_Store$)")
_BROKEN = (  # what readers of archives raise of damaged ones
    zipfile.BadZipFile,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    RuntimeError,
    ValueError,
    struct.error,
    LookupError,
    OverflowError,
)


class Unpacked(NamedTuple):
    """Number of files, and their bytes together."""

    files: int
    bytes: int


class _Entry(NamedTuple):
    """An unchecked member of an archive; ``link``: the path that it leads to, from the top."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    open: Callable[[], IO[bytes] | None] = lambda: None
    link: str = ""


def unpack(archive: Path, target: Path, member: str | None = None) -> Unpacked:
    """Unpacks an archive into a new file or folder, or in place of an existing one. One process at a time.

    Args:
        archive: zip, or tar packed by gzip, bzip2, xz or not at all; recognised by content.
        target: the new file or folder.
        member: file or folder of the archive that becomes the target; without it everything, less the folders that
            hold it all.

    Raises:
        DataError: the archive is broken, unsafe or too large, or does not have the member. Nothing is written then.
    """
    new = target.with_name(f".{target.name}.unpacking")
    _remove(new)  # of a process that was killed
    try:
        unpacking = _Unpacking(archive, new, member)
        with progress_bar(None, f"unpacking {archive.name.removesuffix('.part')}", "files") as shown:
            for entry in _entries(archive):
                unpacking.add(entry)
                shown.update(1)
            root = unpacking.finish()
        _remove(target)
        root.rename(target)
        return Unpacked(unpacking.files, unpacking.size)
    except (*_BROKEN, OSError) as error:
        if not isinstance(error, OSError) or error.errno is None:  # bz2 and gzip raise it of damaged files
            raise DataError(
                f"archive {archive.name} is damaged or of an unknown kind ({error}); download it again"
            ) from None
        raise DataError(f"archive {archive.name} cannot be unpacked to {target} ({error.strerror or error})") from None
    finally:
        _remove(new)


@dataclass
class _Unpacking:
    """What of an archive is written so far, and counted as it is, whatever the archive states."""

    archive: Path
    folder: Path
    member: str | None
    files: int = 0
    size: int = 0
    _seen: set[str] = field(default_factory=set)
    _tops: set[str] = field(default_factory=set)
    _links: dict[PurePosixPath, PurePosixPath] = field(default_factory=dict)

    def add(self, entry: _Entry) -> None:
        """Writes a member, or remembers a link for the end."""
        path = self._checked(entry.name, is_folder=entry.kind == "folder")
        if entry.kind == "other":
            raise self._error(f"{path} is neither a file nor a folder")
        if entry.kind == "folder" or LITTER.search(str(path)):
            return
        # As file systems see a path that know neither case nor ways to write an accent.
        name = unicodedata.normalize("NFC", str(path)).casefold()
        if name in self._seen:
            raise self._error("has two files of one name, but for case or accents")
        self._seen.add(name)
        if len(self._seen) > limit("archive_files"):
            raise self._error(f"has more than {limit('archive_files')} files")
        self._tops.add(path.parts[0])
        is_wanted = self.member is None or path.is_relative_to(self.member)
        if entry.kind == "link":
            link = self._checked(os.path.normpath(entry.link), f"{path} is a link to {entry.link!r:.200}, which")
            self._links |= {path: link} if is_wanted else {}
        elif is_wanted:
            content = entry.open()
            assert content is not None, "only a file is opened"
            with content:
                self._write(path, content)

    def finish(self) -> Path:
        """Copies what links lead to; the file or folder that is to be the target."""
        while self._links:
            ready = {path: link for path, link in self._links.items() if (self.folder / link).is_file()}
            if not ready:
                path, link = next(iter(self._links.items()))
                raise self._error(f"{path} is a link to {link}, which is not a file of the archive that is unpacked")
            for path, link in ready.items():
                with (self.folder / link).open("rb") as content:
                    self._write(path, content)
                del self._links[path]
        if not self.files:
            tops = ", ".join(sorted(self._tops)[:5])
            raise self._error(f"has no '{self.member}'; it has {tops}" if tops else "has no files")
        root = self.folder / (self.member or "")
        while self.member is None and len(inner := list(root.iterdir())) == 1 and inner[0].is_dir():
            root = inner[0]
        return root

    def _write(self, path: PurePosixPath, content: IO[bytes]) -> None:
        packed = self.archive.stat().st_size
        most = min(limit("archive_bytes"), max(limit("archive_free"), limit("archive_ratio") * packed))
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while block := content.read(CHUNK):
                self.size += len(block)
                if self.size > most:
                    raise self._error(f"has {packed} bytes and unpacks to more than {most}: refused as an archive bomb")
                file.write(block)
        self.files += 1

    def _checked(self, name: str, what: str = "", is_folder: bool = False) -> PurePosixPath:
        """A path of the archive: relative, going down only, and meaning the same on every system."""
        path, what = PurePosixPath(name), what or f"member {name!r:.200}"
        outside = path.is_absolute() or ".." in path.parts or _OUTSIDE.search(name)
        if outside or not (path.parts or is_folder):
            raise self._error(f"{what} leads out of its folder")
        devices = any(part.partition(".")[0].upper() in DEVICES or part.endswith((" ", ".")) for part in path.parts)
        if devices or plain(name, keep="") != name:
            raise self._error(f"{what} has a name that not every system can hold")
        return path

    def _error(self, why: str) -> DataError:
        return DataError(f"archive {self.archive.name}: {why}")


def _entries(archive: Path) -> Iterator[_Entry]:
    """The members of an archive of any kind, in its order."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(_ZIP):
        with zipfile.ZipFile(archive) as packed:
            yield from (_of_zip(packed, info) for info in packed.infolist())
        return
    opener = next(opener for start, opener in _OPENERS.items() if magic.startswith(start))
    with opener(archive) as stream:
        with tarfile.open(fileobj=cast("IO[bytes]", ShortReads(cast("IO[bytes]", stream), archive)), mode="r:") as tar:
            yield from (_of_tar(tar, info) for info in tar)
            check_end(tar)


def _of_zip(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    if info.flag_bits & 1:
        raise zipfile.BadZipFile(f"{info.filename!r:.200} is encrypted")
    if info.is_dir():
        return _Entry(info.filename, "folder")
    mode = stat.S_IFMT(info.external_attr >> 16)
    if mode != stat.S_IFLNK:
        return _Entry(info.filename, "file" if mode in (0, stat.S_IFREG) else "other", partial(file.open, info))
    if info.file_size > _LONGEST_LINK:
        raise zipfile.BadZipFile(f"{info.filename!r:.200} is a link of no sensible length")
    link = PurePosixPath(info.filename).parent / file.read(info).decode("utf-8", "replace")
    return _Entry(info.filename, "link", link=str(link))


def _of_tar(file: tarfile.TarFile, info: tarfile.TarInfo) -> _Entry:
    if info.isdir():
        return _Entry(info.name, "folder")
    if info.issym() or info.islnk():  # a symbolic one starts at its own folder
        start = PurePosixPath(info.name).parent if info.issym() else PurePosixPath()
        return _Entry(info.name, "link", link=str(start / info.linkname))
    return _Entry(info.name, "file" if info.isreg() else "other", partial(file.extractfile, info))


def check_end(tar: tarfile.TarFile) -> None:
    """Reads a tar to its end; tarfile.ReadError if anything but zeros follows the last member.

    tarfile takes a damaged or missing header, other than the first one, for the end of the archive. POSIX ends it with
    two blocks of zeros, and writers may add more. The checksum of a packed file comes last.
    """
    stream = cast("IO[bytes]", tar.fileobj)
    stream.seek(tar.offset)
    zeros, other = 0, False
    while not other and zeros <= MOST_AT_ONCE and (block := stream.read(CHUNK)):
        stripped = block.lstrip(b"\0")
        zeros, other = zeros + len(block) - len(stripped), bool(stripped)
    if zeros >= 2 * tarfile.BLOCKSIZE and not other and zeros <= MOST_AT_ONCE:
        return
    seen = f"{min(zeros, MOST_AT_ONCE)} zero bytes and "
    if other:
        joined = f"{seen}then others (an overwritten header, or tars joined without `tar -A`)"
        seen = joined if zeros >= tarfile.BLOCKSIZE else "other bytes"
    elif zeros > MOST_AT_ONCE:
        seen += "more"
    else:
        seen = f"{seen}then the end of the file" if zeros else "the end of the file"
    raise tarfile.ReadError(
        f"expected a file header or the end of the archive ({2 * tarfile.BLOCKSIZE} zero bytes) at byte {tar.offset}, "
        f"found {seen}"
    )


class ShortReads:
    """A stream that refuses large reads: only a dishonest tar has a header that long."""

    def __init__(self, stream: IO[bytes], archive: Path) -> None:
        self.stream, self.archive = stream, archive
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes; DataError if that is too many."""
        if not 0 <= size <= MOST_AT_ONCE:
            raise DataError(f"archive {self.archive.name} has a header of {size} bytes, so it is refused")
        return self.stream.read(size)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
