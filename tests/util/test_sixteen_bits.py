"""Images of more than 8 bits a sample: what is scaled, and what would be nearly black and is refused."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ttmbench._util.images import BadImage, as_rgb, open_image

CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # colour type of a PNG -> samples a pixel


def png16(samples: np.ndarray) -> bytes:
    """A PNG of 16 bits from [height, width, channels]; Pillow writes grey ones alone."""
    height, width, channels = samples.shape
    kind = next(kind for kind, count in CHANNELS.items() if count == channels)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n"
    for name, body in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        found += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return found


def tiff12(samples: np.ndarray) -> bytes:
    """A grey TIFF of 12 bits a sample from [height, width]."""
    height, width = samples.shape
    rows = ["".join(f"{value:012b}" for value in row) for row in samples]
    data = b"".join(int(row.ljust(-(-len(row) // 8) * 8, "0"), 2).to_bytes(-(-len(row) // 8), "big") for row in rows)
    data += b"\0" * (len(data) % 2)
    tags = [(256, width), (257, height), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, height)]
    tags.append((279, len(data)))
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    start = struct.pack("<I", 8 + len(data))
    return b"II*\0" + start + data + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)


def rgb(content: bytes) -> np.ndarray:
    return np.asarray(as_rgb(open_image(io.BytesIO(content))))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_samples_of_a_png_reach_to_65535_or_are_refused(channels):
    """Of 12 bits that were not scaled it would be nearly black: 4095 of 65535 is a level of 15."""
    samples = np.zeros((2, 3, channels), np.uint16)
    samples[:, :, -1] = 65535 if channels in (2, 4) else 0
    assert not rgb(png16(samples)).any(), "black is black"
    for largest in (256, 4095):
        samples[1, 2, 0] = largest
        with pytest.raises(BadImage, match=r"16 bits.*no sample is above 4095.*multiply them by 16"):
            rgb(png16(samples))
    samples[:, :, -1] = 65535
    samples[0, :, 0] = [256, 256 * 100, 65535]
    assert rgb(png16(samples))[0, :, 0].tolist() == [1, 100, 255]


def test_a_tiff_of_12_bits_says_so_and_reaches_to_4095():
    found = rgb(tiff12(np.array([[0, 16, 1600, 4095], [0, 0, 0, 0]])))
    assert found[:, :, 1].tolist() == [[0, 1, 100, 255], [0, 0, 0, 0]]
    assert rgb(tiff12(np.array([[15 * 16]]))).tolist() == [[[15, 15, 15]]]


def test_a_dark_tiff_of_16_bits_is_refused():
    content = io.BytesIO()
    Image.fromarray(np.full((2, 2), 4000, np.uint16)).save(content, "TIFF")
    with pytest.raises(BadImage, match="no sample is above 4095"):
        rgb(content.getvalue())
