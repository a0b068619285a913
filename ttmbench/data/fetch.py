"""Files and images of the data folder: fetched from the web, resumed, checked and unpacked."""

from __future__ import annotations

import glob
import hashlib
import html
import io
import json
import math
import os
import re
import shutil
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

from filelock import FileLock

from ttmbench._util.console import progress_bar
from ttmbench._util.file_io import file_digest, limit, raised_by, read_json_lines, write_atomically
from ttmbench._util.images import as_rgb, open_image
from ttmbench._util.third_party import PASSING, patiently
from ttmbench._version import __version__
from ttmbench.data.availability import DataNeed, amount, count_of_images
from ttmbench.data.paths import Origin, below, inside
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError

CHUNK = 1 << 20
SILENT = 20  # images in a row without an answer before the network is taken to be down
SECONDS = 60.0  # in which an image has to come
DRIVE = ("drive.google.com", "drive.usercontent.google.com", "docs.google.com")
_LITTER = re.compile(r"(^|/)(__MACOSX(/|$)|\._[^/]*$|\.DS_Store$)")


class _FetchError(OutOfReachError):
    """A failed request: whether it may pass, and whether any server answered."""

    def __init__(self, why: str, *, may_pass: bool, answered: bool = True) -> None:
        super().__init__(f"{why}; try again later" if may_pass else why)
        self.may_pass, self.answered = may_pass, answered


def _open(url: str, **headers: str) -> HTTPResponse:
    """An answer of status 200 or 206, redirects followed, but never from https to http."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")  # the variable of the Hub's own library
    if endpoint and url.startswith("https://huggingface.co/"):
        url = endpoint + url.removeprefix("https://huggingface.co")
    # Packed on the way, a file would have another size than its server says.
    request = Request(url, headers={"User-Agent": f"ttmbench/{__version__}", "Accept-Encoding": "identity", **headers})
    try:
        response: HTTPResponse = build_opener(HTTPCookieProcessor()).open(request, timeout=30)
    except HTTPError as error:
        error.close()
        where = url if error.url == url else f"{url} (redirected to {error.url.partition('?')[0]})"  # a query may sign
        advice = (
            "; it may ask for a login or have moved, so open it in a browser"
            if error.code in (401, 403, 404, 410)
            else ""
        )
        passing = error.code in (408, 425, *PASSING)
        raise _FetchError(f"{where} answers {error.code} ({error.reason}){advice}", may_pass=passing) from None
    except (HTTPException, OSError) as error:
        why = f"{url} cannot be reached ({getattr(error, 'reason', None) or error})"
        raise _FetchError(why, may_pass=True, answered=False) from None
    if url.startswith("https:") and not response.url.startswith("https:"):
        response.close()
        raise OutOfReachError(f"{url} leads to {response.url}, which is not a safe address")
    return response


def _blocks(response: HTTPResponse, most: int, seconds: float = math.inf) -> Iterator[bytes]:
    """The body in parts, as they come; DataError after ``most`` bytes."""
    begun, size = time.monotonic(), 0
    try:
        while block := response.read1(CHUNK):
            size += len(block)
            if size > most:
                raise DataError(f"{response.url} has more than {most} bytes; {raised_by('download_bytes')}")
            if time.monotonic() - begun > seconds:
                raise _FetchError(f"{response.url} gives {size} bytes in {seconds:.0f} s: too slow", may_pass=True)
            yield block
    except (HTTPException, OSError) as error:
        raise _FetchError(f"{response.url} broke off ({error or type(error).__name__})", may_pass=True) from None


def _open_file(url: str) -> tuple[str, HTTPResponse]:
    """The address of the file itself and its answer: Drive asks for confirmation before a large file."""
    is_drive, page = urlsplit(url).netloc in DRIVE, ""
    url += "&export=download" if is_drive and "id=" in url and "export=" not in url else ""
    response = _open(url)
    if is_drive and response.headers.get_content_type() == "text/html":
        with response:
            page = response.read(CHUNK).decode("utf-8", "replace")
        form = re.search(r'<form id="download-form" action="([^"]+)"', page)
        target = urljoin(response.url, html.unescape(form[1])) if form else ""
        if urlsplit(target).netloc in DRIVE:
            fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))
            url = f"{target}?{urlencode({name: html.unescape(value) for name, value in fields.items()})}"
            response = _open(url)
    if response.headers.get_content_type() == "text/html" and not url.endswith((".html", ".htm")):
        response.close()
        words = html.unescape(" ".join(re.findall(r'class="uc-error-(?:sub)?caption">([^<]*)', page)))
        raise OutOfReachError(f"{url} gave a web page in place of the file ({words or 'does it ask for a login?'})")
    return url, response


def _fetch_file(origin: Origin, folder: Path, name: str) -> Path:
    """Fetches a file into a part in ``folder``, which a later call resumes if the server has the same version."""

    def once() -> Path:
        url, response = _open_file(str(origin.url))
        total, version = response.length, response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        digest = hashlib.sha256(f"{origin.url} {version} {total}".encode()).hexdigest()[:12]
        part = folder / f".{name}.{digest}.part"
        if origin.bytes is not None and total not in (None, origin.bytes):
            what = f"{name}: {origin.url} has {total} bytes, but the task file says {origin.bytes} bytes"
            raise DataError(f"{what}: it changed at its origin, so nothing is downloaded")
        have = part.stat().st_size if version and total and part.is_file() else 0
        if 0 < have != total:
            response.close()
            response = _open(url, **{"Range": f"bytes={have}-", "If-Range": version})
            if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                have = 0
        bar = progress_bar(total, part.name, "bytes", initial=have, unit="B", unit_scale=True)
        with response, part.open("ab" if have else "wb") as file, bar as shown:
            for block in () if 0 < have == total else _blocks(response, total or limit("download_bytes")):
                file.write(block)
                shown.update(len(block))
            have = file.tell()
        if total is not None and have != total:
            raise _FetchError(f"{url} ended after {have} of {total} bytes", may_pass=True)
        sha256 = origin.sha256 and file_digest(part)
        if sha256 != origin.sha256 or origin.bytes not in (None, have):
            part.unlink()
            stated = f"{origin.bytes} bytes" if sha256 == origin.sha256 else f"sha256 {origin.sha256}"
            what = f"{name}: {origin.url} has {have} bytes and sha256 {sha256}, but the task file says {stated}"
            raise DataError(f"{what}: it changed at its origin or on the way, so nothing is saved")
        return part

    return patiently(once, lambda error: isinstance(error, _FetchError) and error.may_pass)


@contextmanager
def _writing(data_dir: Path, name: str) -> Iterator[None]:
    """Makes the folder of a path of the data folder, and locks the path; DataError if it cannot be written."""
    lock = data_dir / ".locks" / f"{name.replace('/', '__')}.lock"
    try:
        for path in (data_dir / name, lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            yield
    except OSError as error:
        raise DataError(f"{data_dir / name} cannot be written ({error.strerror or error})") from None


def data_file(
    data_dir: Path, name: str, origin: Origin | None, lacking: Callable[[], str | None] = lambda: None
) -> DataNeed:
    """A file or folder of the data folder, which is used as it is unless the task file states size or digest.

    A link is the user's and never replaced. ``lacking``: which images of a file of rows are missing, and what to do.
    """
    target = below(data_dir, name, "source.get")

    def missing() -> str | None:
        return _wrong(target, origin) or lacking()

    def fetch() -> str:
        if _wrong(target, origin) is None and (why := lacking()) is not None:
            raise OutOfReachError(f"{name}: {why}")
        if origin is None or origin.page is not None:
            why = f"has to be downloaded manually: {origin.page}" if origin else "has no address in the task file"
            raise OutOfReachError(f"{name} {why}; put it at {target}")
        with _writing(data_dir, name):
            if (why := missing()) is None:  # another process was faster
                return "present"
            if target.is_symlink() or (target.is_dir() and not origin.unpack):
                raise DataError(f"{target} is a link or a folder, and {why}; move it away")
            part = _fetch_file(origin, target.parent, target.name)
            detail = amount(part.stat().st_size)
            if origin.unpack:
                detail += f", {_unpack(part, target, origin.member)}"
            else:
                part.replace(target)
            for old in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
                old.unlink()
            return detail

    return DataNeed(name, str(origin or "unknown"), str(data_dir), missing, fetch, partial(_size, origin))


def _wrong(target: Path, stated: Origin | None) -> str | None:
    """Why a file or folder is not what the task file says."""
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


def _size(origin: Origin | None) -> int | None:
    """Bytes to fetch, from the task file or the server."""
    if origin is None or origin.url is None or origin.bytes is not None:
        return None if origin is None else origin.bytes
    try:
        with _open_file(origin.url)[1] as response:
            return response.length
    except TtmbenchError:
        return None


def listed_images(
    data_dir: Path, name: str, origin: Origin, addresses: Callable[[], Mapping[str, str]], may_fail: bool
) -> DataNeed:
    """A folder of images that are fetched one by one; ``addresses`` makes the name of each missing one -> its address.

    ``may_fail``: lost images are recorded in ``<folder>.lost.jsonl``; a folder without it is the user's own.
    """
    folder = below(data_dir, name, "source.get")
    record = folder.with_name(f"{folder.name}.lost.jsonl")

    def wanted() -> dict[str, str]:
        lines = (line for _, line in read_json_lines(record)) if record.is_file() else ()
        lost = {(str(line.get("image")), str(line.get("address"))) for line in lines}
        return {image: url for image, url in addresses().items() if (image, url) not in lost}

    def missing() -> str | None:
        has_any = folder.is_dir() and next(folder.iterdir(), None) is not None
        if may_fail and has_any and not record.is_file():
            return None
        try:
            names = list(wanted())
        except TtmbenchError as error:
            return str(error)
        if names:
            return f"{count_of_images(names)} not there"
        return None if has_any else "no image could be fetched"

    def fetch() -> str:
        with _writing(data_dir, name):
            folder.mkdir(exist_ok=True)
            if may_fail:
                record.touch()  # before the first image: a download that is killed is resumed
            return _fetch_images(wanted(), folder, record if may_fail else None)

    return DataNeed(name, str(origin), str(data_dir), missing, fetch)


def _fetch_images(wanted: Mapping[str, str], folder: Path, record: Path | None) -> str:
    """Fetches images, several at a time; OutOfReachError if no server answers, or one is lost without a record."""
    sizes, lost, answered = list[int](), list[dict[str, str]](), not wanted
    pool = ThreadPoolExecutor(8)
    with progress_bar(len(wanted), "fetching", "images") as shown:
        try:
            tasks = {pool.submit(_fetch_image, folder, *item): item for item in wanted.items()}
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
            if record is not None and answered:
                with record.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lost)
    if lost and (record is None or not answered):
        why = f"first {lost[0]['why']}" if answered else f"and no server answered: {lost[0]['why']}"
        raise OutOfReachError(f"{folder.name}: {len(lost)} of {len(wanted)} images could not be fetched, {why}")
    why = f"; {len(lost)} could not be fetched: see {record.name} (empty it to ask again)" if record and lost else ""
    return f"{len(sizes)} images, {amount(sum(sizes))}{why}"


def _fetch_image(folder: Path, name: str, url: str) -> int:
    target, url = inside(folder, name, folder.name), quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]")
    try:
        Origin(url=url)
    except ValueError:
        raise _FetchError(f"{url} is not an http or https address", may_pass=False, answered=False) from None

    def once() -> bytes:
        with _open(url) as response:
            return b"".join(_blocks(response, limit("image_bytes"), SECONDS))

    content = patiently(once, lambda error: isinstance(error, _FetchError) and error.may_pass, tries=2)
    try:
        as_rgb(open_image(io.BytesIO(content)))
    except Exception as error:  # whatever a decoder makes of what a stranger's server sends
        raise OutOfReachError(f"{url} gives no image ({error})") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, lambda path: path.write_bytes(content), to_disk=False)
    return len(content)


def _unpack(archive: Path, target: Path, member: str | None = None) -> str:
    """Unpacks a zip or tar in place of a file or folder; what was unpacked as text. One process at a time.

    ``member`` is the file or folder that becomes the target; without it everything, less the folders that hold it all.
    An archive that is broken, unsafe or too large, or does not have the member, is removed; the target stays as it was.
    """
    new, what = target.parent.resolve() / f".{target.name}.unpacking", f"archive of {target.name}"
    packed, files, size = archive.stat().st_size, 0, 0
    most = min(limit("archive_bytes"), max(limit("archive_free"), limit("archive_ratio") * packed))
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    try:
        for number, (name, opened) in enumerate(_members(archive)):
            if number >= limit("archive_files"):
                raise DataError(f"{what} has more than {limit('archive_files')} files; {raised_by('archive_files')}")
            path = inside(new, name, what)
            relative = path.relative_to(new)
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
        root = new / (member or "")
        while member is None and len(inner := list(root.iterdir())) == 1 and inner[0].is_dir():
            root = inner[0]
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        root.rename(target)
    except Exception as error:  # readers of archives raise many kinds of damaged ones
        if isinstance(error, OSError) and error.errno is not None:  # bz2 and gzip raise it of damaged files without
            raise DataError(f"{what} cannot be unpacked to {target} ({error.strerror or error})") from None
        archive.unlink()  # so that it is fetched anew
        if isinstance(error, TtmbenchError):
            raise
        raise DataError(f"{what} is damaged or of an unknown kind ({error}); download it again") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return f"unpacked to {files} files of {amount(size)}"


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None]]]:
    """Name of each member but folders, and what opens it: None for a device, and for a link unless to a member.

    tarfile takes a damaged or missing header for the end of the archive, which is two blocks of zeros or more.
    """
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
        stream = tar.fileobj
        assert stream is not None, "it is open"
        stream.seek(tar.offset)
        rest = stream.read(16 << 20)  # no tar has more zeros at its end
        if len(rest) < 2 * tarfile.BLOCKSIZE or rest.strip(b"\0") or stream.read(1):
            raise tarfile.ReadError(f"expected a file header or the end at byte {tar.offset}, found neither")


class _Header(tarfile.TarInfo):
    """A header of a tar that is refused if its name or its extension would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """The header in a block; DataError if it announces too many bytes."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in (b"x", b"g", b"L", b"K") and header.size > CHUNK:
            raise DataError(f"the archive has a header of {header.size} bytes, so it is refused")
        return header
