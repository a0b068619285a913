"""Damage to a tar that a reader may take for its end, and the ends that common writers make."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

DAMAGE = ("flipped bit", "cut at a border", "cut in a header", "zeroed header", "cut in the marker", "joined")


def damaged(whole: bytes, how: str, member: int) -> bytes:
    """A tar with a damaged header of one of its members, or cut off there; the offset is that of the header."""
    at = offset(whole, member)
    if how == "flipped bit":
        return whole[: at + 5] + bytes([whole[at + 5] ^ 4]) + whole[at + 6 :]
    if how == "zeroed header":
        return whole[:at] + bytes(512) + whole[at + 512 :]
    if how == "joined":
        return whole + whole
    return whole[: {"cut at a border": at, "cut in a header": at + 300}.get(how, end(whole) + 512)]


def offset(whole: bytes, member: int) -> int:
    """Where the header of a member begins."""
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        return tar.getmembers()[member].offset


def end(whole: bytes) -> int:
    """Where the marker of the end begins."""
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        tar.getmembers()
        return tar.offset


def end_as(path: Path, padding: int) -> None:
    """Gives a tar the shortest end that POSIX allows, with so many blocks of zeros more."""
    whole = path.read_bytes()
    path.write_bytes(whole[: end(whole)] + bytes(512 * (2 + padding)))
