"""Rows of JSON, JSON lines, CSV and TSV files, with errors that name file and row."""

from __future__ import annotations

import ast
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util import file_io
from ttmbench._util.console import one_line
from ttmbench._util.file_io import check_no_pointer, limit, read_json_lines
from ttmbench.data.rows import Row
from ttmbench.errors import DataError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def read_rows(
    file: Path, fields: Sequence[str] = (), nested: bool = False, levels: Sequence[str] = ()
) -> Iterator[Row]:
    """The rows of a file, in order.

    ``.csv`` and ``.tsv`` have a header. ``.json`` is a list of rows, or an object whose values are rows and whose keys
    name them. ``.pt`` is what ``torch.save`` wrote of a mapping of lists. Anything else is JSON lines.

    ``fields``: names of the cells, where rows are JSON lists instead of objects. ``nested``: the items of lists are
    rows, and objects around them are levels: ``{"v1": {"s2": [row]}}`` has the row ``v1/s2/0``. ``levels``: names of
    the cells, where keys of objects are data: with ``[folder, number, caption]``, the object ``{"a": {"5": "a dog"}}``
    has the row ``a/5`` of folder a, number 5 and a caption. DataError if the file or a row is not what it should be.
    """
    name = str(file)
    _refuse_parquet(file, name)
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        yield from csv_rows(read_text(file, name), name, tabs=suffix == ".tsv")
    elif suffix == ".json":
        value = read_json(file, name)
        yield from _json(dict(_leaves(value, levels, (), name)) if nested or levels else value, fields, name)
    elif suffix == ".pt":
        yield from _of_lists(file, name)
    else:
        for index, (_, cells) in enumerate(read_json_lines(file)):
            yield Row(str(index), cells, index, name)


def joined(
    rows: Iterable[Row], others: Mapping[str, tuple[Path, Sequence[str]]], fields: Sequence[str]
) -> Iterator[Row]:
    """Rows joined with those of other files by position; the cells of each other file are a mapping under its name.

    ``others``: name -> a file with as many rows, and the columns that must agree. DataError if a file cannot be read
    or has another number of rows, or a column does not agree; the row is named.
    """
    beside = {name: read_rows(file, fields) for name, (file, _) in others.items()}
    for row in rows:
        cells = dict(row.cells)
        for name, other_rows in beside.items():
            file, same = others[name]
            other = next(other_rows, None)
            if other is None:
                raise DataError(f"{file}: has no row {row.index}, and '{name}' must have one for every row")
            for column in same:
                here, there = row.cell(column), other.cell(column)
                if here != there:
                    raise DataError(
                        f"{file}: '{column}' of row {row.index} is {there!r:.80}, and {here!r:.80} in the row that it "
                        "should stand beside"
                    )
            cells[name] = other.cells
        yield replace(row, cells=cells)
    for name, other_rows in beside.items():
        if next(other_rows, None) is not None:
            raise DataError(f"{others[name][0]}: has more rows than the file that '{name}' joins")


def listed(row: Row, column: str) -> object:
    """The list in a cell, also if it is written as a text; DataError if the text is not a list."""
    value, where = row.cell(column), f"{row.where}: '{column}' of row {row.index}"
    if not isinstance(value, str):
        return value
    if len(value) > limit("caption_characters"):
        raise DataError(f"{where} has {len(value)} characters, too many for a list")
    try:
        items = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        items = None
    if not isinstance(items, list | tuple):
        raise DataError(f"{where} is {value!r:.80}, which is not a list")
    return list(items)


def read_text(file: Traversable, name: str) -> str:
    """A file's text without a byte-order mark; DataError if it cannot be read or is not UTF-8."""
    try:
        return file_io.read_text(file)
    except file_io.Unreadable as error:
        raise DataError(f"{name}: {error}") from None


def read_json(file: Path, name: str) -> object:
    """A file's JSON value; DataError if it cannot be read or is not JSON."""
    try:
        return file_io.parse_json(read_text(file, name))
    except file_io.Unreadable as error:
        raise DataError(f"{name}: {error}; JSON lines go into a file that ends in .jsonl") from None


def csv_rows(text: str, name: str, tabs: bool = False) -> Iterator[Row]:
    """The rows of a CSV or TSV table with a header.

    In TSV, a cell that begins with a quote must be quoted as a whole, or it would swallow what follows. DataError
    if a row has another number of cells than the header, or a column is named twice.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ",", strict=tabs)
    try:
        names = list(reader.fieldnames or ())
        doubled = next((column for column in names if names.count(column) > 1), None)
        if doubled is not None:
            raise DataError(f"{name}: the header names column {doubled!r:.80} twice")
        for index, cells in enumerate(reader):
            if None in cells or None in cells.values():
                raise DataError(f"{name}: row {index} (line {reader.line_num}) has not as many cells as the header")
            yield Row(str(index), cells, index, name)
    except csv.Error as error:
        why = str(error).replace("\t", "\\t")
        why = f"TSV ({why}); quote a cell that begins with a quote, and double its quotes" if tabs else f"CSV ({why})"
        raise DataError(f"{name}: line {reader.reader.line_num} is not {why}") from None


def _of_lists(file: Path, name: str) -> Iterator[Row]:
    """Rows of the longest lists of a mapping; a pickle that would do more than build plain values is refused."""
    import torch

    check_no_pointer(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds {one_line(asked[1], 80)}" if asked else "it is damaged or holds objects of other kinds"
        raise DataError(f"{name}: {why}, and only plain values and tensors are read from a pickle") from error
    lists = (
        {key: items for key, items in content.items() if isinstance(items, list)} if isinstance(content, dict) else {}
    )
    rows = max(map(len, lists.values()), default=0)
    if not rows:
        raise DataError(f"{name}: must hold a mapping of names to lists, one item a row; it holds no such list")
    for index in range(rows):
        yield Row(str(index), {key: items[index] for key, items in lists.items() if len(items) == rows}, index, name)


def _refuse_parquet(file: Path, name: str) -> None:
    """DataError for a parquet file, which another kind of source reads."""
    magic = b""
    if file.is_file():
        with suppress(OSError), file.open("rb") as opened:  # its reader reports the error
            magic = opened.read(4)
    if magic == b"PAR1":
        raise DataError(
            f"{name}: is a parquet file; rows are read from JSON lines, JSON or CSV here. Use `source: {{kind: "
            "huggingface, path: FOLDER, split: NAME}`, where FOLDER holds the file and its name begins with that of "
            "the split (test-00000-of-00001.parquet)"
        )


def _leaves(value: object, levels: Sequence[str], keys: tuple[str, ...], name: str) -> Iterator[tuple[str, object]]:
    """Every item of every list, or what lies at the last of the levels, with the keys that lead to it."""
    if levels and len(keys) == len(levels) - 1:
        yield "/".join(keys), dict(zip(levels, (*keys, value), strict=True))
    elif isinstance(value, list) and not levels:
        yield from (("/".join((*keys, str(index))), row) for index, row in enumerate(value))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, levels, (*keys, key), name)
    else:
        raise DataError(
            f"{name}: {'/'.join(keys) or 'it'} holds {type(value).__name__}, "
            + (f"not an object with a key for '{levels[len(keys)]}'" if levels else "neither a list nor an object")
        )


def _json(value: object, fields: Sequence[str], name: str) -> Iterator[Row]:
    if not isinstance(value, dict | list):
        raise DataError(f"{name}: expected a list or an object of rows, got {type(value).__name__}")
    for index, (key, row) in enumerate(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(row, list) and fields:
            if len(row) != len(fields):
                known = f"{len(fields)} are named: {', '.join(fields)}"
                raise DataError(f"{name}: row {key} has {len(row)} cells, but {known}")
            row = dict(zip(fields, row, strict=True))
        if not isinstance(row, dict):
            raise DataError(f"{name}: row {key} is {type(row).__name__}, not an object with named cells")
        yield Row(str(key), row, index, name)
