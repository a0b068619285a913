"""A partial file, and what is known of it: enough to ask for the rest and for nothing else.

It is ``<name>.part``; ``<name>.part.json`` says of which version of which address.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench._util.files import replace_file
from ttmbench._util.redact import scrub

RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", re.ASCII)


class TryAgain(Exception):
    """Something that may pass: why, how many seconds the server asks to wait, whether it answered at all, and was slow.

    What is slow counts as a failed attempt though something came.
    """

    def __init__(self, why: str, wait: float | None = None, unreachable: bool = False, slow: bool = False) -> None:
        super().__init__(why)
        self.wait = wait
        self.unreachable = unreachable
        self.slow = slow


@dataclass(frozen=True)
class PartialFile:
    """What is known of a partial file: address, version (ETag or date), size of the whole, bytes at hand."""

    url: str
    validator: str | None = None
    total: int | None = None
    have: int = 0
    part: Path | None = None

    @staticmethod
    def read(part: Path, url: str) -> PartialFile:
        """The state of a partial file; nothing at hand if it is of another address or cannot be told."""
        try:
            known = json.loads(beside(part).read_text(encoding="utf-8"))
            have = part.stat().st_size
            if known["url"] == scrub(url) and have:
                return PartialFile(url, known["validator"], known["total"], have, part)
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return PartialFile(url, part=part)

    def write(self, part: Path) -> None:
        """Writes it down beside the part."""
        known = {"url": scrub(self.url), "validator": self.validator, "total": self.total}
        replace_file(beside(part), lambda path: path.write_text(json.dumps(known), encoding="utf-8"), to_disk=False)

    def headers(self) -> dict[str, str]:
        """Asks for the rest, if the version is still the same; for the whole, if no version is known."""
        if not self.have or not self.validator:
            return {}
        return {"Range": f"bytes={self.have}-", "If-Range": self.validator}

    def span_of(self, response: Any) -> tuple[int, int | None]:
        """Which part of the file an answer has.

        Args:
            response: the answer, of status 200 or 206.

        Returns:
            Its first byte (0 if the server sends the whole file, again or anew), and how many bytes the whole file
            has; None if the server does not say.

        Raises:
            TryAgain: it is another part than was asked for, or one of another version; what is at hand is thrown away.
        """
        rest = digits(response.headers.get("Content-Length"))
        if response.status == 200:
            return 0, rest
        found = RANGE.fullmatch(response.headers.get("Content-Range", "")) if response.status == 206 else None
        if found is None or found[1] is None or found[3] == "*":
            raise self._another("sent another part than was asked for")
        start, last, total = int(found[1]), int(found[2]), int(found[3])
        if start != self.have or not start <= last < total or rest not in (None, last + 1 - start):
            raise self._another("sent another part than was asked for")
        if not start:
            if last + 1 < total:
                raise self._another("sent a part where the whole was asked for")
            return 0, total
        if validator(response.headers) != self.validator or self.total not in (None, total):
            raise self._another("sent a part of another version")
        return start, total

    def _another(self, what: str) -> TryAgain:
        self.restart()
        return TryAgain(f"{self.url} {what}", 0.0)

    def restart(self) -> None:
        """Throws the part away."""
        if self.part is not None:
            forget(self.part)


def forget(part: Path) -> None:
    """Removes a partial file and what is known of it."""
    part.unlink(missing_ok=True)
    beside(part).unlink(missing_ok=True)


def beside(part: Path) -> Path:
    """Where what is known of a partial file is written."""
    return part.with_name(f"{part.name}.json")


def validator(headers: Any) -> str | None:
    """What If-Range takes: a strong ETag, else the date."""
    etag: str | None = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def digits(text: str | None) -> int | None:
    """A header's number; None if it is none."""
    return int(text) if text and text.isascii() and text.isdigit() else None
