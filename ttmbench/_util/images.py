"""Images: opened safely, converted to RGB, opened lazily, resized, joined."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ttmbench._util.file_io import IS_POINTER, POINTER, limit, raised_by
from ttmbench.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


Colors = Literal["rgb", "bgr"]


class BadImage(DataError):
    """An image that is refused; the message does not name it."""


FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

_START_OF_SCAN = b"\xff\xda"
_BITS = "bits_of_samples"  # key of an opened image's info: bits in its file, where Pillow's mode has 8 or 16
_FRAMES = "frames"  # key of an opened video's info: how many frames lie below one another
_MOST_OF_12_BITS = 4095
_BITS_PER_SAMPLE = 258  # tag of a TIFF
KEPT = 4  # decoded images that an opener may cache, as many as a group has


def open_image(file: Path | io.BytesIO) -> Image:
    """Opens and decodes an image as stored, neither turned nor converted, and closes its file.

    Only raster formats are tried, none of which starts another program. Of an animated image the first frame is read.
    BadImage if it is too large, of another format, or cannot be decoded.
    """
    from PIL import Image, UnidentifiedImageError

    content = _content(file)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            check_size(image.size)
            if image.format in ("JPEG", "MPO"):
                # Each takes the time of a whole image. Inside one its first byte never stands before its second.
                scans = content.count(_START_OF_SCAN)
                if scans > (most := limit("jpeg_scans")):
                    raise BadImage(f"it has {scans} scans, more than {most}; {raised_by('jpeg_scans')}")
            image.load()
    except UnidentifiedImageError:
        raise BadImage(f"it is not an image of a known format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError as error:
        raise BadImage(f"it is too large: {error}") from None
    # Pillow returns the upper 8 bits of colours of 16, and 12 bits as 16. A PNG begins with a header that states them.
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))[0] if image.format == "TIFF" else 8
    image.info[_BITS] = content[24] if image.format == "PNG" else int(bits)
    return image


def _content(file: Path | io.BytesIO) -> bytes:
    size = file.stat().st_size if isinstance(file, Path) else file.getbuffer().nbytes
    if size > limit("image_bytes"):
        raise BadImage(f"it has {size} bytes, more than {limit('image_bytes')}; {raised_by('image_bytes')}")
    content = file.read_bytes() if isinstance(file, Path) else file.getvalue()
    if content.startswith(POINTER):
        raise BadImage(f"it {IS_POINTER}")
    return content


def open_array(file: Path, colors: Colors) -> Image:
    """Opens an ``.npy`` array [height, width, 3] of bytes as an RGB image; BadImage if it is not one, or too large."""
    from PIL import Image as Pillow

    from ttmbench._util.arrays import read_npy

    try:
        pixels = read_npy(_content(file))
    except Exception as error:  # numpy raises many kinds
        raise BadImage(f"it is not an array of an image ({' '.join(str(error).split())[:200]})") from None
    if pixels.dtype != "uint8" or pixels.shape[2:] != (3,):
        raise BadImage(f"it holds {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, 3]")
    check_size((pixels.shape[1], pixels.shape[0]))
    return Pillow.fromarray(pixels if colors == "rgb" else pixels[:, :, ::-1].copy())


def check_size(size: tuple[int, int]) -> None:
    """BadImage for a width and height in pixels that are empty or would fill the memory when decoded or scaled."""
    width, height = size
    if width < 1 or height < 1:
        raise BadImage(f"it has no pixels ({width}x{height})")
    if width * height > limit("image_pixels"):
        raise BadImage(
            f"it has {width}x{height} pixels, more than {limit('image_pixels')}; {raised_by('image_pixels')}"
        )
    if max(size) > limit("image_aspect") * min(size):
        raise BadImage(
            f"it is a strip of {width}x{height} pixels: one side is more than {limit('image_aspect')} times the "
            f"other; {raised_by('image_aspect')}"
        )


def as_rgb(image: Image, turn: bool = True) -> Image:
    """An image as RGB, turned upright by its EXIF orientation if ``turn``.

    Transparency is dropped, keeping the colours below it. 16-bit grey is divided by 256, 12-bit grey of a TIFF by 16.
    BadImage if its pixels are 32-bit numbers, or have 16 bits and use 12 of them.
    """
    import numpy as np
    from PIL import Image as Pillow
    from PIL import ImageOps

    check_size((image.width, image.height // image.info.get(_FRAMES, 1)))
    upright = ImageOps.exif_transpose(image) if turn else image
    is_deep = upright.mode.startswith("I;16")
    bits = image.info.get(_BITS, 16 if is_deep else 8)
    if bits == 16:
        _check_uses_16_bits(upright)
    if is_deep:
        return Pillow.fromarray((np.asarray(upright) >> (bits - 8)).astype(np.uint8)).convert("RGB")
    if upright.mode in ("I", "F"):
        raise BadImage(f"its pixels are 32-bit numbers (mode {upright.mode}), which are not colours")
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return upright.convert("RGB")


def _check_uses_16_bits(image: Image) -> None:
    """Refuses samples of 12 bits that were not scaled to 65535, the white of PNG and TIFF: they are nearly black."""
    import numpy as np

    samples = np.asarray(image)
    colours = samples[..., :-1] if image.mode in ("LA", "RGBA") else samples
    largest = int(colours.max()) << (0 if image.mode.startswith("I;16") else 8)
    if 0 < largest <= _MOST_OF_12_BITS:
        raise BadImage(
            f"it has 16 bits a sample and no sample is above {_MOST_OF_12_BITS}, so it would be nearly black: if its "
            "samples have 12 bits, multiply them by 16, or save it with 8 bits"
        )


class LazyImages(Sequence["Image"]):
    """A sequence of images that ``open_image`` opens by name, or by what else tells them, whenever they are used."""

    def __init__(self, names: Sequence[Any], open_image: Callable[[Any], Image]) -> None:
        self._names, self._open = names, open_image

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> LazyImages: ...
    def __getitem__(self, index: int | slice) -> Image | LazyImages:
        if isinstance(index, slice):
            return LazyImages(self._names[index], self._open)
        return self._open(self._names[index])


def resized(image: Image, size: tuple[int, int], resample: int) -> Image:
    """Resizes an image of any mode, first its rows, then its columns: the same pixels with every version of Pillow.

    Up to 12.3, Pillow's ``resize`` does the same. From 13 it starts with the columns if the height shrinks much more
    than the width, which rounds other numbers: a quarter of the bytes of such a portrait differ.
    """
    if image.mode not in ("RGBA", "LA"):  # these are multiplied by their alpha, and rounded, in each call
        image = image.resize((size[0], image.height), resample)
    return image.resize(size, resample)


def stacked(frames: Sequence[Image]) -> Image:
    """The frames of a video, RGB, below one another in one image that knows their number; BadImage if sizes differ."""
    import numpy as np
    from PIL import Image as Pillow

    sizes = list(dict.fromkeys(frame.size for frame in frames))
    if len(sizes) > 1:
        raise BadImage(f"its frames differ in size: {' and '.join(f'{w}x{h}' for w, h in sizes[:2])}")
    joined = Pillow.fromarray(np.concatenate([np.asarray(frame) for frame in frames]))
    joined.info[_FRAMES] = len(frames)
    return joined


def frames_in(image: Image) -> int:
    """How many frames of a video an opened image holds, below one another; 1 for an image."""
    return int(image.info.get(_FRAMES, 1))


def frames_of(image: Image) -> list[Image]:
    """The frames of a video that was opened as one image; of an image, the image itself."""
    height = image.height // (frames := frames_in(image))
    boxes = [(0, height * at, image.width, height * (at + 1)) for at in range(frames)]
    return [image] if frames == 1 else [image.crop(box) for box in boxes]


def about_frames(frames: int) -> str:
    """What a question says first where its images are frames of a video; empty for one image.

    >>> about_frames(8)
    'The 8 images are frames of a video, in order. '
    """
    return f"The {frames} images are frames of a video, in order. " if frames > 1 else ""


def frames_of_videos(names: Sequence[str], open_video: Callable[[str], Image], frames: int) -> LazyImages:
    """The frames of several videos, one video after the other, each opened when a frame of it is used."""
    places = [(name, at) for name in names for at in range(frames)]
    return LazyImages(places, lambda place: frames_of(open_video(place[0]))[place[1]])


def side_by_side(images: Sequence[Image]) -> Image:
    """Joins RGB images from left to right, scaled to the height of the highest."""
    import numpy as np
    from PIL import Image as Pillow

    height = max(image.height for image in images)
    scaled = [
        image
        if image.height == height
        else image.resize((max(1, round(image.width * height / image.height)), height), Pillow.Resampling.BICUBIC)
        for image in images
    ]
    return Pillow.fromarray(np.hstack([np.asarray(image) for image in scaled]))
