"""JSON lines, read with errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ttmbench.errors import DataError


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a file of JSON lines with their line numbers, from 1; empty lines are passed over.

    Only a line feed ends a line: JSON strings may hold U+2028 and other characters that end lines elsewhere.

    Args:
        path: the file.

    Yields:
        Line number and object.

    Raises:
        DataError: the file cannot be read, is not UTF-8 text, or a line is no JSON object.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}: line {number} is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        yield number, value
