"""Resized images: the same pixels from every Pillow."""

from __future__ import annotations

import base64
import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from ttmbench._util.images import resized
from ttmbench.model_adapters._shared.options import OpenaiOptions
from ttmbench.model_adapters.api.chat import image_part

BICUBIC, LANCZOS = Image.Resampling.BICUBIC, Image.Resampling.LANCZOS
# sha256 of the pixels that `photo(...).resize(size, BICUBIC)` gives in Pillow 10.3 to 12.3. Pillow 13 gives others.
PILLOW_12 = {
    ((333, 500), (224, 224)): "f669bffbddd4b2f3f3c84c704ad1a67f91796456d4fef9ea4a8b83158addf8e1",
    ((300, 800), (224, 597)): "d6a8999cf38495e9c9dc56c1a751778f25de916ad84512490d8d060c80f0d4f8",
}


def photo(width, height):
    rows, columns = np.mgrid[:height, :width]
    noise = (np.arange(height * width * 3, dtype=np.uint32) * 2654435761 >> 24).reshape(height, width, 3)
    return Image.fromarray(((rows[..., None] * 7 + columns[..., None] * 13 + noise) % 256).astype(np.uint8))


def horizontally_first(image, size, resample):
    """Resizing one side is the same in every Pillow."""
    return image.resize((size[0], image.height), resample).resize(size, resample)


@pytest.mark.parametrize(("given", "size"), PILLOW_12)
def test_a_portrait_has_the_pixels_of_every_pillow_before_13(given, size):
    found = resized(photo(*given), size, BICUBIC)
    assert found.size == size and hashlib.sha256(found.tobytes()).hexdigest() == PILLOW_12[given, size]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA", "CMYK"])
def test_every_mode_is_resized_as_pillow_resizes_it(mode):
    image = photo(60, 40).convert(mode)  # wide: no Pillow begins with the columns
    found = resized(image, (24, 24), BICUBIC)
    assert found.mode == mode and found.tobytes() == image.resize((24, 24), BICUBIC).tobytes()


def test_an_image_for_a_server_is_resized_so():
    tall = photo(300, 800)
    asked = OpenaiOptions(model="m", image_size=512, image_format="png")
    url = image_part(tall, asked)["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert sent.tobytes() == horizontally_first(tall, (192, 512), LANCZOS).tobytes()
