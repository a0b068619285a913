"""Images as they are sent to a chat model."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttmbench._util.images import resized

if TYPE_CHECKING:
    from PIL.Image import Image

JPEG_QUALITY = 95


@dataclass(frozen=True)
class ImageStyle:
    """How images are sent: longest side, format (``jpeg`` with full colour resolution, or ``png``) and detail."""

    size: int | None = 512
    format: str = "jpeg"
    detail: str | None = "high"

    def describe(self) -> dict[str, object]:
        """Entries of fingerprints and of the keys of stored answers."""
        quality = {"quality": JPEG_QUALITY, "subsampling": "4:4:4"} if self.format == "jpeg" else {}
        return {
            "longest_side": self.size,
            "resampling": "lanczos" if self.size else None,
            "format": self.format,
            **quality,
            "detail": self.detail,
        }

    def sent_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height of an image when it is sent: larger ones are made smaller.

        >>> ImageStyle(size=512).sent_size((1024, 768)), ImageStyle(size=512).sent_size((100, 50))
        ((512, 384), (100, 50))
        """
        longest = max(size)
        if self.size is None or longest <= self.size:
            return size
        return max(1, round(size[0] * self.size / longest)), max(1, round(size[1] * self.size / longest))

    def part(self, image: Image) -> dict[str, object]:
        """The image as a part of a chat message."""
        from PIL import Image as Pillow

        size = self.sent_size(image.size)
        sent = image if size == image.size else resized(image, size, Pillow.Resampling.LANCZOS)
        buffer = io.BytesIO()
        options: dict[str, int] = {"quality": JPEG_QUALITY, "subsampling": 0} if self.format == "jpeg" else {}
        sent.convert("RGB").save(buffer, self.format.upper(), **options)
        url = f"data:image/{self.format};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
        return {"type": "image_url", "image_url": {"url": url, **({"detail": self.detail} if self.detail else {})}}


def image_digest(image: Image) -> str:
    """sha256 of size and pixels: the same for every file format that decodes to them."""
    head = f"{image.width}x{image.height}:{image.mode}:".encode()
    return hashlib.sha256(head + image.tobytes()).hexdigest()


def image_tokens(size: tuple[int, int], detail: str | None) -> int:
    """About how many tokens an image costs, by the rule of GPT-4o and GPT-4.1: 85, and 170 for each tile of 512 px.

    >>> image_tokens((512, 512), "high"), image_tokens((1024, 1024), "high"), image_tokens((1024, 1024), "low")
    (255, 765, 85)
    """
    if detail == "low":
        return 85
    width, height = size
    shrink = min(1.0, 2048 / max(width, height))
    shrink = min(shrink, 768 / min(width, height))
    return 85 + 170 * math.ceil(width * shrink / 512) * math.ceil(height * shrink / 512)
