"""Unpacks archives so that nothing is written outside of a new folder, and no more than the archive's size allows.

Only regular files are written, so no link or device is ever made, and ``tarfile``'s filters are not needed.
"""

from __future__ import annotations

import lzma
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from ttmbench._util.file_io import check_no_pointer, limit, raised_by
from ttmbench.data.availability import amount
from ttmbench.data.paths import inside
from ttmbench.errors import DataError

CHUNK = 1 << 20
LITTER = re.compile(r"(^|/)(__MACOSX(/|$)|\._[^/]*$|\.DS_Store$)")
SHOWN = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp", ".cls", ".json", ".txt")  # what shards may hold
_MOST_PADDING = 16 << 20  # zeros after the last member of a tar
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DAMAGE = (  # what readers of archives raise of damaged ones
    *(zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, RuntimeError, ValueError),
    *(struct.error, LookupError, OverflowError),
)


def unpack(archive: Path, target: Path, member: str | None = None) -> str:
    """Unpacks an archive in place of a file or folder; what was unpacked as text. One process at a time.

    A zip, or a tar packed by gzip, bzip2, xz or not at all, is recognised by its content. ``member`` is the file or
    folder that becomes the target; without it everything, less the folders that hold it all. DataError if the archive
    is broken, unsafe or too large, or does not have the member; the target stays as it was.
    """
    new = target.parent.resolve() / f".{target.name}.unpacking"
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    try:
        files, size = _write(archive, new, member, f"archive of {target.name}")
        root = new / (member or "")
        while member is None and len(inner := list(root.iterdir())) == 1 and inner[0].is_dir():
            root = inner[0]
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        root.rename(target)
    except (*_DAMAGE, OSError) as error:
        if not isinstance(error, OSError) or error.errno is None:  # bz2 and gzip raise it of damaged files
            why = f"is damaged or of an unknown kind ({error}); download it again"
        else:
            why = f"cannot be unpacked to {target} ({error.strerror or error})"
        raise DataError(f"archive of {target.name} {why}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return f"unpacked to {files} files of {amount(size)}"


def _write(archive: Path, folder: Path, member: str | None, what: str) -> tuple[int, int]:
    """Writes the wanted members below a folder; number of files, and bytes, which count as they come."""
    packed, files, size = archive.stat().st_size, 0, 0
    most = min(limit("archive_bytes"), max(limit("archive_free"), limit("archive_ratio") * packed))
    for number, (name, opened) in enumerate(_members(archive)):
        if number >= limit("archive_files"):
            raise DataError(f"{what} has more than {limit('archive_files')} files; {raised_by('archive_files')}")
        path = inside(folder, name, what)
        relative = path.relative_to(folder)
        if LITTER.search(relative.as_posix()) or not (member is None or relative.is_relative_to(member)):
            continue
        source = opened()
        if source is None:
            raise DataError(f"{what}: {name!r:.200} is neither a file nor a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with source, path.open("xb") as file:
            while block := source.read(CHUNK):
                size += len(block)
                if size > most:
                    raise DataError(f"{what} has {packed} bytes and unpacks to more than {most}: refused as a bomb")
                file.write(block)
        files += 1
    if not files:
        raise DataError(f"{what} has no {member or 'files'}")
    return files, size


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None]]]:
    """Name of each member but folders, and what opens it: None for a device, and for a link unless to a member."""
    with archive.open("rb") as file:
        is_zip = file.read(4) in (b"PK\3\4", b"PK\5\6")  # files follow; none does
    if is_zip:
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
                    yield info.filename, partial(packed.open, info) if is_file else lambda: None
        return
    with tarfile.open(archive, tarinfo=Header) as tar:
        for entry in tar:
            if not entry.isdir():
                yield entry.name, partial(tar.extractfile, entry)
        check_end(tar)


class Header(tarfile.TarInfo):
    """A header of a tar that is refused if its name or its extension would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        """The header in a block; DataError if it announces too many bytes."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED and header.size > CHUNK:
            raise DataError(f"the archive has a header of {header.size} bytes, so it is refused")
        return header


def check_end(tar: tarfile.TarFile) -> None:
    """Reads a tar to its end; tarfile.ReadError unless two blocks of zeros or more follow the last member.

    tarfile takes a damaged or missing header, other than the first one, for the end of the archive. The checksum of a
    packed file comes last.
    """
    stream = tar.fileobj
    assert stream is not None, "it is open"
    stream.seek(tar.offset)
    rest = stream.read(_MOST_PADDING)
    if len(rest) < 2 * tarfile.BLOCKSIZE or rest.strip(b"\0") or stream.read(1):
        raise tarfile.ReadError(f"expected a file header or the end of the archive at byte {tar.offset}, found neither")


def check_shard(tar: Path) -> None:
    """DataError unless a tar is whole, not packed, and has files alone, of kinds that take no more room than they say.

    The library that reads shards takes a damaged header for their end, and unpacks what is packed in them.
    """
    check_no_pointer(tar)
    try:
        with tarfile.open(tar, "r:", tarinfo=Header) as opened:
            for count, member in enumerate(opened):
                if count >= limit("archive_files"):
                    raise DataError(f"{tar} has more than {limit('archive_files')} files; {raised_by('archive_files')}")
                name = f"{tar}: {member.name!r:.80}"
                if not member.isdir() and (not member.isreg() or member.sparse is not None):
                    raise DataError(f"{name} is neither a file nor a folder")
                if member.isreg() and not LITTER.search(member.name) and not member.name.lower().endswith(SHOWN):
                    raise DataError(f"{name} should be an image or a text ({', '.join(SHOWN)})")
                if member.size > limit("image_bytes"):
                    raise DataError(f"{name} has {member.size} bytes; {raised_by('image_bytes')}")
            check_end(opened)
            if not opened.getmembers():
                raise tarfile.ReadError("it has no files")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(f"{tar} cannot be read as an uncompressed tar ({error}); download it again") from None
