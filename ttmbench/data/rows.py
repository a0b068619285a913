"""Rows with named cells -> groups: what files and hub datasets have in common. Every cell that is used is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.images import Colors, as_rgb, check_size, open_array, open_image
from ttmbench.data.cells import Row, cell, fill, id_of, kept_rows, tags_of, value_of
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Exif, Group, ImageRef, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]
_FARTHEST = 1_000_000  # pixels; no image is as large
SPREAD = "*"  # before the name of a column: all items of the list in it


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
        """The image's file name; DataError if the cell holds none."""
        value = self.value
        if not isinstance(value, str) or not value:
            raise DataError(
                f"{self.where}: '{self.column}' of group {self.group_id} should name an image file, got {value!r}"
            )
        return value


def stored_image(name: str, path: Path, exif: Exif, npy: Colors) -> ImageRef:
    """An image in a file of its own; a ``.npy`` file is an array with its colours in the order that ``npy`` tells."""
    if path.suffix.lower() != ".npy":
        return ImageRef(name, partial(open_image, path), path, path.read_bytes, exif)
    return ImageRef(name, partial(open_array, path, npy), None, path.read_bytes, exif, f"npy {npy};")


def groups_from_rows(
    rows: Iterable[Row],
    request: SourceRequest,
    where: str,
    image: Callable[[ImageCell], ImageRef],
    rows_per_group: int = 1,
) -> Iterator[Group]:
    """Makes groups of rows, one after the other.

    Args:
        rows: the raw data, in order.
        request: shape, columns and limit.
        where: names the data, for messages.
        image: makes an image of a cell.
        rows_per_group: how many consecutive rows are one group; each brings its share of images and captions.

    Raises:
        DataError: a cell is missing, empty or of the wrong kind; file and group are named.
        UsageError: the columns do not fit the shape.
    """
    per_row = _share(request, rows_per_group)
    _check_columns(per_row, request, rows_per_group)
    wanted = None if request.limit is None else request.limit * rows_per_group
    pending: list[Row] = []
    for row in islice(kept_rows(rows, request.columns, where), wanted):
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
    group_id = "-".join(id_of(row, columns.get("id"), where) for row in rows)
    if request.kind == "classification":
        captions = [_label(rows[0], columns["captions"][0], where, group_id)]
    else:
        captions = [text for row in rows for text in _captions(row, columns["captions"], where, group_id, per_row[1])]
    images: list[ImageRef] = []
    for row in rows:
        whole = [image(cell) for cell in _images(row, columns["images"], where, group_id, per_row[0])]
        box = box_of(row, columns["crop"], where, group_id) if columns.get("crop") else None
        images += whole if box is None else [cropped(reference, box) for reference in whole]
    tags = [tags_of(row, columns.get("tags", ()), where) for row in rows]
    for column, value in (item for other in tags[1:] for item in other.items()):
        if value != tags[0][column]:
            raise DataError(
                f"{where}: rows {rows[0].index} to {rows[-1].index} should be one group, but their '{column}' differs: "
                f"{tags[0][column]!r} and {value!r}"
            )
    return Group(group_id, tuple(images), tuple(captions), tags[0])


def _label(row: Row, column: str, where: str, group_id: str) -> str:
    """The class of an image as text: a number, or a name."""
    value = value_of(row, column, where)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise DataError(
            f"{where}: '{column}' of group {group_id} should be the number or the name of a class, got {value!r:.80}"
        )
    return str(value)


def _captions(row: Row, columns: str | Sequence[str], where: str, group_id: str, count: int | None) -> list[str]:
    """The captions of one column's list, or of several columns; of ``*column``, all captions of the list in it."""
    if isinstance(columns, str):
        values = _listed(row, columns, where, group_id, count, "captions")
        named = [(f"{columns}[{index}]", value) for index, value in enumerate(values)]
    else:
        named = []
        for column in columns:
            name = column.removeprefix(SPREAD)
            value = cell(row, name, where)
            if name == column:
                named.append((name, value))
            elif not isinstance(value, list):
                raise DataError(
                    f"{where}: '{name}' of group {group_id} should hold a list of captions, got {value!r:.80}"
                )
            else:
                named += [(f"{name}[{index}]", text) for index, text in enumerate(value)]
        if len(named) != count:
            raise DataError(f"{where}: group {group_id} has {len(named)} captions, but {count} are needed")
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


def _check_columns(per_row: tuple[int, int | None], request: SourceRequest, rows_per_group: int) -> None:
    images, captions = request.columns["images"], request.columns["captions"]
    if request.kind != "groups":
        what = "captions" if request.kind == "retrieval" else "label"
        if not captions or (not isinstance(images, str) and len(images) != 1):
            raise UsageError(f"group.images should name one column, and group.{what} is needed (kind: {request.kind})")
        return
    lists = isinstance(captions, str) or any(column.startswith(SPREAD) for column in captions)  # a list tells how many
    if (not isinstance(images, str) and len(images) != per_row[0]) or (not lists and len(captions) != per_row[1]):
        counts = ("a list in one" if isinstance(names, str) else str(len(names)) for names in (images, captions))
        share = f"; each of {rows_per_group} rows brings {per_row[0]} and {per_row[1]}" if rows_per_group > 1 else ""
        raise UsageError(
            f"group.images and group.captions name {' and '.join(counts)} columns, but group.shape is {request.shape}"
            f"{share}"
        )


def box_of(row: Row, columns: Sequence[str], where: str, group_id: str) -> Box:
    """The box that a row tells: left, upper, right and lower edge. It may reach beyond the image.

    ``columns`` hold its left edge, upper edge, width and height in pixels, rounded as Pillow does. DataError if a cell
    holds no number, or the box holds no pixel.
    """
    numbers = []
    for column in columns:
        value = cell(row, column, where)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not abs(number) <= _FARTHEST:
            raise DataError(f"{where}: '{column}' of group {group_id} is {value!r:.80}, no number of pixels")
        numbers.append(number)
    left, top, width, height = numbers
    box = (round(left), round(top), round(left + width), round(top + height))
    if box[2] <= box[0] or box[3] <= box[1]:
        raise DataError(f"{where}: the crop box of group {group_id} is {width:g}x{height:g} pixels, so it holds none")
    return box


def cropped(image: ImageRef, box: Box) -> ImageRef:
    """The part of an image inside a box, with a name of its own. What lies outside the image is black.

    The box is in pixels of the image as it is read: turned upright, unless its EXIF data are ignored.
    """
    left, top, right, bottom = box
    name = f"{image.name}[{left},{top},{right - left},{bottom - top}]"
    variant = f"{image.variant}crop {left},{top},{right},{bottom};"
    return ImageRef(name, partial(_crop, image, box), None, image.read, image.exif, variant)


def _crop(image: ImageRef, box: Box) -> Image:
    """The part as an RGB image; ``info["padded"]`` is set where the box reaches beyond the image."""
    check_size((box[2] - box[0], box[3] - box[1]))
    whole = as_rgb(image.open(), turn=image.exif == "apply")
    part = whole.crop(box)
    if box[0] < 0 or box[1] < 0 or box[2] > whole.width or box[3] > whole.height:
        part.info["padded"] = True
    return part
