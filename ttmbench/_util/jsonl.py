"""JSON lines, read with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ttmbench._util.text import Unreadable, parse_json, text_lines
from ttmbench.errors import DataError


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a file of JSON lines with their line numbers, from 1; empty lines are passed over.

    Only a line feed ends a line: JSON strings may hold U+2028 and other characters that end lines elsewhere.

    Numbers may be NaN or infinite: who takes them says which one it is.

    Args:
        path: the file.

    Yields:
        Line number and object.

    Raises:
        DataError: the file cannot be read, is not UTF-8 text, or a line is too long or no JSON object.
    """
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line, finite=False)
        except Unreadable as error:
            raise DataError(f"{path}: line {number} {error}") from None
        if not isinstance(value, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        yield number, value


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from text_lines(path)
    except Unreadable as error:
        raise DataError(f"{path}: {error}") from None
