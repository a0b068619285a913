"""One file from the web to disk: resumed where it stopped, tried again with patience, checked as it comes.

A file is written as ``<name>.part``, and ``<name>.part.json`` says of which version of which address. Both stay if the
download is interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, Request, build_opener

from ttmbench._util.files import file_digest
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.progress import progress_bar
from ttmbench._version import __version__
from ttmbench.data.download.drive import confirmed, direct, is_drive
from ttmbench.data.download.part import RANGE, PartialFile, TryAgain, digits, forget, validator
from ttmbench.data.origin import Origin
from ttmbench.errors import DataError, OutOfReachError

CHUNK = 1 << 20
PAGE_BYTES = 1 << 20
_LEAST_FREE = 1 << 28  # bytes of the disk that a file of unknown size leaves
_PASSING = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Got:
    """A whole file: where it came from, its size in bytes and its digest."""

    url: str
    bytes: int
    sha256: str


class NoAnswerError(OutOfReachError):
    """The server cannot be reached at all."""


class _AllHere(Exception):
    """The part is the whole file: it was interrupted after its last byte."""


class _SafeRedirects(HTTPRedirectHandler):
    """Follows to http and https only, and never from https back to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The request to follow with, or an error."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new == "http"):
            fp.close()
            raise OutOfReachError(f"{req.full_url} leads to {newurl}, which is no safe address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> OpenerDirector:
    return build_opener(HTTPCookieProcessor(), _SafeRedirects())


@dataclass(frozen=True)
class Web:
    """How files are fetched.

    Attributes:
        tries: attempts in a row that bring nothing new before a file is given up.
        pause: seconds before the second attempt; doubled each time.
        longest_wait: a server that asks for more seconds than this is not waited for.
        timeout: seconds without a byte.
        patience: seconds in which at least ``least`` bytes have to come.
        least: see there.
        sleep: waits so many seconds.
        most: bytes that a file may have; None for the limits of this process.
        shows: whether a bar is drawn for each file.
    """

    tries: int = 5
    pause: float = 1.0
    longest_wait: float = 120.0
    timeout: float = 30.0
    patience: float = 60.0
    least: int = 60_000
    sleep: Callable[[float], None] = time.sleep
    most: int | None = None
    shows: bool = True
    _opener: OpenerDirector = field(default_factory=_opener, repr=False)
    _down: set[str] = field(default_factory=set, repr=False)

    def size(self, url: str, timeout: float = 5.0) -> int | None:
        """Bytes that an address would give, as its server says; None if it does not say."""
        if is_drive(url):  # it answers with a page
            return None
        request = Request(url, method="HEAD", headers=_headers())
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return digits(response.headers.get("Content-Length"))
        except HTTPError as error:
            error.close()
            return None
        except (OSError, HTTPException, OutOfReachError):
            return None

    def fetch(self, origin: Origin, part: Path, what: str) -> Got:
        """Fetches a file, or the rest of it.

        Args:
            origin: its address, and size and digest if they are stated.
            part: where it is written; what is there already is continued, if it is of the same version.
            what: names the file, for messages and the progress bar.

        Returns:
            Size and digest of the whole file in ``part``.

        Raises:
            OutOfReachError: the server cannot be reached, refuses, or stops in the middle again and again.
            DataError: what came is not what ``origin`` says, or it cannot be written.
        """
        assert origin.url is not None, "a page is visited by a person"
        try:
            got = self._patiently(origin, part, what)
        except OSError as error:
            raise DataError(f"{what} cannot be written to {part.parent} ({error.strerror or error})") from None
        if origin.sha256 is not None and got.sha256 != origin.sha256:
            forget(part)
            raise DataError(
                f"{what} from {origin.url} has sha256 {got.sha256}, but the task file says {origin.sha256}: it changed "
                "at its origin or on the way, so nothing is kept"
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
                kept = f"; the {have} bytes that came are kept, and the next attempt goes on from there" if have else ""
                if wait > self.longest_wait:
                    asked = f"and the server asks to wait {wait:.0f} seconds; try again then"
                    raise OutOfReachError(f"{what}: {problem}, {asked}{kept}") from None
                if failed >= tries:
                    times = f", {failed} times" if failed > 1 else ""
                    if problem.unreachable:
                        self._down.add(host)
                    lost = NoAnswerError if problem.unreachable else OutOfReachError
                    raise lost(f"{what}: {problem}{times}; try again later{kept}") from None
                self.sleep(wait)

    def _once(self, origin: Origin, part: Path, what: str) -> Got:
        url = str(origin.url)
        state = PartialFile.read(part, url)
        address = direct(url) if is_drive(url) else url
        try:
            return self._rest(address, origin, part, what, state)
        except _AllHere:
            return Got(url, state.have, file_digest(part))

    def _rest(self, address: str, origin: Origin, part: Path, what: str, state: PartialFile) -> Got:
        url = state.url
        with self._answer(address, state) as response:
            packed = response.headers.get("Content-Encoding", "identity")
            if packed.lower() != "identity" and not origin.unpack:
                raise OutOfReachError(f"{what}: {url} is sent packed ({packed}), which was not asked for")
            start, total = state.span_of(response)
            if origin.bytes is not None and total is not None and total != origin.bytes:
                raise DataError(f"{what}: {url} has {total} bytes, but the task file says {origin.bytes}")
            PartialFile(url, validator(response.headers), total, start).write(part)
            if total is not None and total - start > shutil.disk_usage(part.parent).free:
                raise DataError(f"{what} needs {total - start} more bytes than are free in {part.parent}")
            return self._save(response, part, start, total, Got(url, origin.bytes or -1, ""), what)

    @contextlib.contextmanager
    def _answer(self, url: str, state: PartialFile) -> Iterator[Any]:
        """The answer that brings the file; Drive's question on the way is answered."""
        # A page that asks is wanted whole, so Drive is asked for the rest of a file only where the file itself is.
        asks = is_drive(url) and state.have > 0
        for _ in range(4):
            with self._open(url, PartialFile(url) if asks else state) as response:
                kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                if kind != "text/html" or urlsplit(url).path.endswith((".html", ".htm")):
                    if not asks:
                        yield response
                        return
                    asks = False
                    continue
                asks = False
                if not is_drive(response.url):
                    raise OutOfReachError(f"{url} gave a web page in place of the file; does it ask for a login?")
                url = confirmed(response.read(PAGE_BYTES).decode("utf-8", "replace"), response.url)
        raise OutOfReachError(f"{url} gives a page in place of the file again and again; try again later")

    @contextlib.contextmanager
    def _open(self, url: str, state: PartialFile) -> Iterator[Any]:
        """An open answer; what may pass is told apart from what will not."""
        try:
            response = self._opener.open(Request(url, headers=_headers() | state.headers()), timeout=self.timeout)
        except HTTPError as error:
            with error:
                code, wait = error.code, _asked_to_wait(error.headers)
                whole = RANGE.fullmatch(error.headers.get("Content-Range", ""))
            if code == 416:
                if whole and whole[3] == str(state.have) and state.total in (None, state.have):
                    raise _AllHere from None
                state.restart()
                raise TryAgain(f"{url} has no such rest", 0.0) from None
            if code in _PASSING:
                raise TryAgain(f"{url} answers {code} ({error.reason})", wait) from None
            raise OutOfReachError(f"{url} answers {code} ({error.reason}){_advice(code)}") from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise TryAgain(f"{urlsplit(url).netloc} cannot be reached ({reason})", unreachable=True) from None
        with response:
            yield response

    def _save(self, response: Any, part: Path, start: int, total: int | None, wanted: Got, what: str) -> Got:
        """Writes the answer to the part and checks that all of it came."""
        hashed = hashlib.sha256()
        if start:
            with part.open("rb") as file:
                while block := file.read(CHUNK):
                    hashed.update(block)
        size, pace = start, _Pace(self, wanted.url)
        drawn = {"initial": start, "unit": "B", "unit_scale": True, "disable": None if self.shows else True}
        shown = progress_bar(total, what, "bytes", **drawn)
        with _opened(part, start > 0) as file, shown:
            while block := _read(response, wanted.url):
                file.write(block)
                hashed.update(block)
                size += len(block)
                shown.update(len(block))
                if wanted.bytes >= 0 and size > wanted.bytes:
                    raise DataError(f"{what}: {wanted.url} gives more than the {wanted.bytes} bytes of the task file")
                if self.most is not None and size > self.most:
                    raise OutOfReachError(f"{what}: {wanted.url} gives more than {self.most} bytes")
                _check_room(size, total, part, what)
                pace.came(len(block))
        if total is not None and size != total:
            raise TryAgain(f"{wanted.url} ended after {size} of {total} bytes")
        if wanted.bytes >= 0 and size != wanted.bytes:
            raise DataError(f"{what}: {wanted.url} has {size} bytes, but the task file says {wanted.bytes}")
        return Got(wanted.url, size, hashed.hexdigest())


@dataclass
class _Pace:
    """Whether bytes come fast enough."""

    web: Web
    url: str
    since: float = field(default_factory=time.monotonic)
    bytes: int = 0

    def came(self, more: int) -> None:
        self.bytes += more
        waited = time.monotonic() - self.since
        if waited < self.web.patience:
            return
        if self.bytes < self.web.least:
            raise TryAgain(f"{self.url} gave {self.bytes} bytes in {waited:.0f} seconds, which is too slow", slow=True)
        self.since, self.bytes = time.monotonic(), 0


def _check_room(size: int, total: int | None, part: Path, what: str) -> None:
    """A body of unstated length has an end: the limit, and the disk's."""
    if total is not None:
        return
    if size > limit("download_bytes"):
        forget(part)
        raise DataError(f"{what} goes on beyond {limit('download_bytes')} bytes; {raised_by('download_bytes')}")
    if shutil.disk_usage(part.parent).free < _LEAST_FREE:
        raise DataError(f"{what} leaves less than {_LEAST_FREE} bytes free in {part.parent}, and has no end in sight")


def _opened(part: Path, appends: bool) -> IO[bytes]:
    """A part to write to; its name can be foreseen, so nothing that a link of that name leads to."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else os.O_TRUNC)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(part, flags, 0o666), "ab" if appends else "wb")


def _read(response: Any, url: str) -> bytes:
    """What has come by now: a server that trickles does not hold it up."""
    try:
        block: bytes = response.read1(CHUNK)
        return block
    except (HTTPException, OSError) as error:
        raise TryAgain(f"the connection to {urlsplit(url).netloc} broke ({error or type(error).__name__})") from None


def _headers() -> dict[str, str]:
    # Packed on the way, a file would have another size than its server says.
    return {"User-Agent": f"ttmbench/{__version__}", "Accept-Encoding": "identity"}


def _asked_to_wait(headers: Any) -> float | None:
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


def _advice(code: int) -> str:
    if code in (401, 403):
        return "; it may ask for a login or an agreement, so open it in a browser"
    return "; it may have moved, so look for it at the dataset's own page" if code in (404, 410) else ""
