"""Tables of single groups that others publish, a row a group: from CSV, TSV, JSON, JSON lines, or arrays.

A JSON document is a list of rows, an object of rows by id, an object of columns, or nested lists. Names of columns are
in lower case, with an underscore for spaces, hyphens and dots.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.text import Unreadable, parse_json, read_json, read_json_lines, read_text, text_lines
from ttmbench.errors import DataError
from ttmbench.types import GroupShape

Row = dict[str, Any]
"""Column -> value: of a CSV, a text."""
SCORES = "scores"  # the column of a row's scores, [images][captions]
CORRECT = "correct"  # the column of files that have one value a group, and no name for it
EXPECTED = (
    "expected a row a group: scores as c0_i0, c0_i1, ...; questions as text_score_i0, image_score_c0, ...; or "
    "true/false (1/0) as text_score, image_score, group_score, or as 'correct' if groups have one image or one caption"
)
_TRUE, _FALSE = ("true", "1", "1.0", "yes", "correct"), ("false", "0", "0.0", "no", "incorrect")
_SEPARATORS = re.compile(r"[\s.\-]+")
_SCORE_LINES = ({"label", "score"}, {"group_id", "scores"})


@dataclass(frozen=True)
class SampleTable:
    """Rows of groups, and what a reader should know of how they were read."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def read_sample_table(path: Path, shape: GroupShape | None) -> SampleTable | None:
    """The rows of a text file; None for JSON lines of scores, and for what is neither CSV nor JSON.

    DataError for a CSV or JSON file that has no rows of groups.
    """
    try:
        if path.suffix.lower() in (".csv", ".tsv"):
            return SampleTable(_csv(path, read_text(path)))
        lines = (line for line in text_lines(path) if line.strip())
        first, more = next(lines, ""), next(lines, None) is not None
        begins = first.lstrip()[:1]
        if begins not in ("[", "{"):
            # Some tables have a name without an ending; pages of errors begin with a tag.
            is_csv = path.suffix.lower() in ("", ".txt") and begins != "<" and ("," in first or "\t" in first)
            return SampleTable(_csv(path, read_text(path))) if is_csv else None
        row = _parsed(first)
        if isinstance(row, dict) and any(keys <= row.keys() for keys in _SCORE_LINES):
            return None
        if isinstance(row, dict) and more:
            return SampleTable([_named(line, path) for _, line in read_json_lines(path)])
        content = row if row is not None and not more else read_json(path)
    except Unreadable as error:
        if path.suffix.lower() in (".jsonl", ".ndjson"):
            return None
        raise DataError(f"{path}: {error}") from None
    return _document(path, content, shape)


def rows_of_arrays(path: Path, arrays: Mapping[str, np.ndarray], shape: GroupShape) -> SampleTable | None:
    """The rows of arrays of booleans, or of scores [groups, candidates]; None if they are something else.

    Booleans [groups] are ``correct`` or by the names of arrays; ``text`` [groups, images] and ``image`` [groups,
    captions] are questions.
    """
    if any(array.ndim > 2 for array in arrays.values()) or not arrays or {"img", "cap"} <= set(arrays):
        if any(array.dtype == bool for array in arrays.values()):
            raise DataError(f"{path}: holds booleans of {_shapes(arrays)}; {_EXPECTED_ARRAYS}")
        return None
    if len(arrays) == 1 and (table := _one_array(*next(iter(arrays.items())), shape)) is not None:
        return table
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not _is_boolean(array):
            return None
        if array.ndim == 1:
            columns[name] = array
        elif array.ndim == 2 and name in ("text", "image"):
            side = "c" if name == "image" else "i"
            columns |= {f"{name}_score_{side}{index}": array[:, index] for index in range(array.shape[1])}
    if not columns or len({len(column) for column in columns.values()}) > 1:
        raise DataError(f"{path}: holds {_shapes(arrays)}; {_EXPECTED_ARRAYS}")
    lists = {name: column.tolist() for name, column in columns.items()}
    return SampleTable([_named(dict(zip(lists, row, strict=True)), path) for row in zip(*lists.values(), strict=True)])


_UNNAMED = ("array", "arr_0")  # of an npy file, and of numpy.savez without names
_EXPECTED_ARRAYS = (
    "expected booleans [groups] (of groups with one image or one caption), or an npz of text_score, image_score and "
    "group_score [groups]"
)


def boolean(value: object) -> bool | None:
    """True or false as tables write it; None for anything else.

    >>> boolean(" False"), boolean(1), boolean("1.0"), boolean(0.5)
    (False, True, True, None)
    """
    word = str(value).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _one_array(name: str, array: np.ndarray, shape: GroupShape) -> SampleTable | None:
    if array.ndim == 1 or array.shape[1:] == (1,):
        column = CORRECT if name in _UNNAMED else name
        return SampleTable([{column: value} for value in array.reshape(-1).tolist()]) if _is_boolean(array) else None
    one_image, one_caption = shape.images == 1, shape.captions == 1
    if array.ndim == 2 and array.dtype != bool and (one_image or one_caption):
        blocks = array[:, None, :] if one_image else array[:, :, None]
        return SampleTable([{SCORES: block} for block in blocks.tolist()])
    return None


def _is_boolean(array: np.ndarray) -> bool:
    return bool(array.dtype == bool or np.isin(array, (0, 1)).all())


def _shapes(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in arrays.items())


def _parsed(text: str) -> object | None:
    try:
        return parse_json(text)
    except Unreadable:
        return None


def _named(row: Mapping[str, Any], path: Path) -> Row:
    """The row with names as this module's; DataError if two are one."""
    named = {_SEPARATORS.sub("_", str(name).strip().lower()): value for name, value in row.items()}
    if len(named) < len(row):
        raise DataError(f"{path}: two columns differ in upper and lower case or separators alone: {', '.join(row)}")
    return named


def _csv(path: Path, text: str) -> list[Row]:
    """The rows of a table with a header, or of one column of booleans without."""
    tabs = path.suffix.lower() == ".tsv" or "\t" in text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ",")
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num} is not CSV ({error})") from None
    if not lines:
        raise DataError(f"{path}: is empty")
    header = lines[0][1]
    if all(boolean(cell) is not None for cell in header):
        if len(header) > 1:
            raise DataError(
                f"{path}: has {len(header)} columns without names, and their order is not known; write a first line "
                "such as text_score,image_score,group_score"
            )
        header = [CORRECT]
    else:
        del lines[0]
    for number, cells in lines:
        if len(cells) != len(header):
            raise DataError(f"{path}: line {number} has {len(cells)} cells, the first line has {len(header)}")
    if len(set(header)) < len(header):
        doubled = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path}: the header names column {doubled!r:.80} twice")
    return [_named(dict(zip(header, cells, strict=True)), path) for _, cells in lines]


def _document(path: Path, content: object, shape: GroupShape | None) -> SampleTable:
    if isinstance(content, list):
        return SampleTable(_listed(path, content, shape))
    assert isinstance(content, dict), "a document that begins with a bracket is a list or an object"
    columns = {name: value for name, value in content.items() if isinstance(value, list) and value}
    if columns and len(columns) == len(content) and len(set(map(len, columns.values()))) == 1:
        if not any(isinstance(cell, dict | list) for column in columns.values() for cell in column):
            cells = zip(*columns.values(), strict=True)
            return SampleTable([_named(dict(zip(columns, row, strict=True)), path) for row in cells])
    lists = {name: value for name, value in columns.items() if isinstance(value[0], dict)}
    if len(lists) == 1:
        return SampleTable(_listed(path, next(iter(lists.values())), shape))
    rows = {name: value for name, value in content.items() if isinstance(value, dict)}
    if rows:
        others = [name for name in content if name not in rows]
        note = f"the keys {', '.join(others)} of {path.name} are not groups and were skipped"
        return SampleTable([{"id": name, **_named(row, path)} for name, row in rows.items()], [note] if others else [])
    if content and all(boolean(value) is not None for value in content.values()):
        return SampleTable([{"id": name, CORRECT: value} for name, value in content.items()])
    raise DataError(f"{path}: is a JSON object without groups; {EXPECTED}")


def _listed(path: Path, items: Iterable[object], shape: GroupShape | None) -> list[Row]:
    """The rows of a JSON list: of objects, or nested lists of booleans or scores."""
    listed = list(items)
    if listed and all(isinstance(item, dict) for item in listed):
        return [_named(item, path) for item in listed if isinstance(item, dict)]
    try:
        array = np.array(listed)
    except ValueError:  # lists of other lengths
        array = np.array(None)
    if listed and array.dtype.kind in "biuf":
        if array.ndim == 3 and array.dtype != bool:
            return [{SCORES: block} for block in array.tolist()]
        table = None if shape is None else rows_of_arrays(path, {_UNNAMED[0]: array}, shape)
        if table is not None:
            return table.rows
    raise DataError(f"{path}: is a JSON list without groups; {EXPECTED}")
