"""A partial file, and what is known of it: enough to ask for the rest and for nothing else.

It is ``<name>.part``; ``<name>.part.json`` says of which version of which address.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path

from ttmbench._util.files import replace_file
from ttmbench._util.redact import scrub

RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", re.ASCII)


class TryAgain(Exception):
    """Something that may pass: why, how many seconds the server asks to wait, whether it answered at all, and was slow.

    What is slow counts as a failed attempt though something came.
    """

    def __init__(self, why: str, wait: float | None = None, unreachable: bool = False, slow: bool = False) -> None:
        super().__init__(why)
        self.wait, self.unreachable, self.slow = wait, unreachable, slow


@dataclass(frozen=True)
class PartialFile:
    """What is known of a partial file: address, where it is, version (ETag or date), whole size, bytes at hand."""

    url: str
    part: Path
    validator: str | None = None
    total: int | None = None
    have: int = 0

    @staticmethod
    def read(part: Path, url: str) -> PartialFile:
        """The state of a partial file; nothing at hand if it is of another address or cannot be told."""
        try:
            known = json.loads(_beside(part).read_text(encoding="utf-8"))
            have = part.stat().st_size
            if known["url"] == scrub(url) and have:
                return PartialFile(url, part, known["validator"], known["total"], have)
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return PartialFile(url, part)

    def write(self) -> None:
        """Writes it down beside the part."""
        text = json.dumps({"url": scrub(self.url), "validator": self.validator, "total": self.total})
        replace_file(_beside(self.part), lambda path: path.write_text(text, encoding="utf-8"), to_disk=False)

    def headers(self) -> dict[str, str]:
        """Asks for the rest, if the version is still the same; for the whole, if no version is known."""
        if not self.have or not self.validator:
            return {}
        return {"Range": f"bytes={self.have}-", "If-Range": self.validator}

    def span_of(self, response: HTTPResponse) -> tuple[int, int | None]:
        """Which part of the file an answer of status 200 or 206 has.

        Returns:
            Its first byte (0 if the server sends the whole file, again or anew), and how many bytes the whole file
            has; None if the server does not say.

        Raises:
            TryAgain: it is another part than was asked for, or one of another version; what is at hand is thrown away.
        """
        length = digits(response.headers.get("Content-Length"))
        if response.status == 200:
            return 0, length
        span = RANGE.fullmatch(response.headers.get("Content-Range", "")) if response.status == 206 else None
        wrong = "another part than was asked for"
        if span is not None and span[1] is not None and span[3] != "*":
            start, last, total = int(span[1]), int(span[2]), int(span[3])
            if start == self.have and start <= last < total and length in (None, last + 1 - start):
                if not start and last + 1 == total:
                    return 0, total
                if start and validator(response.headers) == self.validator and self.total in (None, total):
                    return start, total
                wrong = "a part of another version" if start else "a part where the whole was asked for"
        forget(self.part)
        raise TryAgain(f"{self.url} sent {wrong}", 0.0)


def forget(part: Path) -> None:
    """Removes a partial file and what is known of it."""
    part.unlink(missing_ok=True)
    _beside(part).unlink(missing_ok=True)


def _beside(part: Path) -> Path:
    """Where what is known of a partial file is written."""
    return part.with_name(f"{part.name}.json")


def validator(headers: HTTPMessage) -> str | None:
    """What If-Range takes: a strong ETag, else the date."""
    etag: str | None = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def digits(text: str | None) -> int | None:
    """A header's number; None if it is none."""
    return int(text) if text and text.isascii() and text.isdigit() else None
