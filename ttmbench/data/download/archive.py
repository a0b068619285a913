"""Unpacks archives so that no member can reach outside its folder or fill the disk.

Only files and folders are written. A link to a file of the same archive becomes a copy; any other link, a device or a
path that leads out refuses the whole archive. The result appears in one step, or not at all.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from glob import escape
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
_DRIVE = re.compile(r"^[A-Za-z]:")
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


@dataclass(frozen=True)
class _Entry:
    """An unchecked member of an archive; ``link``: the path that it leads to, from the top."""

    name: str
    size: int
    kind: Literal["file", "folder", "link", "other"]
    open: Callable[[], IO[bytes] | None] = lambda: None
    link: str = ""


_Files = Mapping[PurePosixPath, _Entry]  # files and links of an archive, checked


def unpack(archive: Path, target: Path, member: str | None = None) -> Unpacked:
    """Unpacks an archive into a new file or folder, or in place of an existing one.

    Args:
        archive: zip, or tar packed by gzip, bzip2, xz or not at all; recognised by content.
        target: the new file or folder.
        member: file or folder of the archive that becomes the target; without it everything, less the folders that
            hold it all.

    Raises:
        DataError: the archive is broken, unsafe or too large, or does not have the member. Nothing is written then.
    """
    new, old = (target.with_name(f".{target.name}.{word}.{os.getpid()}") for word in ("unpacking", "replaced"))
    for word in ("unpacking", "replaced"):  # of a process that was killed
        for stale in target.parent.glob(f".{escape(target.name)}.{word}.*"):
            _remove(stale)
    try:
        with _entries(archive) as entries:
            written = _write(_chosen(_checked(entries, archive), member, archive), new, archive)
        if target.exists():
            target.rename(old)
        new.rename(target)
        return written
    except (*_BROKEN, OSError) as error:
        if not isinstance(error, OSError) or error.errno is None:  # bz2 and gzip raise it of damaged files
            raise DataError(
                f"archive {archive.name} is damaged or of an unknown kind ({error}); download it again"
            ) from None
        raise DataError(f"archive {archive.name} cannot be unpacked to {target} ({error.strerror or error})") from None
    finally:
        _remove(new)
        _remove(old)


def _checked(entries: Iterable[_Entry], archive: Path) -> _Files:
    """The files and links of an archive; wrong names, sizes and links are refused before anything is written."""
    files: dict[PurePosixPath, _Entry] = {}
    folded: set[str] = set()
    count, size, most = 0, 0, _most(archive)
    for entry in entries:  # what is wrong with one is refused before the next is looked at
        path = _safe(entry, archive)
        if entry.kind == "folder":
            continue
        count, size = count + 1, size + entry.size
        if count > limit("archive_files"):
            raise DataError(f"archive {archive.name} has more than {limit('archive_files')} files")
        if size > most:
            raise _bomb(most, archive)
        if entry.kind == "other":
            raise DataError(f"archive {archive.name}: {path} is neither a file nor a folder")
        if entry.kind == "link":
            _linked(path, entry, archive)
        if not LITTER.search(str(path)):
            # As file systems see a path that know neither case nor ways to write an accent.
            name = unicodedata.normalize("NFC", str(path)).casefold()
            if name in folded:
                raise DataError(f"archive {archive.name} has two files of one name, but for case or accents")
            folded.add(name)
            files[path] = entry
    if not files:
        raise DataError(f"archive {archive.name} has no files")
    inside = next((parent for path in files for parent in path.parents if parent in files), None)
    if inside is not None:
        raise DataError(f"archive {archive.name}: {inside} is both a file and a folder")
    for path, entry in files.items():
        if entry.kind == "link" and (linked := _linked(path, entry, archive)) not in files:
            raise DataError(f"archive {archive.name}: {path} is a link to {linked}, which is not a file of the archive")
    return files


@contextmanager
def _entries(archive: Path) -> Iterator[Iterable[_Entry]]:
    """The members of an archive of any kind; their content can be read inside the block."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(_ZIP):
        with zipfile.ZipFile(archive) as packed:
            yield (_zip_entry(packed, info, archive) for info in packed.infolist())
        return
    opener = next(opener for start, opener in _OPENERS.items() if magic.startswith(start))
    with opener(archive) as stream:
        with tarfile.open(fileobj=cast("IO[bytes]", ShortReads(cast("IO[bytes]", stream), archive)), mode="r:") as tar:
            yield _tar_entries(tar)


def _zip_entry(file: zipfile.ZipFile, info: zipfile.ZipInfo, archive: Path) -> _Entry:
    if info.flag_bits & 1:
        raise DataError(f"archive {archive.name}: {info.filename!r:.200} is encrypted")
    if info.is_dir():
        return _Entry(info.filename, 0, "folder")
    mode = stat.S_IFMT(info.external_attr >> 16)
    if mode != stat.S_IFLNK:
        kind: Literal["file", "other"] = "file" if mode in (0, stat.S_IFREG) else "other"
        return _Entry(info.filename, info.file_size, kind, partial(file.open, info))
    if info.file_size > _LONGEST_LINK:
        raise DataError(f"archive {archive.name}: {info.filename!r:.200} is a link of no sensible length")
    link = PurePosixPath(info.filename).parent / file.read(info).decode("utf-8", "replace")
    return _Entry(info.filename, 0, "link", link=str(link))


def _tar_entries(file: tarfile.TarFile) -> Iterator[_Entry]:
    for info in file:
        if info.isdir():
            yield _Entry(info.name, 0, "folder")
        elif info.issym() or info.islnk():  # a symbolic one starts at its own folder
            start = PurePosixPath(info.name).parent if info.issym() else PurePosixPath()
            yield _Entry(info.name, 0, "link", link=str(start / info.linkname))
        else:
            yield _Entry(info.name, info.size, "file" if info.isreg() else "other", partial(file.extractfile, info))
    check_end(file)


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


def _most(archive: Path) -> int:
    """Most bytes that an honest archive of this size holds; a small one of text packs well."""
    return int(min(limit("archive_bytes"), max(limit("archive_free"), limit("archive_ratio") * archive.stat().st_size)))


def _bomb(most: int, archive: Path) -> DataError:
    return DataError(
        f"archive {archive.name} has {archive.stat().st_size} bytes and unpacks to more than {most}: no images do "
        "that, so it is refused as an archive bomb"
    )


def _safe(entry: _Entry, archive: Path) -> PurePosixPath:
    """A member's path, checked: relative, going down only, and meaning the same on every system."""
    name, path = entry.name, PurePosixPath(entry.name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or _DRIVE.match(name)
    if outside or not (path.parts or entry.kind == "folder"):
        raise DataError(f"archive {archive.name}: member {name!r:.200} leads out of its folder")
    devices = any(part.partition(".")[0].upper() in DEVICES or part.endswith((" ", ".")) for part in path.parts)
    if devices or plain(name, keep="") != name:
        raise DataError(f"archive {archive.name}: member {name!r:.200} has a name that not every system can hold")
    return path


def _linked(path: PurePosixPath, entry: _Entry, archive: Path) -> PurePosixPath:
    """The path in the archive that a link leads to."""
    link, linked = entry.link, PurePosixPath(os.path.normpath(entry.link))
    if linked.is_absolute() or ".." in linked.parts or "\\" in link or "\0" in link or linked == path:
        raise DataError(f"archive {archive.name}: {path} is a link to {link!r:.200}, which leads out of its folder")
    return linked


def _chosen(files: _Files, member: str | None, archive: Path) -> dict[PurePosixPath, _Entry]:
    """Path below the target (``.`` for the target itself) -> file to write, links followed."""
    if member is None:
        root = PurePosixPath(os.path.commonpath([path.parent for path in files]))
    else:
        root = PurePosixPath(member)
    chosen = {}
    for path, entry in files.items():
        if path.is_relative_to(root):
            seen, end = set(), path
            while entry.kind == "link":
                if end in seen:
                    raise DataError(f"archive {archive.name}: {end} is a link in a circle")
                seen.add(end)
                end = _linked(end, entry, archive)
                entry = files[end]
            chosen[path.relative_to(root)] = entry
    if not chosen:
        top = sorted({path.parts[0] for path in files})[:5]
        raise DataError(f"archive {archive.name} has no '{member}'; it has {', '.join(top)}")
    return chosen


def _write(chosen: Mapping[PurePosixPath, _Entry], target: Path, archive: Path) -> Unpacked:
    """Writes files and counts their true sizes, not those that the archive states; copies of a file count each."""
    total, most = 0, _most(archive)
    with progress_bar(len(chosen), f"unpacking {archive.name.removesuffix('.part')}", "files") as shown:
        for relative, entry in chosen.items():
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            content = entry.open()
            assert content is not None, "a file, or what a link leads to"
            with content, path.open("xb") as file:
                while block := content.read(CHUNK):
                    total += len(block)
                    if total > most:
                        raise _bomb(most, archive)
                    file.write(block)
            shown.update(1)
    return Unpacked(len(chosen), total)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
