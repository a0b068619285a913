"""Groups made of rows with named cells, wherever the rows come from. Every cell that is used is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from ttmbench._util.images import Colors, as_rgb, check_size, open_array, open_image
from ttmbench.data.cells import Picks, Row, check_picked, kept_rows, picked
from ttmbench.data.video import Video, stored_video
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Exif, Group, ImageRef, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]
_FARTHEST = 1_000_000  # pixels; no image is as large
SPREAD = "*"  # before the name of a column of captions or images: all items of the list in it


@dataclass(frozen=True)
class ImageCell:
    """An image as a row names it; ``item``: its position where the column holds a list."""

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


def stored_image(name: str, path: Path, exif: Exif, npy: Colors, video: Video | None = None) -> ImageRef:
    """An image in its own file, or a video where a task has these; ``npy``: order of colours in a ``.npy`` array."""
    if video is not None:
        return stored_video(name, path, video)
    if path.suffix.lower() != ".npy":
        return ImageRef(name, partial(open_image, path), path, path.read_bytes, exif)
    return ImageRef(name, partial(open_array, path, npy), None, path.read_bytes, exif, f"npy {npy};")


def groups_from_rows(
    rows: Iterable[Row], request: SourceRequest, image: Callable[[ImageCell], ImageRef], rows_per_group: int = 1
) -> Iterator[Group]:
    """Makes groups of rows, one after the other.

    Args:
        rows: the raw data, in order.
        request: shape, columns and limit.
        image: makes an image of a cell.
        rows_per_group: how many consecutive rows are one group; each brings its part of images and captions.

    Raises:
        DataError: a cell is missing, empty or of the wrong kind; file and group are named.
        UsageError: the columns do not fit the shape.
    """
    per_row = _per_row(request, rows_per_group)
    _check_columns(per_row, request, rows_per_group)
    wanted = None if request.limit is None else request.limit * rows_per_group
    picks = TypeAdapter(Picks).validate_python(request.columns.get("pick") or {})
    pending: list[Row] = []
    for row in islice(kept_rows(rows, request.columns), wanted):
        pending.append(picked(row, picks) if picks else row)
        if len(pending) == rows_per_group:
            if rows_per_group > 1:
                check_picked(pending, picks)
            yield _group(pending, request, image, per_row)
            pending = []
    if pending:
        raise DataError(
            f"{pending[0].where}: {rows_per_group} rows make a group, but {len(pending)} remain at the end, "
            f"from row {pending[0].index}"
        )


def _group(
    rows: Sequence[Row],
    request: SourceRequest,
    image: Callable[[ImageCell], ImageRef],
    per_row: tuple[int, int | None],
) -> Group:
    columns = request.columns
    group_id = "-".join(row.group_id(columns.get("id")) for row in rows)
    if request.kind == "classification":
        captions = [_label(rows[0], columns["captions"][0], group_id)]
    else:
        captions = [text for row in rows for text in _captions(row, columns["captions"], group_id, per_row[1])]
    images: list[ImageRef] = []
    for row in rows:
        references = [image(cell) for cell in _images(row, columns["images"], group_id, per_row[0])]
        if columns.get("crop"):
            box = box_of(row, columns["crop"], group_id)
            references = [cropped(reference, box) for reference in references]
        images += references
    tags = [row.tags(columns.get("tags", ())) for row in rows]
    for column, value in (item for other in tags[1:] for item in other.items()):
        if value != tags[0][column]:
            raise DataError(
                f"{rows[0].where}: rows {rows[0].index} to {rows[-1].index} should be one group, but their '{column}' "
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


def _captions(row: Row, columns: str | Sequence[str], group_id: str, count: int | None) -> list[str]:
    """The captions of one column's list, or of several columns; of ``*column``, all captions of the list in it."""
    named: list[tuple[str, object]] = []
    for column in [SPREAD + columns] if isinstance(columns, str) else columns:
        name = column.removeprefix(SPREAD)
        value = row.cell(name)
        if name == column:
            named.append((name, value))
        elif not isinstance(value, list):
            where = _named(row, name, group_id)
            raise DataError(f"{where} must hold a list of captions, got {value!r:.80}")
        else:
            named += [(f"{name}[{index}]", text) for index, text in enumerate(value)]
    if isinstance(columns, str):
        _check_length(len(named), row, columns, group_id, count, "captions")
    elif len(named) != count:
        raise DataError(f"{row.where}: group {group_id} has {len(named)} captions, but {count} are needed")
    for column, value in named:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{row.where}: caption '{column}' of group {group_id} is empty or no text")
    return [str(value) for _, value in named]


def _images(row: Row, columns: str | Sequence[str], group_id: str, count: int) -> list[ImageCell]:
    """The images of one column's list, or of several columns; of ``*column``, all images of the list in it."""
    if not isinstance(columns, str):
        cells: list[ImageCell] = []
        for column in columns:
            name = column.removeprefix(SPREAD)
            items: Sequence[int | None] = [None]
            if name != column:
                value = row.cell(name)
                if not isinstance(value, list):
                    raise DataError(f"{_named(row, name, group_id)} must hold a list of images, got {value!r:.80}")
                items = range(len(value))
            cells += [ImageCell(row, name, item, group_id) for item in items]
        if len(cells) != count:
            raise DataError(f"{row.where}: group {group_id} has {len(cells)} images, but {count} are needed")
        return cells
    value = row.cells.get(columns)
    if isinstance(value, list):
        _check_length(len(value), row, columns, group_id, count, "images")
    elif columns in row.cells and count > 1:
        raise DataError(f"{_named(row, columns, group_id)} must hold {count} images in a list")
    return [ImageCell(row, columns, index, group_id) for index in range(count)]


def _check_length(length: int, row: Row, column: str, group_id: str, count: int | None, what: str) -> None:
    if length != (count or max(1, length)):
        raise DataError(f"{_named(row, column, group_id)} holds {length} {what}, but {count or 'some'} are needed")


def _per_row(request: SourceRequest, rows_per_group: int) -> tuple[int, int | None]:
    """Images and captions of each row; None for any number of captions."""
    shape = request.shape
    if request.kind != "groups":
        if rows_per_group > 1:
            raise UsageError(f"source.rows_per_group: a task of kind {request.kind} has one row an image")
        return 1, None
    if shape.images % rows_per_group or shape.captions % rows_per_group:
        raise UsageError(f"source.rows_per_group: {rows_per_group} rows cannot share a {shape} group evenly")
    return shape.images // rows_per_group, shape.captions // rows_per_group


def _check_columns(per_row: tuple[int, int | None], request: SourceRequest, rows_per_group: int) -> None:
    images, captions = request.columns["images"], request.columns["captions"]
    if request.kind != "groups":
        what = "captions" if request.kind == "retrieval" else "label"
        if not captions or (not isinstance(images, str) and len(images) != 1):
            raise UsageError(f"group.images should name one column, and group.{what} is needed (kind: {request.kind})")
        return
    fixed = [
        (names, count)
        for names, count in ((images, per_row[0]), (captions, per_row[1]))
        if not isinstance(names, str) and not any(column.startswith(SPREAD) for column in names)
    ]
    if any(len(names) != count for names, count in fixed):
        counts = ("a list in one" if isinstance(names, str) else str(len(names)) for names in (images, captions))
        share = f"; each of {rows_per_group} rows brings {per_row[0]} and {per_row[1]}" if rows_per_group > 1 else ""
        raise UsageError(
            f"group.images and group.captions name {' and '.join(counts)} columns, but group.shape is {request.shape}"
            f"{share}"
        )


def box_of(row: Row, columns: Sequence[str], group_id: str) -> Box:
    """The crop box of a row: left, upper, right and lower edge in pixels. It may reach beyond the image.

    ``columns`` hold its left edge, upper edge, width and height, which are rounded as Pillow does. DataError if a cell
    holds no number, or the box holds no pixel.
    """
    numbers = []
    for column in columns:
        value = row.cell(column)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not abs(number) <= _FARTHEST:
            raise DataError(f"{_named(row, column, group_id)} is {value!r:.80}, not a number of pixels")
        numbers.append(number)
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
    """The part as an RGB image; ``info["padded"]`` is set where the box reaches beyond the image."""
    check_size((box[2] - box[0], box[3] - box[1]))
    whole = as_rgb(image.open(), turn=image.exif == "apply")
    part = whole.crop(box)
    if box[0] < 0 or box[1] < 0 or box[2] > whole.width or box[3] > whole.height:
        part.info["padded"] = True
    return part
