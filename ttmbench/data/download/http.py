"""Downloads of single files: resumed where they stopped, retried, and checked as they come.

A file is written as ``<name>.part``; ``<name>.part.json`` records address and version. Both stay if interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, Request, build_opener

from ttmbench._util.console import progress_bar
from ttmbench._util.files import file_digest, replace_file
from ttmbench._util.limits import limit, raised_by
from ttmbench._version import __version__
from ttmbench.data.download.drive import confirmed, direct, is_drive
from ttmbench.data.paths import Origin
from ttmbench.errors import DataError, OutOfReachError

CHUNK = 1 << 20
HUB = "https://huggingface.co"
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", re.ASCII)
PAGE_BYTES = 1 << 20
_LEAST_FREE = 1 << 28  # bytes of the disk that a file of unknown size leaves
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_MOVED = "; it may have moved, so look for it at the dataset's own page"
_LOGIN = "; it may ask for a login or an agreement, so open it in a browser"
_ADVICE = {401: _LOGIN, 403: _LOGIN, 404: _MOVED, 410: _MOVED}
# Packed on the way, a file would have another size than its server says.
_HEADERS = {"User-Agent": f"ttmbench/{__version__}", "Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Got:
    """A whole file: where it came from, its size in bytes and its digest."""

    url: str
    bytes: int
    sha256: str


class NoAnswerError(OutOfReachError):
    """The server cannot be reached at all."""


class TryAgain(Exception):
    """A failure that may pass; ``wait``: seconds that the server asks for.

    A slow server counts as a failed attempt although something came.
    """

    def __init__(self, why: str, wait: float | None = None, unreachable: bool = False, slow: bool = False) -> None:
        super().__init__(why)
        self.wait, self.unreachable, self.slow = wait, unreachable, slow


@dataclass(frozen=True)
class PartialFile:
    """A partial file: address, path, version (ETag or date), size of the whole file, bytes at hand."""

    url: str
    part: Path
    validator: str | None = None
    total: int | None = None
    have: int = 0

    @staticmethod
    def read(part: Path, url: str) -> PartialFile:
        """The state of a partial file; nothing at hand if it is of another address or unknown."""
        try:
            known = json.loads(_beside(part).read_text(encoding="utf-8"))
            have = part.stat().st_size
            if known["url"] == url and have:
                return PartialFile(url, part, known["validator"], known["total"], have)
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return PartialFile(url, part)

    def write(self) -> None:
        """Writes the state beside the part."""
        text = json.dumps({"url": self.url, "validator": self.validator, "total": self.total})
        replace_file(_beside(self.part), lambda path: path.write_text(text, encoding="utf-8"), to_disk=False)

    def headers(self) -> dict[str, str]:
        """The headers that ask for the rest of the same version; none, for the whole, if no version is known."""
        if not self.have or not self.validator:
            return {}
        return {"Range": f"bytes={self.have}-", "If-Range": self.validator}

    def span_of(self, response: HTTPResponse) -> tuple[int, int | None]:
        """First byte of an answer of status 200 or 206 (0: the whole file), and size of the file if the server says.

        Raises:
            TryAgain: the answer is another part than asked for, or of another version; the part at hand is deleted.
        """
        length = _digits(response.headers.get("Content-Length"))
        if response.status == 200:
            return 0, length
        span = _RANGE.fullmatch(response.headers.get("Content-Range", "")) if response.status == 206 else None
        wrong = "another part than was asked for"
        if span is not None and span[1] is not None and span[3] != "*":
            start, last, total = int(span[1]), int(span[2]), int(span[3])
            if start == self.have and start <= last < total and length in (None, last + 1 - start):
                if not start and last + 1 == total:
                    return 0, total
                if start and _validator(response.headers) == self.validator and self.total in (None, total):
                    return start, total
                wrong = "a part of another version" if start else "a part where the whole was asked for"
        forget(self.part)
        raise TryAgain(f"{self.url} sent {wrong}", 0.0)


def forget(part: Path) -> None:
    """Removes a partial file and its state."""
    part.unlink(missing_ok=True)
    _beside(part).unlink(missing_ok=True)


def _beside(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _validator(headers: HTTPMessage) -> str | None:
    """The value for If-Range: a strong ETag, else the date."""
    etag: str | None = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _digits(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def on_endpoint(url: str) -> str:
    """The address of a file of the Hub on the server that the variable ``HF_ENDPOINT`` names; any other as it is.

    The Hub's own library takes its address from there, so that a mirror serves everything.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    return endpoint + url.removeprefix(HUB) if endpoint and url.startswith(f"{HUB}/") else url


class _SafeRedirects(HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https back to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The request that follows, or an error."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new == "http"):
            fp.close()
            raise OutOfReachError(f"{req.full_url} leads to {newurl}, which is not a safe address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _followed(request: Request, host: bool = False) -> str:
    """The address of a request, or its host, with that of the last redirect; without its query, which may sign it."""
    targets = list(getattr(request, "redirect_dict", {}))  # which urllib fills as it follows them
    last = urlsplit(targets[-1])._replace(query="", fragment="") if targets else None
    shown = urlsplit(request.full_url).netloc if host else request.full_url
    return shown if last is None else f"{shown} (redirected to {last.netloc if host else last.geturl()})"


@dataclass(frozen=True)
class Web:
    """How files are fetched."""

    tries: int = 5  # attempts in a row that bring nothing new before a file is given up
    pause: float = 1.0  # seconds before the second attempt; doubled each time
    longest_wait: float = 120.0  # a server that asks for more seconds than this is not waited for
    timeout: float = 30.0  # seconds without a byte
    patience: float = 60.0  # seconds in which at least ``least`` bytes have to come
    least: int = 60_000
    sleep: Callable[[float], None] = time.sleep
    most: int | None = None  # bytes that a file may have; None for the limits of this process
    shows: bool = True  # whether a bar is drawn for each file
    _opener: OpenerDirector = field(
        default_factory=lambda: build_opener(HTTPCookieProcessor(), _SafeRedirects()), repr=False
    )
    _down: set[str] = field(default_factory=set, repr=False)

    def size(self, url: str, timeout: float = 5.0) -> int | None:
        """Size of the file at an address, in bytes, from its server; None if unknown."""
        if is_drive(url):  # it answers with a page
            return None
        request = Request(on_endpoint(url), method="HEAD", headers=_HEADERS)
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return _digits(response.headers.get("Content-Length"))
        except (OSError, HTTPException, OutOfReachError) as error:
            if isinstance(error, HTTPError):
                error.close()
            return None

    def fetch(self, origin: Origin, part: Path, what: str) -> Got:
        """Fetches a file, or the rest of it, into ``part``; size and digest of the whole file.

        A part of the same version is continued. ``what`` names the file in messages and the progress bar.

        Raises:
            OutOfReachError: the server cannot be reached, refuses, or stops in the middle again and again.
            DataError: the file is not what ``origin`` states, or cannot be written.
        """
        try:
            got = self._patiently(origin, part, what)
        except OSError as error:
            raise DataError(f"{what} cannot be written to {part.parent} ({error.strerror or error})") from None
        if origin.sha256 is not None and got.sha256 != origin.sha256:
            forget(part)
            raise DataError(
                f"{what} from {origin.url} has sha256 {got.sha256}, but the task file says {origin.sha256}: it changed "
                "at its origin or on the way, so nothing is saved"
            )
        return got

    def _patiently(self, origin: Origin, part: Path, what: str) -> Got:
        failed, most = 0, -1
        host = urlsplit(str(origin.url)).netloc
        tries = 1 if host in self._down else self.tries  # patience with a server is shown once
        while True:
            try:
                return self._once(origin, part, what)
            except TryAgain as problem:
                have = part.stat().st_size if part.exists() else 0
                failed = 1 if have > most >= 0 and not problem.slow else failed + 1
                most = max(most, have)
                wait = self.pause * 2 ** (failed - 1) if problem.wait is None else problem.wait
                rest = f"; the {have} bytes received are saved, and the next attempt resumes there" if have else ""
                if wait > self.longest_wait:
                    asked = f"and the server asks to wait {wait:.0f} seconds; try again then"
                    raise OutOfReachError(f"{what}: {problem}, {asked}{rest}") from None
                if failed >= tries:
                    times = f", {failed} times" if failed > 1 else ""
                    if problem.unreachable:
                        self._down.add(host)
                    lost = NoAnswerError if problem.unreachable else OutOfReachError
                    raise lost(f"{what}: {problem}{times}; try again later{rest}") from None
                self.sleep(wait)

    def _once(self, origin: Origin, part: Path, what: str) -> Got:
        url = str(origin.url)
        state = PartialFile.read(part, url)
        with self._answer(direct(url) if is_drive(url) else on_endpoint(url), state) as response:
            if response is None:  # the part is the whole file: it was interrupted after its last byte
                return Got(url, state.have, file_digest(part))
            packed = response.headers.get("Content-Encoding", "identity")
            if packed.lower() != "identity" and not origin.unpack:
                raise OutOfReachError(f"{what}: {url} is sent packed ({packed}), which was not asked for")
            start, total = state.span_of(response)
            if origin.bytes is not None and total is not None and total != origin.bytes:
                raise DataError(f"{what}: {url} has {total} bytes, but the task file says {origin.bytes}")
            PartialFile(url, part, _validator(response.headers), total, start).write()
            if total is not None and total - start > shutil.disk_usage(part.parent).free:
                raise DataError(f"{what} needs {total - start} more bytes than are free in {part.parent}")
            return self._save(response, part, start, total, origin, what)

    @contextlib.contextmanager
    def _answer(self, url: str, state: PartialFile) -> Iterator[HTTPResponse | None]:
        """The answer that brings the file, or None if all of it is here; confirms Drive's question on the way."""
        # A page that asks is wanted whole, so Drive is asked for the rest of a file only where the file itself is.
        asks = is_drive(url) and state.have > 0
        for _ in range(4):
            with self._open(url, replace(state, have=0) if asks else state) as response:
                kind = "" if response is None else response.headers.get("Content-Type", "")
                is_page = kind.partition(";")[0].strip().lower() == "text/html"
                if response is None or not is_page or urlsplit(url).path.endswith((".html", ".htm")):
                    if not asks:
                        yield response
                        return
                elif not is_drive(response.geturl()):
                    raise OutOfReachError(f"{url} gave a web page in place of the file; does it ask for a login?")
                else:
                    url = confirmed(response.read(PAGE_BYTES).decode("utf-8", "replace"), response.geturl())
                asks = False
        raise OutOfReachError(f"{url} gives a page in place of the file again and again; try again later")

    @contextlib.contextmanager
    def _open(self, url: str, state: PartialFile) -> Iterator[HTTPResponse | None]:
        """An open answer, or None if all is here; TryAgain for failures that may pass."""
        request = Request(url, headers=_HEADERS | state.headers())
        try:
            response = self._opener.open(request, timeout=self.timeout)
        except HTTPError as error:
            with error:
                code, wait = error.code, _asked_to_wait(error.headers)
                whole = _RANGE.fullmatch(error.headers.get("Content-Range", ""))
            if code == 416 and whole and whole[3] == str(state.have) and state.total in (None, state.have):
                response = contextlib.nullcontext()
            elif code == 416:
                forget(state.part)
                raise TryAgain(f"{url} has no such rest", 0.0) from None
            elif code in _PASSING:
                raise TryAgain(f"{_followed(request)} answers {code} ({error.reason})", wait) from None
            else:
                why = f"answers {code} ({error.reason}){_ADVICE.get(code, '')}"
                raise OutOfReachError(f"{_followed(request)} {why}") from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise TryAgain(f"{_followed(request, host=True)} cannot be reached ({reason})", unreachable=True) from None
        with response as answer:
            yield answer

    def _save(
        self, response: HTTPResponse, part: Path, start: int, total: int | None, origin: Origin, what: str
    ) -> Got:
        url, wanted, size = str(origin.url), origin.bytes, start
        hashed = hashlib.sha256()
        if start:
            with part.open("rb") as file:
                while block := file.read(CHUNK):
                    hashed.update(block)
        since, arrived = time.monotonic(), 0
        drawn = {"initial": start, "unit": "B", "unit_scale": True, "disable": None if self.shows else True}
        with _opened(part, start > 0) as file, progress_bar(total, what, "bytes", **drawn) as shown:
            while block := _read(response, url):
                file.write(block)
                hashed.update(block)
                size += len(block)
                shown.update(len(block))
                if wanted is not None and size > wanted:
                    raise DataError(f"{what}: {url} gives more than the {wanted} bytes of the task file")
                if self.most is not None and size > self.most:
                    raise OutOfReachError(f"{what}: {url} gives more than {self.most} bytes")
                if total is None:
                    _check_room(size, part, what)
                arrived, waited = arrived + len(block), time.monotonic() - since
                if waited >= self.patience:
                    if arrived < self.least:
                        slow = f"{url} gave {arrived} bytes in {waited:.0f} seconds, which is too slow"
                        raise TryAgain(slow, slow=True)
                    since, arrived = time.monotonic(), 0
        if total is not None and size != total:
            raise TryAgain(f"{url} ended after {size} of {total} bytes")
        if wanted is not None and size != wanted:
            raise DataError(f"{what}: {url} has {size} bytes, but the task file says {wanted}")
        return Got(url, size, hashed.hexdigest())


def _check_room(size: int, part: Path, what: str) -> None:
    """Stops a body of unstated length at the limit, and before the disk is full."""
    if size > limit("download_bytes"):
        forget(part)
        raise DataError(f"{what} has more than {limit('download_bytes')} bytes; {raised_by('download_bytes')}")
    if shutil.disk_usage(part.parent).free < _LEAST_FREE:
        raise DataError(f"{what} leaves less than {_LEAST_FREE} bytes free in {part.parent}, and has no end in sight")


def _opened(part: Path, appends: bool) -> IO[bytes]:
    """Opens a part to write to; never follows a link, since its name can be foreseen."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else os.O_TRUNC)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(part, flags, 0o666), "ab" if appends else "wb")


def _read(response: HTTPResponse, url: str) -> bytes:
    """The bytes that have come by now: a server that trickles does not hold it up."""
    try:
        block: bytes = response.read1(CHUNK)
        return block
    except (HTTPException, OSError) as error:
        raise TryAgain(f"the connection to {urlsplit(url).netloc} broke ({error or type(error).__name__})") from None


def _asked_to_wait(headers: Message) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date."""
    text = (headers.get("Retry-After") or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
