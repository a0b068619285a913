"""Files and images of the data folder: fetched from the web, resumed, checked and unpacked.

Of archives only regular files are written, into a new folder and no more than the archive's size allows.
"""

from __future__ import annotations

import glob
import hashlib
import html
import io
import json
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

from filelock import FileLock

from ttmbench._util.console import progress_bar
from ttmbench._util.file_io import file_digest, limit, raised_by, read_json_lines, write_atomically
from ttmbench._util.hub import patiently
from ttmbench._util.images import as_rgb, open_image, quiet_thread
from ttmbench._version import __version__
from ttmbench.data.availability import DataNeed, amount, count_of_images
from ttmbench.data.paths import Origin, below, inside
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError

CHUNK = 1 << 20
LOCKS = ".locks"  # in the data folder
TRIES = 5
AT_ONCE = 8  # images
SILENT = 20  # images in a row without an answer before the network is taken to be down
SECONDS = 60.0  # in which an image has to come
HUB = "https://huggingface.co"
DRIVE = ("drive.google.com", "drive.usercontent.google.com", "docs.google.com")
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LOGIN = "; it may ask for a login or an agreement, so open it in a browser"
_MOVED = "; it may have moved, so look for it at the dataset's own page"
_ADVICE = {401: _LOGIN, 403: _LOGIN, 404: _MOVED, 410: _MOVED}
_LITTER = re.compile(r"(^|/)(__MACOSX(/|$)|\._[^/]*$|\.DS_Store$)")
_MOST_PADDING = 16 << 20  # zeros after the last member of a tar
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DAMAGE = (  # what readers of archives raise of damaged ones
    *(zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, RuntimeError, ValueError),
    *(struct.error, LookupError, OverflowError),
)
T = TypeVar("T")


class _FetchError(OutOfReachError):
    """A failed request: whether it may pass, and whether any server answered."""

    def __init__(self, why: str, *, may_pass: bool, answered: bool = True) -> None:
        super().__init__(f"{why}; try again later" if may_pass else why)
        self.may_pass, self.answered = may_pass, answered


def _patiently(once: Callable[[], T], tries: int = TRIES) -> T:
    return patiently(once, lambda error: isinstance(error, _FetchError) and error.may_pass, tries)


def _open(url: str, **headers: str) -> HTTPResponse:
    """An answer of status 200 or 206, redirects followed, but never from https to http."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")  # the variable of the Hub's own library
    if endpoint and url.startswith(f"{HUB}/"):
        url = endpoint + url.removeprefix(HUB)
    # Packed on the way, a file would have another size than its server says.
    request = Request(url, headers={"User-Agent": f"ttmbench/{__version__}", "Accept-Encoding": "identity", **headers})
    try:
        response: HTTPResponse = build_opener(HTTPCookieProcessor()).open(request, timeout=30)
    except (HTTPException, OSError) as error:
        hops = list(getattr(request, "redirect_dict", ()))  # which urllib fills; a query may sign an address
        where = url + (f" (redirected to {hops[-1].partition('?')[0]})" if hops else "")
        if not isinstance(error, HTTPError):
            why = f"{where} cannot be reached ({getattr(error, 'reason', None) or error})"
            raise _FetchError(why, may_pass=True, answered=False) from None
        error.close()
        why = f"{where} answers {error.code} ({error.reason}){_ADVICE.get(error.code, '')}"
        raise _FetchError(why, may_pass=error.code in _PASSING) from None
    if url.startswith("https:") and not response.url.startswith("https:"):
        response.close()
        raise OutOfReachError(f"{url} leads to {response.url}, which is not a safe address")
    return response


def _blocks(response: HTTPResponse, most: int, what: str, seconds: float | None = None) -> Iterator[bytes]:
    """The body in parts, as they come; DataError after ``most`` bytes."""
    begun, size = time.monotonic(), 0
    try:
        while block := response.read1(CHUNK):
            size += len(block)
            if size > most:
                raise DataError(f"{what} has more than {most} bytes; {raised_by('download_bytes')}")
            if seconds is not None and time.monotonic() - begun > seconds:
                why = f"{response.url} gave {size} bytes in {seconds:.0f} seconds, which is too slow"
                raise _FetchError(why, may_pass=True)
            yield block
    except (HTTPException, OSError) as error:
        why = f"the connection to {urlsplit(response.url).netloc} broke ({error or type(error).__name__})"
        raise _FetchError(why, may_pass=True) from None


def _open_file(url: str) -> tuple[str, HTTPResponse]:
    """The address of the file itself and its answer: Drive asks for confirmation before a large file."""
    is_drive = urlsplit(url).netloc in DRIVE
    url += "&export=download" if is_drive and "id=" in url and "export=" not in url else ""
    for is_confirmed in (False, True):
        response = _open(url)
        if response.headers.get_content_type() != "text/html" or (url.endswith((".html", ".htm")) and not is_confirmed):
            return url, response
        with response:
            if not is_drive:
                raise OutOfReachError(f"{url} gave a web page in place of the file; does it ask for a login?")
            page = response.read(CHUNK).decode("utf-8", "replace")
        if is_confirmed:
            break
        form = re.search(r'<form id="download-form" action="([^"]+)"', page)
        target = urljoin(response.url, html.unescape(form[1])) if form else ""
        if urlsplit(target).netloc not in DRIVE:
            words = html.unescape(" ".join(re.findall(r'class="uc-error-(?:sub)?caption">([^<]*)', page)))
            why = f"({words or 'it may ask for a login'}); open it in a browser, or try again later"
            raise OutOfReachError(f"{url} gave a page in place of the file {why}")
        fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))
        url = f"{target}?{urlencode({name: html.unescape(value) for name, value in fields.items()})}"
    raise OutOfReachError(f"{url} gives a page in place of the file again; try again later")


def fetch_file(origin: Origin, folder: Path, name: str) -> Path:
    """Fetches a file into a part in ``folder``, which a later call resumes if the server has the same version.

    OutOfReachError if the server cannot be reached, refuses, or stops in the middle again and again; DataError if the
    file is not what ``origin`` states.
    """

    def once() -> Path:
        url, response = _open_file(str(origin.url))
        total = _length(response)
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if origin.bytes is not None and total not in (None, origin.bytes):
            response.close()
            raise DataError(f"{name}: {url} has {total} bytes, but the task file says {origin.bytes}")
        digest = hashlib.sha256(f"{origin.url} {version} {total}".encode()).hexdigest()[:12]
        part = folder / f".{name}.{digest}.part"
        have = part.stat().st_size if version and total and part.is_file() else 0
        if have and have != total:
            response.close()
            response = _open(url, **{"Range": f"bytes={have}-", "If-Range": version})
            if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                have = 0
        most, mode = limit("download_bytes") if total is None else total, "ab" if have else "wb"
        bar = progress_bar(total, part.name, "bytes", initial=have, unit="B", unit_scale=True)
        with response, part.open(mode) as file, bar as shown:
            for block in _blocks(response, most, url) if have != total or not total else ():
                file.write(block)
                shown.update(len(block))
            have = file.tell()
        if total is not None and have != total:
            raise _FetchError(f"{url} ended after {have} of {total} bytes", may_pass=True)
        sha256 = origin.sha256 and file_digest(part)
        if sha256 != origin.sha256 or origin.bytes not in (None, have):
            part.unlink()
            stated = f"{origin.bytes} bytes" if sha256 == origin.sha256 else f"sha256 {origin.sha256}"
            raise DataError(
                f"{name}: {origin.url} has {have} bytes and sha256 {sha256}, but the task file says {stated}: it "
                "changed at its origin or on the way, so nothing is saved"
            )
        return part

    return _patiently(once)


def _length(response: HTTPResponse) -> int | None:
    text = response.headers.get("Content-Length") or ""
    return int(text) if text.isascii() and text.isdigit() else None


@contextmanager
def _writing(data_dir: Path, name: str) -> Iterator[None]:
    """Makes the folder of a path of the data folder, and locks the path; DataError if it cannot be written."""
    target = data_dir / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        (data_dir / LOCKS).mkdir(parents=True, exist_ok=True)
        with FileLock(data_dir / LOCKS / f"{name.replace('/', '__')}.lock"):
            yield
    except OSError as error:
        raise DataError(f"{target} cannot be written ({error.strerror or error})") from None


@dataclass(frozen=True)
class DataFile:
    """A file or folder of the data folder.

    One that exists is used as it is, unless the task file states size or digest. A link is the user's arrangement and
    is never replaced. ``lacking``, of a file of rows: which of its images are missing, and what to do.
    """

    data_dir: Path  # the data folder
    name: str  # path below it
    origin: Origin | None  # where it comes from, if the task file states it
    lacking: Callable[[], str | None] = lambda: None

    @property
    def need(self) -> DataNeed:
        """What a task needs."""
        origin = str(self.origin or "unknown")
        return DataNeed(self.name, origin, str(self.data_dir), self._missing, self._fetch, self._size)

    @property
    def target(self) -> Path:
        """The file or folder itself."""
        return below(self.data_dir, self.name, "source.get")

    def _missing(self) -> str | None:
        """Why it cannot be used: missing, not what is stated, or without some of its images."""
        return self._wrong() or self.lacking()

    def _wrong(self) -> str | None:
        target, stated = self.target, self.origin
        if not target.exists():
            return "it is not there"
        if target.is_dir():
            return None if next(target.iterdir(), None) else "the folder is empty"
        if stated is None or stated.unpack:  # size and digest are the archive's, not the file's
            return None
        if stated.bytes not in (None, size := target.stat().st_size):
            return f"it has {size} bytes in place of {stated.bytes}"
        if stated.sha256 is not None and file_digest(target) != stated.sha256:
            return "its sha256 is not that of the task file"
        return None

    def _size(self) -> int | None:
        """Bytes to fetch, from the task file or the server."""
        if self.origin is None or self.origin.url is None or self.origin.bytes is not None:
            return None if self.origin is None else self.origin.bytes
        try:
            with _open_file(self.origin.url)[1] as response:
                return _length(response)
        except TtmbenchError:
            return None

    def _fetch(self) -> str:
        """Fetches it, and unpacks it if it is an archive.

        OutOfReachError if it cannot be reached, has no address, or images in the user's own folder are missing;
        DataError if what came is wrong, or cannot be unpacked or written.
        """
        why, origin, target = self.lacking() if self._wrong() is None else None, self.origin, self.target
        if why is not None:
            raise OutOfReachError(f"{self.name}: {why}")
        if origin is None:
            raise OutOfReachError(
                f"the task file does not say where {self.name} comes from; put it into {self.data_dir}"
            )
        if origin.page is not None:
            raise OutOfReachError(f"{self.name} is fetched by hand: {origin.page}; put it at {target}")
        with _writing(self.data_dir, self.name):
            if self._missing() is None:  # another process was faster
                return "present"
            if target.is_symlink() or (target.is_dir() and not origin.unpack):
                raise DataError(f"{target} is a link or a folder, and {self._missing()}; move it away")
            part = fetch_file(origin, target.parent, target.name)
            detail = amount(part.stat().st_size)
            if not origin.unpack:
                part.replace(target)
            else:
                try:
                    detail += f", {unpack(part, target, origin.member)}"
                except DataError:
                    part.unlink()
                    raise
            for old in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
                old.unlink()
            return detail


@dataclass(frozen=True)
class ListedImages(DataFile):
    """A folder of images that are fetched one by one.

    Attributes:
        addresses: makes the name of each missing image -> its address.
        may_fail: many addresses are dead: lost images are recorded with the reason beside the folder, in
            ``<folder>.lost.jsonl``, and not asked for again. A folder without that record is the user's own, to which
            nothing is added.
    """

    addresses: Callable[[], Mapping[str, str]] = dict
    may_fail: bool = False

    @property
    def record(self) -> Path:
        """The record of images that could not be fetched."""
        return self.target.with_name(f"{self.target.name}.lost.jsonl")

    def _missing(self) -> str | None:
        """Which images are missing and not recorded as lost."""
        has_any = self.target.is_dir() and next(self.target.iterdir(), None) is not None
        if self.may_fail and has_any and not self.record.is_file():
            return None
        try:
            names = list(self._wanted())
        except TtmbenchError as error:
            return str(error)
        if names:
            return f"{count_of_images(names)} not there"
        return None if has_any else "no image could be fetched"

    def _wanted(self) -> dict[str, str]:
        lines = (line for _, line in read_json_lines(self.record)) if self.record.is_file() else ()
        lost = {(str(line.get("image")), str(line.get("address"))) for line in lines}
        return {name: url for name, url in self.addresses().items() if (name, url) not in lost}

    def _fetch(self) -> str:
        """Fetches every missing image, several at a time.

        OutOfReachError if no server answers, or an image is lost that may not be; DataError if one cannot be written.
        """
        folder, record = self.target, self.record
        wanted, sizes, lost = self._wanted(), list[int](), list[dict[str, str]]()
        answered = not wanted
        pool = ThreadPoolExecutor(AT_ONCE, initializer=quiet_thread)
        with _writing(self.data_dir, self.name), progress_bar(len(wanted), "fetching", "images") as shown:
            folder.mkdir(exist_ok=True)
            if self.may_fail:
                record.touch()
            try:
                tasks = {pool.submit(self._fetch_image, folder, *item): item for item in wanted.items()}
                for task in as_completed(tasks):
                    shown.update(1)
                    try:
                        sizes.append(task.result())
                        answered = True
                    except OutOfReachError as error:
                        name, url = tasks[task]
                        lost.append({"image": name, "address": url, "why": str(error)})
                        answered = answered or getattr(error, "answered", True)
                    if not answered and len(lost) == min(SILENT, len(wanted)):
                        break
            finally:
                pool.shutdown(cancel_futures=True)
                if self.may_fail and answered:
                    with record.open("a", encoding="utf-8") as file:
                        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lost)
        if lost and not (self.may_fail and answered):
            why = f"first {lost[0]['why']}" if answered else f"and no server answered: {lost[0]['why']}"
            raise OutOfReachError(f"{self.name}: {len(lost)} of {len(wanted)} images could not be fetched, {why}")
        why = f"; {len(lost)} could not be fetched: see {record.name} (empty it to ask again)" if lost else ""
        return f"{len(sizes)} images, {amount(sum(sizes))}{why}"

    def _fetch_image(self, folder: Path, name: str, url: str) -> int:
        target, url = inside(folder, name, self.name), quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]")
        try:
            Origin(url=url)
        except ValueError:
            raise _FetchError(f"{url} is not an http or https address", may_pass=False, answered=False) from None

        def once() -> bytes:
            with _open(url) as response:
                return b"".join(_blocks(response, limit("image_bytes"), name, SECONDS))

        content = _patiently(once, tries=2)
        try:
            as_rgb(open_image(io.BytesIO(content)))
        except Exception as error:  # whatever a decoder makes of what a stranger's server sends
            raise OutOfReachError(f"{url} gives no image ({error})") from None
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, lambda path: path.write_bytes(content), to_disk=False)
        return len(content)


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
        if _LITTER.search(relative.as_posix()) or not (member is None or relative.is_relative_to(member)):
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
    with tarfile.open(archive, tarinfo=_Header) as tar:
        for entry in tar:
            if not entry.isdir():
                yield entry.name, partial(tar.extractfile, entry)
        _check_end(tar)


class _Header(tarfile.TarInfo):
    """A header of a tar that is refused if its name or its extension would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """The header in a block; DataError if it announces too many bytes."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED and header.size > CHUNK:
            raise DataError(f"the archive has a header of {header.size} bytes, so it is refused")
        return header


def _check_end(tar: tarfile.TarFile) -> None:
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
