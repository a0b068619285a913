"""Cells of a row by the names that task files use: columns, parts of nested ones, and templates of several."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ttmbench.errors import DataError, UsageError

_FORMAT = re.compile(r"0?\d{0,2}d?")
_MISSING = object()


@dataclass(frozen=True)
class Row:
    """One row of raw data.

    Attributes:
        key: its own name in the data (the key of a JSON object), or its number from 0.
        cells: column -> value.
        index: its number from 0.
        file: name of the file that it is of, where the data lie in several.
    """

    key: str
    cells: Mapping[str, Any]
    index: int
    file: str = ""


class PathPart(BaseModel):
    """A folder of a path as a tag: ``{column: image0, part: 0}`` of ``kubric/12/a.png`` is ``kubric``.

    Attributes:
        column: that holds the path; or a template of columns.
        part: which part of it, counted from 0; without it the whole of the cell.
        names: part -> what the tag calls it; a part that is not here keeps its name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    column: str
    part: int | None = Field(None, ge=0)
    names: dict[str, str] = {}


def cell(row: Row, column: str, where: str) -> Any:
    """A row's cell. ``a.b`` is item b of the mapping in column a, ``a.0`` the first item of the list in it.

    Where some rows have a list and others a single text, ``a.0`` is the text itself.

    Args:
        row: the row.
        column: name, with the names or numbers of inner items after dots.
        where: names the data, for messages.

    Returns:
        The value.

    Raises:
        DataError: there is no such column; those that there are are named.
    """
    value = row.cells.get(column, _MISSING)
    if value is _MISSING:
        value = _inner(row.cells, column.split("."))
    if value is _MISSING:
        raise DataError(f"{where}: row {row.index} has no column '{column}'; it has {', '.join(map(str, row.cells))}")
    return value


def _inner(cells: Mapping[str, Any], path: list[str]) -> Any:
    value: Any = cells
    for depth, name in enumerate(path):
        if isinstance(value, Mapping):
            value = value.get(name, _MISSING)
        elif isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif not (isinstance(value, str) and name == "0" and depth == len(path) - 1):
            return _MISSING
    return value


def value_of(row: Row, column: str, where: str) -> Any:
    """A row's cell, or the text of a template of cells; arguments and errors as for `cell` and `fill`."""
    return fill(column, row, where) if "{" in column else cell(row, column, where)


def fill(template: str, row: Row, where: str) -> str:
    """Fills a template such as ``{image_id:012d}.jpg`` from a row's cells. Names are columns and nothing more.

    Args:
        template: text with columns in braces.
        row: the row.
        where: names the data, for messages.

    Returns:
        The text.

    Raises:
        UsageError: the template cannot be read.
        DataError: a column is missing, or holds no whole number where one is asked for.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"'{template}' is no template of columns in braces: {error}") from None
    filled = []
    for literal, column, spec, conversion in parts:
        filled.append(literal)
        if column is None:
            continue
        if conversion or not _FORMAT.fullmatch(spec or ""):
            raise UsageError(f"'{template}': after a column only digits and 'd' may stand, as in {{image_id:012d}}")
        value = cell(row, column, where)
        if spec:
            try:
                value = format(int(value), spec)
            except (TypeError, ValueError):
                raise DataError(f"{where}: '{column}' of row {row.index} is {value!r}, not a whole number") from None
        filled.append(str(value))
    return "".join(filled)


def id_of(row: Row, column: str | None, where: str) -> str:
    """A row's id as text.

    Args:
        row: the row.
        column: that holds it, or a template of columns; None for the row's own key or number.
        where: names the data, for messages.

    Returns:
        The id, after the name of its file where the data lie in several.

    Raises:
        DataError: a cell is null, NaN, blank, or neither text nor a number; row and column are named.
    """
    if column is None:
        own, parts = row.key, {"": row.key}
    else:
        names = [column] if "{" not in column else [name for _, name, _, _ in Formatter().parse(column) if name]
        own = str(value_of(row, column, where))
        parts = {name: cell(row, name, where) for name in names}
    for name, value in parts.items():
        what = _no_id(value)
        if what is not None:
            named = f"'{name}'" if name else "the key"
            of_file = f" of {row.file}" if row.file else ""
            raise DataError(
                f"{where}: {named} of row {row.index}{of_file} is {what}; an id must be text that is not blank, or a "
                "number"
            )
    return f"{row.file}/{own}" if row.file else own


def _no_id(value: Any) -> str | None:
    """What a cell is that names nothing; None for one that may be an id."""
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, str) and not value.strip():
        return "blank"
    kinds = ((bytes, "bytes"), (list, "a list"), (Mapping, "an object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), None)


def tags_of(row: Row, columns: Any, where: str) -> dict[str, str]:
    """The tags of a row.

    Args:
        row: the row.
        columns: names of columns, or tag -> column, template or `PathPart`.
        where: names the data, for messages.

    Returns:
        Tag -> text.

    Raises:
        DataError: there is no such column, or a path has no such part.
    """
    named: Mapping[str, Any] = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    return {tag: _text(_tag(row, column, where)) for tag, column in named.items()}


def _tag(row: Row, column: Any, where: str) -> Any:
    if isinstance(column, str):
        return value_of(row, column, where)
    path = PathPart.model_validate(column)
    value = value_of(row, path.column, where)
    if path.part is None:
        return path.names.get(str(value), value)
    parts = value.split("/") if isinstance(value, str) else []
    if path.part >= len(parts):
        raise DataError(f"{where}: '{path.column}' of row {row.index} is {value!r:.80}, which has no part {path.part}")
    return path.names.get(parts[path.part], parts[path.part])


def _text(value: Any) -> str:
    """A tag is text; nothing is an empty tag, a list is joined."""
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
