"""Pictures: opened safely and brought to one form; opened when they are taken; and two pictures as one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from ttmbench.errors import DataError
from ttmbench.limits import limit, raised_by

if TYPE_CHECKING:
    import io

    from PIL.Image import Image


class BadPicture(DataError):
    """A picture that is not read; the message says why and names no file."""


FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

KEPT = 4  # decoded pictures that an opener may keep: those of one group, say


def open_picture(file: Path | io.BytesIO) -> Image:
    """Opens and decodes a picture and closes its file.

    Raster formats alone are tried, none of which starts another program. Of an animated picture the first frame is
    read, and ``info["animated"]`` is set.

    Args:
        file: path or bytes.

    Returns:
        The picture as stored, neither turned nor converted.

    Raises:
        BadPicture: it is too large, of another format, or cannot be decoded.
    """
    from PIL import Image, UnidentifiedImageError

    size = file.stat().st_size if isinstance(file, Path) else file.getbuffer().nbytes
    if size > limit("picture_bytes"):
        raise BadPicture(f"it has {size} bytes, more than {limit('picture_bytes')}; {raised_by('picture_bytes')}")
    with warnings.catch_warnings():
        # Sizes are checked below; what else Pillow has to say of a damaged picture is no news to who only has it.
        warnings.simplefilter("ignore")
        try:
            with Image.open(file, formats=FORMATS) as picture:
                check_size(picture.size)
                picture.seek(0)
                animated = bool(getattr(picture, "is_animated", False))
                picture.seek(0)
                picture.load()
        except UnidentifiedImageError:
            raise BadPicture(f"it is no picture of a known format ({', '.join(FORMATS)})") from None
        except Image.DecompressionBombError as error:
            raise BadPicture(f"it is too large: {error}") from None
    if animated and picture.format != "MPO":  # a photograph with its preview beside it
        picture.info["animated"] = True
    return picture


def check_size(size: tuple[int, int]) -> None:
    """Refuses what would fill the memory once it is decoded or scaled.

    Args:
        size: width and height in pixels.

    Raises:
        BadPicture: no pixels, too many, or a strip.
    """
    width, height = size
    if width < 1 or height < 1:
        raise BadPicture(f"it has no pixels ({width}x{height})")
    if width * height > limit("picture_pixels"):
        raise BadPicture(
            f"it has {width}x{height} pixels, more than {limit('picture_pixels')}; {raised_by('picture_pixels')}"
        )
    if max(size) > limit("picture_aspect") * min(size):
        raise BadPicture(
            f"it is a strip of {width}x{height} pixels: one side is more than {limit('picture_aspect')} times the "
            f"other; {raised_by('picture_aspect')}"
        )


def as_rgb(picture: Image, turn: bool = True) -> Image:
    """A picture turned upright, if that is wanted, and to RGB as models take it.

    Transparency is dropped: the colours below it show. 16-bit grey is divided by 256; CMYK becomes RGB.

    Args:
        picture: as stored.
        turn: whether the orientation that its EXIF data state is followed.

    Returns:
        An RGB picture.

    Raises:
        BadPicture: its pixels are no colours (32-bit numbers).
    """
    import numpy as np
    from PIL import Image as Pillow
    from PIL import ImageOps

    check_size(picture.size)
    upright = ImageOps.exif_transpose(picture) if turn else picture
    if upright.mode.startswith("I;16"):
        values = np.asarray(upright)
        return Pillow.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if upright.mode in ("I", "F"):
        raise BadPicture(f"its pixels are 32-bit numbers (mode {upright.mode}), which are no colours")
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return upright.convert("RGB")


class LazyPictures(Sequence["Image"]):
    """A sequence of pictures that are opened when they are taken and not kept here.

    Args:
        names: of the pictures, in order.
        open_picture: name -> picture.
    """

    def __init__(self, names: Sequence[str], open_picture: Callable[[str], Image]) -> None:
        self._names, self._open = names, open_picture

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> LazyPictures: ...
    def __getitem__(self, index: int | slice) -> Image | LazyPictures:
        if isinstance(index, slice):
            return LazyPictures(self._names[index], self._open)
        return self._open(self._names[index])


def side_by_side(pictures: Sequence[Image]) -> Image:
    """Joins RGB pictures from left to right, scaled to the height of the highest; their proportions stay."""
    from PIL import Image as Pillow

    height = max(picture.height for picture in pictures)
    scaled = [
        picture
        if picture.height == height
        else picture.resize((max(1, round(picture.width * height / picture.height)), height), Pillow.Resampling.BICUBIC)
        for picture in pictures
    ]
    joined = Pillow.new("RGB", (sum(picture.width for picture in scaled), height))
    left = 0
    for picture in scaled:
        joined.paste(picture, (left, 0))
        left += picture.width
    return joined
