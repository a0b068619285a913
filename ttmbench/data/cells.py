"""Cells of a row by the names that task files use, and which rows are read.

Names are columns, parts of nested ones, and templates of several. Rows are read that meet conditions on their cells,
and only the first of each file if that is asked for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from ttmbench.errors import DataError, UsageError

_FORMAT = re.compile(r"0?\d{0,2}d?")
_MISSING = object()
Plain = StrictBool | StrictInt | StrictFloat | str


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
    cells: Mapping[str, object]
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

    Where some rows have a list and others a single text, ``a.0`` is the text itself. ``where`` names the data.

    Raises:
        DataError: there is no such column; those that there are are named.
    """
    value = row.cells.get(column, _MISSING)
    if value is _MISSING:
        value = _inner(row.cells, column.split("."))
    if value is _MISSING:
        raise DataError(f"{where}: row {row.index} has no column '{column}'; it has {', '.join(map(str, row.cells))}")
    return value


def _inner(cells: Mapping[str, object], path: list[str]) -> object:
    value: object = cells
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

    UsageError if it cannot be read; DataError if a column is missing, or holds no whole number where one is asked for.
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
    """A row's id as text, after the name of its file where the data lie in several.

    Args:
        row: the row.
        column: that holds it, or a template of columns; None for the row's own key or number.
        where: names the data, for messages.

    Raises:
        DataError: a cell is null, NaN, blank, or neither text nor a number; row and column are named.
    """
    if column is None:
        row_id, parts = row.key, {"the key": row.key}
    else:
        names = [column] if "{" not in column else [name for _, name, _, _ in Formatter().parse(column) if name]
        row_id, parts = str(value_of(row, column, where)), {f"'{name}'": cell(row, name, where) for name in names}
    for name, value in parts.items():
        what = _no_id(value)
        if what is not None:
            of_file = f" of {row.file}" if row.file else ""
            raise DataError(
                f"{where}: {name} of row {row.index}{of_file} is {what}; an id must be text that is not blank, or a "
                "number"
            )
    return f"{row.file}/{row_id}" if row.file else row_id


def _no_id(value: object) -> str | None:
    """What a cell is that names nothing; None for one that may be an id."""
    match value:
        case None:
            return "null"
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "infinite"
        case str() if not value.strip():
            return "blank"
        case bytes():
            return "bytes"
        case list():
            return "a list"
    return "an object" if isinstance(value, Mapping) else None


def tags_of(row: Row, columns: Mapping[str, object] | Sequence[str], where: str) -> dict[str, str]:
    """The tags of a row as texts: nothing is an empty tag, a list is joined.

    ``columns``: names of columns, or tag -> column, template or `PathPart`. DataError for a column or part that is not
    there.
    """
    named: Mapping[str, object] = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    values = {tag: _tag(row, column, where) for tag, column in named.items()}
    return {
        tag: "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for tag, value in values.items()
    }


def _tag(row: Row, column: object, where: str) -> object:
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


class Condition(BaseModel):
    """What a cell has to be for its row to be kept. All that is stated has to hold.

    Attributes:
        any_of: one of these values.
        none_of: none of these values.
        not_null: ``true``: there is a value.
        at_least: a number, not smaller than this.
        at_most: a number, not larger than this.
        differs_from: another column, whose value is another one.
        starts_with: a text that begins with this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    any_of: list[Plain] | None = Field(None, min_length=1)
    none_of: list[Plain] | None = Field(None, min_length=1)
    not_null: bool = False
    at_least: float | None = None
    at_most: float | None = None
    differs_from: str | None = None
    starts_with: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if self == type(self).model_construct():
            raise ValueError(f"a condition states one of: {', '.join(type(self).model_fields)}")
        return self

    def holds(self, row: Row, column: str, where: str) -> bool:
        """Whether a row's cell is so; DataError if there is no such column, or no number where one is compared.

        Of nothing no comparison holds, but it is none of any values.
        """
        value = cell(row, column, where)
        if value is None:
            positive = (self.any_of, self.at_least, self.at_most, self.starts_with)
            return not self.not_null and all(stated is None for stated in positive)
        if self.any_of is not None and not any(_same(value, wanted) for wanted in self.any_of):
            return False
        if self.none_of is not None and any(_same(value, refused) for refused in self.none_of):
            return False
        if self.differs_from is not None and value == cell(row, self.differs_from, where):
            return False
        if self.starts_with is not None and not str(value).startswith(self.starts_with):
            return False
        if self.at_least is not None and not _number(value, row, column, where) >= self.at_least:
            return False
        return self.at_most is None or _number(value, row, column, where) <= self.at_most


def _condition(value: object) -> object:
    """A value alone means that value; a list, one of its values."""
    if isinstance(value, Mapping | Condition):
        return value
    return {"any_of": value if isinstance(value, list) else [value]}


Where = dict[str, Annotated[Condition, BeforeValidator(_condition)]]
"""Column -> what its cell has to be."""


def kept_rows(rows: Iterable[Row], columns: Mapping[str, Any], where: str) -> Iterator[Row]:
    """The rows that a task reads: those that meet all conditions, of each file no more than the first ones.

    ``columns`` has ``where`` (column -> condition) and ``first_rows`` (how many of each file), if there are any.
    DataError names row and column if a condition cannot be looked at.
    """
    stated = columns.get("where") or {}
    conditions = {name: Condition.model_validate(_condition(value)) for name, value in stated.items()}
    most = columns.get("first_rows")
    taken: Counter[str] = Counter()
    for row in rows:
        if most is not None and taken[row.file] >= most:
            continue
        if all(condition.holds(row, name, where) for name, condition in conditions.items()):
            taken[row.file] += 1
            yield row


def _same(value: object, wanted: object) -> bool:
    """Equality; a text of a CSV file may be what a number looks like. True is no 1."""
    if isinstance(value, bool) != isinstance(wanted, bool) and not isinstance(value, str):
        return False
    return bool(value == wanted) or (isinstance(value, str) and not isinstance(wanted, str) and value == str(wanted))


def _number(value: Any, row: Row, column: str, where: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"{where}: '{column}' of row {row.index} is {value!r:.80}, not a number") from None
