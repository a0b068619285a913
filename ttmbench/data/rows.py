"""Groups made of rows with named cells, of files or of datasets. Every cell that is used is checked.

Names of cells are columns, parts of nested ones (``a.b``, ``a.0``), and templates of several (``{a}_{b:03d}``).
"""

from __future__ import annotations

import ast
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from ttmbench._util import file_io
from ttmbench._util.console import one_line
from ttmbench._util.file_io import check_no_pointer, limit, read_json_lines
from ttmbench._util.images import Colors, as_rgb, check_size, open_array, open_image
from ttmbench.data.video import Video, stored_video
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.types import Exif, Group, ImageRef, Record, SourceRequest

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from PIL.Image import Image

_FORMAT = re.compile(r"0?\d{0,2}d?")
NUMBER = "_row"  # in place of a column: the number of the row
SPREAD = "*"  # before the name of a column of captions or images: all items of the list in it
Box = tuple[int, int, int, int]
_FARTHEST = 1_000_000  # pixels; no image is as large
Plain = StrictBool | StrictInt | StrictFloat | str
Missing = Literal["refuse", "leave_out"]
"""What becomes of groups of which an image is missing."""


@dataclass(frozen=True)
class Row:
    """One row of raw data."""

    key: str  # its own name in the data (the key of a JSON object), or its number from 0
    cells: Mapping[str, object]  # column -> value
    index: int  # its number from 0
    where: str = ""  # names the data, for messages
    file: str = ""  # name of its file, where the data are in several

    def cell(self, column: str) -> Any:
        """A cell; ``a.b`` is item b of the mapping in column a, ``a.0`` the first item of the list in it.

        ``_row`` is the row's number from 0, unless there is a column of that name.
        Where some rows have a list and others a single text, ``a.0`` is the text itself. DataError with the columns
        that exist if there is no such column.
        """
        if column in self.cells or column == NUMBER:
            return self.cells.get(column, self.index)
        value: object = self.cells
        path = column.split(".")
        for depth, name in enumerate(path):
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            elif not (isinstance(value, str) and name == "0" and depth == len(path) - 1):
                known = ", ".join(repr(name) if name != name.strip() else name for name in map(str, self.cells))
                raise DataError(f"{self.where}: row {self.index} has no column '{column}'; it has {known}")
        return value

    def value(self, column: str) -> Any:
        """A cell, or the text of a template of cells such as ``{image_id:012d}.jpg``; names are columns only.

        UsageError if the template cannot be parsed; DataError if a column is missing, or no whole number where digits
        are asked for.
        """
        if "{" not in column:
            return self.cell(column)
        try:
            parts = list(Formatter().parse(column))
        except ValueError as error:
            raise UsageError(f"'{column}' is not a template of columns in braces: {error}") from None
        filled = []
        for literal, name, spec, conversion in parts:
            filled.append(literal)
            if name is None:
                continue
            if conversion or not _FORMAT.fullmatch(spec or ""):
                raise UsageError(f"'{column}': after a column only digits and 'd' may stand, as in {{image_id:012d}}")
            value = self.cell(name)
            if spec:
                try:
                    value = format(int(value), spec)
                except (TypeError, ValueError):
                    raise DataError(f"{self.named(name)} is {value!r}, not a whole number") from None
            filled.append(str(value))
        return "".join(filled)

    def number(self, column: str) -> float:
        """A cell as a number; DataError if it is none."""
        value = self.cell(column)
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise DataError(f"{self.named(column)} is {value!r:.80}, not a number") from None

    def group_id(self, column: str | None) -> str:
        """The row's id: a column or template, else its key; after the name of its file where there are several.

        DataError if a cell is null, NaN, blank, or neither text nor a number.
        """
        row_id, parts = self.key, {"the key": self.key}
        if column is not None:
            row_id = str(self.value(column))
            names = [name for _, name, _, _ in Formatter().parse(column) if name] if "{" in column else [column]
            parts = {f"'{name}'": self.cell(name) for name in names}
        for name, value in parts.items():
            blank = value is None or not str(value).strip() or (isinstance(value, float) and not math.isfinite(value))
            if blank or isinstance(value, bytes | list | Mapping):
                of_file = f" of {self.file}" if self.file else ""
                raise DataError(
                    f"{self.where}: {name} of row {self.index}{of_file} is {value!r:.80}; an id must be text that is "
                    "not blank, or a number"
                )
        return f"{self.file}/{row_id}" if self.file else row_id

    def tags(self, columns: Mapping[str, str | PathPart] | Sequence[str]) -> dict[str, str]:
        """The tags of the row as texts: null is an empty tag, a list is joined.

        ``columns``: names of columns, or tag -> column, template or `PathPart`. DataError for a missing column or part.
        """
        named = columns if isinstance(columns, Mapping) else {name: name for name in columns}
        values = {tag: self.value(of) if isinstance(of, str) else of.tag(self) for tag, of in named.items()}
        return {
            tag: "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for tag, value in values.items()
        }

    def named(self, column: str) -> str:
        """A cell of the row, for messages."""
        return f"{self.where}: '{column}' of row {self.index}"


class PathPart(BaseModel):
    """A folder of a path as a tag: ``{column: image0, part: 0}`` of ``kubric/12/a.png`` is ``kubric``.

    Attributes:
        column: column of the path, or a template of columns.
        part: which part of it, counted from 0; without it the whole cell.
        names: part, with ``*`` for any letters, -> tag; the first that fits counts, and a part without one is its own
            tag.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    column: str
    part: int | None = Field(None, ge=0)
    names: dict[str, str] = {}

    def tag(self, row: Row) -> object:
        """The tag of a row; DataError if its path has no such part."""
        value = row.value(self.column)
        if self.part is not None:
            parts = value.split("/") if isinstance(value, str) else []
            if self.part >= len(parts):
                raise DataError(f"{row.named(self.column)} is {value!r}, which has no part {self.part}")
            value = parts[self.part]
        text = str(value)
        return next((tag for name, tag in self.names.items() if name == text or fnmatchcase(text, name)), value)


class Condition(BaseModel):
    """What a cell must be for its row to be read; everything that is stated must hold.

    Attributes:
        any_of: one of these values.
        at_least: a number of at least this.
        differs_from: a column with another value.
        starts_with: a text that begins with this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    any_of: list[Plain] | None = Field(None, min_length=1)
    at_least: float | None = None
    differs_from: str | None = None
    starts_with: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if self == type(self).model_construct():
            raise ValueError(f"a condition states one of: {', '.join(type(self).model_fields)}")
        return self

    def holds(self, row: Row, column: str) -> bool:
        """Whether a row's cell meets it; a null cell only differs from others.

        DataError if there is no such column, or no number where one is compared.
        """
        value = row.cell(column)
        if value is None:
            return (self.any_of, self.at_least, self.starts_with) == (None, None, None)
        return (
            (self.any_of is None or any(_same(value, wanted) for wanted in self.any_of))
            and (self.differs_from is None or value != row.cell(self.differs_from))
            and (self.starts_with is None or str(value).startswith(self.starts_with))
            and (self.at_least is None or row.number(column) >= self.at_least)
        )


def _same(value: object, wanted: object) -> bool:
    """Equality; a text of a CSV file may equal a number's text, but True does not equal 1."""
    if isinstance(value, bool) != isinstance(wanted, bool) and not isinstance(value, str):
        return False
    return bool(value == wanted) or (isinstance(value, str) and not isinstance(wanted, str) and value == str(wanted))


def _condition(value: object) -> object:
    """A value alone means that value; a list, one of its values."""
    if isinstance(value, Mapping | Condition):
        return value
    return {"any_of": value if isinstance(value, list) else [value]}


Where = dict[str, Annotated[Condition, BeforeValidator(_condition)]]
"""Column -> what its cell must be."""


class Pick(BaseModel):
    """The item of a list that another cell names by its position; written ``{from: keys, by: label}``.

    Attributes:
        from_: ``from``: column of the list, or several columns, whose cells are the items.
        by: column of the position, counted from 0.
        others: name of a further cell, the list of the items that are not picked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    from_: str | list[str] = Field(alias="from")
    by: str
    others: str | None = None

    def items(self, row: Row) -> list[object]:
        """The list; DataError if the column holds none."""
        value = row.cell(self.from_) if isinstance(self.from_, str) else [row.cell(column) for column in self.from_]
        if not isinstance(value, list):
            raise DataError(f"{row.named(str(self.from_))} must hold a list to pick from, got {value!r:.80}")
        return value


Picks = dict[str, Pick]
"""Name of a cell -> the item that it is."""


def _picked(row: Row, picks: Picks) -> Row:
    """The row with the cells that are picked from its lists; DataError for a position that is none."""
    cells = dict(row.cells)
    for name, pick in picks.items():
        items, number = list(pick.items(row)), row.number(pick.by)
        if not (number.is_integer() and 0 <= number < len(items)):
            found = f"{row.named(pick.by)} is {row.cell(pick.by)!r:.80}"
            raise DataError(f"{found}, and there are {len(items)} items: 0 to {len(items) - 1}")
        cells[name] = items.pop(int(number))
        if pick.others is not None:
            cells[pick.others] = items
    return replace(row, cells=cells)


def _check_picked(rows: Sequence[Row], picks: Picks) -> None:
    """DataError unless the rows of a group pick from the same items, and each item once."""
    for name, pick in picks.items():
        chosen = sorted(str(row.cell(name)) for row in rows)
        for row in rows:
            if sorted(map(str, pick.items(row))) != chosen:
                raise DataError(
                    f"{row.where}: rows {rows[0].index} to {rows[-1].index} should be one group, each with another "
                    f"item of one list as '{name}' (by '{pick.by}'), but the list of row {row.index} has other items"
                )


def kept_rows(rows: Iterable[Row], columns: Mapping[str, Any]) -> Iterator[Row]:
    """The rows that a task reads: those that meet all conditions, of each file no more than the first ones.

    ``columns`` may have ``where`` (column -> condition) and ``first_rows`` (how many of each file). DataError as for
    `Condition.holds`.
    """
    conditions: Where = columns.get("where") or {}
    most = columns.get("first_rows")
    taken: Counter[str] = Counter()
    for row in rows:
        if most is not None and taken[row.file] >= most:
            continue
        if all(condition.holds(row, column) for column, condition in conditions.items()):
            taken[row.file] += 1
            yield row


@dataclass(frozen=True)
class Cell:
    """A caption or an image as a row names it; ``item``: its position where the column holds a list."""

    row: Row
    column: str
    item: int | None
    group_id: str

    @property
    def where(self) -> str:
        """File, column and group, for messages."""
        return _named(self.row, self.column, self.group_id)

    @property
    def value(self) -> Any:
        """The cell itself, or the text of a template."""
        value = self.row.value(self.column)
        return value if self.item is None or not isinstance(value, list) else value[self.item]

    @property
    def name(self) -> str:
        """The image's file name; DataError if the cell holds none."""
        value = self.value
        if not isinstance(value, str) or not value:
            raise DataError(f"{self.where} must name an image file, got {value!r}")
        return value

    @property
    def text(self) -> str:
        """The caption; DataError if the cell holds none."""
        value = self.value
        if not isinstance(value, str) or not value.strip():
            where = self.column if self.item is None else f"{self.column}[{self.item}]"
            raise DataError(f"{self.row.where}: caption '{where}' of group {self.group_id} is empty or no text")
        return value


def stored_image(name: str, path: Path, exif: Exif, npy: Colors = "rgb", video: Video | None = None) -> ImageRef:
    """An image in its own file, or a video where a task has these; ``npy``: order of colours in a ``.npy`` array."""
    if video is not None:
        return stored_video(name, path, video)
    if path.suffix.lower() != ".npy":
        return ImageRef(name, partial(open_image, path), path, path.read_bytes, exif)
    return ImageRef(name, partial(open_array, path, npy), None, path.read_bytes, exif, f"npy {npy};")


def with_images(groups: Sequence[Group], without: Collection[str], where: str) -> tuple[list[Group], Record]:
    """The groups but those ``without`` an image (ids), and the coverage for the record; OutOfReachError for none."""
    here = [group for group in groups if group.group_id not in without]
    if not here:
        raise OutOfReachError(f"none of {len(groups)} groups has its images in {where}")
    missing = [group.group_id for group in groups if group.group_id in without]
    return here, {"rows": len(groups), "here": len(here), "missing": missing}


def groups_from_rows(
    rows: Iterable[Row], request: SourceRequest, image: Callable[[Cell], ImageRef], rows_per_group: int = 1
) -> Iterator[Group]:
    """Makes groups of rows, one after the other; each of ``rows_per_group`` brings its part of images and captions.

    DataError, with file and group, if a cell is missing, empty or of the wrong kind; UsageError if the columns do not
    fit the task.
    """
    shape, what = request.shape, {"retrieval": "captions", "classification": "label"}.get(request.kind)
    if what is not None and (not request.columns["captions"] or rows_per_group > 1):
        raise UsageError(f"a task of kind {request.kind} needs group.{what}, and has one row an image")
    if shape.images % rows_per_group or shape.captions % rows_per_group:
        raise UsageError(f"source.rows_per_group: {rows_per_group} rows cannot share a {shape} group evenly")
    counts = (shape.images // rows_per_group, shape.captions // rows_per_group if what is None else None)
    picks: Picks = request.columns.get("pick") or {}
    wanted = None if request.limit is None else request.limit * rows_per_group
    pending: list[Row] = []
    for row in islice(kept_rows(rows, request.columns), wanted):
        pending.append(_picked(row, picks) if picks else row)
        if len(pending) == rows_per_group:
            if rows_per_group > 1:
                _check_picked(pending, picks)
            yield _group(pending, request, image, *counts)
            pending = []
    if pending:
        raise DataError(
            f"{pending[0].where}: {rows_per_group} rows make a group, but {len(pending)} remain at the end, "
            f"from row {pending[0].index}"
        )


def _group(
    rows: Sequence[Row],
    request: SourceRequest,
    image: Callable[[Cell], ImageRef],
    n_images: int,
    n_captions: int | None,
) -> Group:
    columns, first = request.columns, rows[0]
    group_id = "-".join(row.group_id(columns.get("id")) for row in rows)
    captions: list[str] = []
    images: list[ImageRef] = []
    for row in rows:
        if request.kind == "classification":
            captions.append(_label(row, columns["captions"][0], group_id))
        else:
            captions += [cell.text for cell in _cells(row, columns["captions"], group_id, n_captions, "captions")]
        found = [image(cell) for cell in _cells(row, columns["images"], group_id, n_images, "images")]
        images += (
            [cropped(one, box_of(row, columns["crop"], group_id)) for one in found] if columns.get("crop") else found
        )
    tags = [row.tags(columns.get("tags", ())) for row in rows]
    for column, value in (item for other in tags[1:] for item in other.items()):
        if value != tags[0][column]:
            raise DataError(
                f"{first.where}: rows {first.index} to {rows[-1].index} should be one group, but their '{column}' "
                f"differs: {tags[0][column]!r} and {value!r}"
            )
    return Group(group_id, tuple(images), tuple(captions), tags[0])


def _named(row: Row, column: str, group_id: str) -> str:
    return f"{row.where}: '{column}' of group {group_id}"


def _label(row: Row, column: str, group_id: str) -> str:
    """The class of an image as text: a number, or a name."""
    value = row.value(column)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        where = _named(row, column, group_id)
        raise DataError(f"{where} must be the number or the name of a class, got {value!r:.80}")
    return str(value)


def _cells(row: Row, columns: str | Sequence[str], group_id: str, count: int | None, what: str) -> list[Cell]:
    """The captions or images of one column's list, or of several columns; of ``*column``, all of the list in it.

    One column of images may hold a single image, and where it is kept apart from the row, nothing is known of it.
    """
    spread = [SPREAD + columns] if isinstance(columns, str) else columns
    if isinstance(columns, str) and what == "images":
        alone = columns in row.cells and count == 1 and not isinstance(row.cells[columns], list)
        if alone or columns not in row.cells:
            return [Cell(row, columns, index, group_id) for index in range(count or 1)]
    cells: list[Cell] = []
    for column in spread:
        name = column.removeprefix(SPREAD)
        if name == column:
            cells.append(Cell(row, name, None, group_id))
            continue
        value = row.cell(name)
        if not isinstance(value, list):
            raise DataError(f"{_named(row, name, group_id)} must hold a list of {what}, got {value!r:.80}")
        cells += [Cell(row, name, index, group_id) for index in range(len(value))]
    if len(cells) != (count or max(1, len(cells))):
        kind = DataError if any(name.startswith(SPREAD) for name in spread) else UsageError  # of the task file
        found = f"row {row.index} of group {group_id} gives {len(cells)} {what} (group.{what}: {', '.join(spread)})"
        raise kind(f"{row.where}: {found}, but each row must give {count or 'some'}")
    return cells


def box_of(row: Row, columns: Sequence[str], group_id: str) -> Box:
    """The crop box of a row: left, upper, right and lower edge in pixels. It may reach beyond the image.

    ``columns`` hold its left edge, upper edge, width and height, which are rounded as Pillow does. DataError if a cell
    holds no number, or the box holds no pixel.
    """
    numbers = [row.number(column) for column in columns]
    for column, number in zip(columns, numbers, strict=True):
        if not abs(number) <= _FARTHEST:
            raise DataError(f"{_named(row, column, group_id)} is {number}, not a number of pixels")
    left, top, width, height = numbers
    box = (round(left), round(top), round(left + width), round(top + height))
    if box[2] <= box[0] or box[3] <= box[1]:
        raise DataError(f"{row.where}: the crop box of group {group_id} is {width:g}x{height:g} pixels, so it is empty")
    return box


def cropped(image: ImageRef, box: Box) -> ImageRef:
    """The part of an image inside a box, under its own name; outside the image it is black.

    The box is in pixels of the image as it is read: turned upright, unless its EXIF data are ignored.
    """
    left, top, right, bottom = box
    name = f"{image.name}[{left},{top},{right - left},{bottom - top}]"
    variant = f"{image.variant}crop {left},{top},{right},{bottom};"
    return ImageRef(name, partial(_crop, image, box), None, image.read, image.exif, variant)


def _crop(image: ImageRef, box: Box) -> Image:
    """The part as an RGB image."""
    check_size((box[2] - box[0], box[3] - box[1]))
    return as_rgb(image.open(), turn=image.exif == "apply").crop(box)


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
    _refuse_tables(file)
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        yield from csv_rows(read_text(file), name, tabs=suffix == ".tsv")
    elif suffix == ".json":
        value = read_json(file)
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
    value, where = row.cell(column), row.named(column)
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


def read_text(file: Traversable) -> str:
    """A file's text without a byte-order mark; DataError if it cannot be read or is not UTF-8."""
    try:
        return file_io.read_text(file)
    except file_io.Unreadable as error:
        raise DataError(f"{file}: {error}") from None


def read_json(file: Path) -> object:
    """A file's JSON value; DataError if it cannot be read or is not JSON."""
    try:
        return file_io.parse_json(read_text(file))
    except file_io.Unreadable as error:
        raise DataError(f"{file}: {error}; JSON lines go into a file that ends in .jsonl") from None


def csv_rows(text: str, name: str, tabs: bool = False) -> Iterator[Row]:
    """The rows of a CSV or TSV table with a header; a CSV file whose header has no comma may have semicolons or tabs.

    In TSV, a cell that begins with a quote must be quoted as a whole, or it would swallow what follows. DataError
    if a row has another number of cells than the header, or a column is named twice.
    """
    header, _, rest = text.partition("\n")
    between = "\t" if tabs else next((one for one in ",;\t" if one in header), ",")
    if header[:4].lower() == "sep=":  # a line for Excel, which names the delimiter
        text = rest
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=between, strict=tabs)
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


def _refuse_tables(file: Path) -> None:
    """DataError for a parquet file, or what ``save_to_disk`` wrote, which another kind of source reads."""
    magic = b""
    if file.is_file():
        with suppress(OSError), file.open("rb") as opened:  # its reader reports the error
            magic = opened.read(4)
    if magic == b"PAR1" or file.suffix == ".arrow" or file.is_dir():
        raise DataError(
            f"{file}: is a folder or a table; rows are read from JSON lines, JSON or CSV here. `source: {{kind: "
            "huggingface, path: ./FOLDER, split: NAME}` reads folders of parquet files, and what save_to_disk wrote"
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
