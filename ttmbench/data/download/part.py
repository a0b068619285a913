"""A partial file, and what is known of it: enough to ask for the rest and for nothing else.

It is ``<name>.part``; ``<name>.part.json`` says of which version of which address.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class TryAgain(Exception):
    """Something that may pass: why, how many seconds the server asks to wait, and whether it answered at all."""

    def __init__(self, why: str, wait: float | None = None, unreachable: bool = False) -> None:
        super().__init__(why)
        self.wait = wait
        self.unreachable = unreachable


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
            if known["url"] == url and have:
                return PartialFile(url, known["validator"], known["total"], have, part)
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return PartialFile(url, part=part)

    def write(self, part: Path) -> None:
        """Writes it down beside the part."""
        known = {"url": self.url, "validator": self.validator, "total": self.total}
        beside(part).write_text(json.dumps(known), encoding="utf-8")

    def headers(self) -> dict[str, str]:
        """Asks for the rest, if the version is still the same."""
        if not self.have:
            return {}
        return {"Range": f"bytes={self.have}-"} | ({"If-Range": self.validator} if self.validator else {})

    def where_it_starts(self, response: Any) -> int:
        """First byte of the answer: 0 if the server sends the whole file, again or anew."""
        if response.status != 206:
            return 0
        found = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        fits = found and found[1] == str(self.have) and (self.total is None or found[2] == str(self.total))
        if not fits:
            self.restart()
            raise TryAgain(f"{self.url} sent another part than was asked for", 0.0)
        return self.have

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
