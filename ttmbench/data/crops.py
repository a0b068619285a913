"""The part of an image that a row's box tells, in place of the whole image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ttmbench._util.images import as_rgb, check_size
from ttmbench.data.cells import Row, cell
from ttmbench.errors import DataError
from ttmbench.types import ImageRef

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]
_FARTHEST = 1_000_000  # pixels; no image is as large


def box_of(row: Row, columns: Sequence[str], where: str, group_id: str) -> Box:
    """The box that a row tells.

    Args:
        row: the row.
        columns: of its left edge, its upper edge, its width and its height, in pixels.
        where: names the data, for messages.
        group_id: names the group.

    Returns:
        Left, upper, right and lower edge, rounded to whole pixels as Pillow does. It may reach beyond the image.

    Raises:
        DataError: a cell holds no number, or the box holds no pixel.
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
    """The part of an image inside a box.

    Args:
        image: the whole one.
        box: left, upper, right and lower edge in pixels of the image as it is read: turned upright, unless its EXIF
            data are ignored. What lies outside the image is black.

    Returns:
        An image with a name of its own.
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
