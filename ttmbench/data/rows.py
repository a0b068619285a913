"""Rows with named cells -> groups: what files and hub datasets have in common. Every cell that is used is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import Formatter
from typing import Any

from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group, ImageRef, SourceRequest

_FORMAT = re.compile(r"0?\d{0,2}d?")


@dataclass(frozen=True)
class Row:
    """One row of raw data.

    Attributes:
        key: its own name in the data (the key of a JSON object), or its number from 0.
        cells: column -> value.
        index: its number from 0.
    """

    key: str
    cells: Mapping[str, Any]
    index: int


@dataclass(frozen=True)
class ImageCell:
    """An image as a row names it: which row and column, and which item where the column holds a list."""

    row: Row
    column: str
    item: int | None
    group_id: str
    where: str

    @property
    def value(self) -> Any:
        """The cell itself; a column with braces is a template that is filled from the row's cells."""
        if "{" in self.column:
            return fill(self.column, self.row, self.where)
        value = cell(self.row, self.column, self.where)
        return value if self.item is None or not isinstance(value, list) else value[self.item]

    @property
    def name(self) -> str:
        """The image's file name.

        Raises:
            DataError: the cell holds none.
        """
        value = self.value
        if not isinstance(value, str) or not value:
            raise DataError(
                f"{self.where}: '{self.column}' of group {self.group_id} should name an image file, got {value!r}"
            )
        return value


def groups_from_rows(
    rows: Iterable[Row],
    request: SourceRequest,
    where: str,
    image: Callable[[ImageCell], ImageRef],
    rows_per_group: int = 1,
) -> Iterator[Group]:
    """Makes groups of rows.

    Args:
        rows: the raw data, in order.
        request: shape, columns and limit.
        where: names the data, for messages.
        image: makes an image of a cell.
        rows_per_group: how many consecutive rows are one group; each brings its share of images and captions.

    Yields:
        The groups.

    Raises:
        DataError: a cell is missing, empty or of the wrong kind; file and group are named.
        UsageError: the columns do not fit the shape.
    """
    columns = request.columns
    per_row = _share(request, rows_per_group)
    _check_columns(columns, per_row, request, rows_per_group)
    wanted = None if request.limit is None else request.limit * rows_per_group
    pending: list[Row] = []
    for row in islice(rows, wanted):
        pending.append(row)
        if len(pending) == rows_per_group:
            yield _group(pending, request, where, image, per_row)
            pending = []
    if pending:
        raise DataError(
            f"{where}: {rows_per_group} rows make a group, but {len(pending)} are left over at the end, from row "
            f"{pending[0].index}"
        )


def _group(
    rows: Sequence[Row],
    request: SourceRequest,
    where: str,
    image: Callable[[ImageCell], ImageRef],
    per_row: tuple[int, int | None],
) -> Group:
    columns = request.columns
    named = columns.get("id")
    group_id = "-".join(str(cell(row, named, where)) if named else row.key for row in rows)
    if request.kind == "classification":
        captions = [_label(rows[0], columns["captions"][0], where, group_id)]
    else:
        captions = [text for row in rows for text in _captions(row, columns["captions"], where, group_id, per_row[1])]
    images = [image(one) for row in rows for one in _images(row, columns["images"], where, group_id, per_row[0])]
    tags = [{column: _text(cell(row, column, where)) for column in columns.get("tags", ())} for row in rows]
    for other in tags[1:]:
        for column, value in other.items():
            if value != tags[0][column]:
                raise DataError(
                    f"{where}: rows {rows[0].index} to {rows[-1].index} should be one group, but their '{column}' "
                    f"differs: {tags[0][column]!r} and {value!r}"
                )
    return Group(group_id, tuple(images), tuple(captions), tags[0])


def _label(row: Row, column: str, where: str, group_id: str) -> str:
    """The class of an image as text: a number, or a name."""
    value = cell(row, column, where)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise DataError(
            f"{where}: '{column}' of group {group_id} should be the number or the name of a class, got {value!r:.80}"
        )
    return str(value)


def _captions(row: Row, columns: str | Sequence[str], where: str, group_id: str, count: int | None) -> list[str]:
    if isinstance(columns, str):
        values = _listed(row, columns, where, group_id, count, "captions")
        named = [(f"{columns}[{index}]", value) for index, value in enumerate(values)]
    else:
        named = [(column, cell(row, column, where)) for column in columns]
    for column, value in named:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: caption '{column}' of group {group_id} is empty or no text")
    return [value for _, value in named]


def _images(row: Row, columns: str | Sequence[str], where: str, group_id: str, count: int) -> list[ImageCell]:
    if not isinstance(columns, str):
        return [ImageCell(row, column, None, group_id, where) for column in columns]
    if columns in row.cells and isinstance(row.cells[columns], list):
        _listed(row, columns, where, group_id, count, "images")
    elif columns in row.cells and count > 1:
        raise DataError(f"{where}: '{columns}' of group {group_id} should hold {count} images in a list")
    return [ImageCell(row, columns, index, group_id, where) for index in range(count)]


def _listed(row: Row, column: str, where: str, group_id: str, count: int | None, what: str) -> list[Any]:
    values = cell(row, column, where)
    if not isinstance(values, list):
        raise DataError(f"{where}: '{column}' of group {group_id} should hold a list of {what}, got {values!r:.80}")
    if len(values) != (count or max(1, len(values))):
        raise DataError(
            f"{where}: '{column}' of group {group_id} holds {len(values)} {what}, but {count or 'some'} are needed"
        )
    return values


def _share(request: SourceRequest, rows_per_group: int) -> tuple[int, int | None]:
    """Images and captions that each row brings; None for any number of captions."""
    shape = request.shape
    if request.kind != "groups":
        if rows_per_group > 1:
            raise UsageError(f"source.rows_per_group: a task of kind {request.kind} has one row an image")
        return 1, None
    if rows_per_group < 1 or shape.images % rows_per_group or shape.captions % rows_per_group:
        raise UsageError(f"source.rows_per_group: {rows_per_group} rows cannot share a {shape} group evenly")
    return shape.images // rows_per_group, shape.captions // rows_per_group


def _check_columns(
    columns: Mapping[str, Any], per_row: tuple[int, int | None], request: SourceRequest, rows_per_group: int
) -> None:
    images, captions = columns["images"], columns["captions"]
    if request.kind != "groups":
        what = "captions" if request.kind == "retrieval" else "label"
        if not captions or (not isinstance(images, str) and len(images) != 1):
            raise UsageError(f"group.images should name one column, and group.{what} is needed (kind: {request.kind})")
        return
    counts = tuple(len(names) if not isinstance(names, str) else None for names in (images, captions))
    if any(count not in (None, share) for count, share in zip(counts, per_row, strict=True)):
        share = f"; each of {rows_per_group} rows brings {per_row[0]} and {per_row[1]}" if rows_per_group > 1 else ""
        raise UsageError(
            f"group.images and group.captions name {_count(images)} and {_count(captions)} columns, "
            f"but group.shape is {request.shape}{share}"
        )


def _count(columns: str | Sequence[str]) -> str:
    return "a list in one" if isinstance(columns, str) else str(len(columns))


def _text(value: Any) -> str:
    """A tag is text; nothing is an empty tag, a list is joined."""
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def cell(row: Row, column: str, where: str) -> Any:
    """A row's cell.

    Raises:
        DataError: there is no such column; those that there are are named.
    """
    if column not in row.cells:
        raise DataError(f"{where}: row {row.index} has no column '{column}'; it has {', '.join(map(str, row.cells))}")
    return row.cells[column]


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
