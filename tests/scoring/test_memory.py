"""A task's images need not fit in memory: they are open one batch at a time, and kept small and as bytes."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from PIL import Image

from ttmbench.scoring import fingerprint
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.pairs import score_task_pairs
from ttmbench.scoring.prepare import prepare
from ttmbench.types import Group, ImageRef

BATCH = 8
SIDE = 256


class OpenedImages:
    """Images of 256 pixels a side, counted while they are in memory."""

    def __init__(self, monkeypatch) -> None:
        self.alive = self.most = self.opened = 0
        real = fingerprint.open_upright

        def counted(image: ImageRef, group_id: str) -> Image.Image:
            return self._count(real(image, group_id))

        monkeypatch.setattr(fingerprint, "open_upright", counted)

    def open(self, index: int) -> Image.Image:
        self.opened += 1
        return Image.new("RGB", (SIDE, SIDE), (index % 256, index // 256, 7))

    def _count(self, image: Image.Image) -> Image.Image:
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(image, self._gone)
        return image

    def _gone(self) -> None:
        self.alive -= 1

    def groups(self, count: int) -> list[Group]:
        from functools import partial

        return [
            Group(
                f"g{index}", (ImageRef(f"{index}.png", partial(self.open, index)),), (f"a red circle {index}", "a dog")
            )
            for index in range(count)
        ]


@pytest.fixture
def opened_images(monkeypatch) -> OpenedImages:
    return OpenedImages(monkeypatch)


@pytest.mark.parametrize("enlarge", [None, 1.2])
def test_preparing_never_holds_more_than_a_batch_of_decoded_images(opened_images, tiny_siglip, enlarge):
    from ttmbench.model_adapters.hf import load

    adapter = load(pretrained=str(tiny_siglip), device="cpu")
    groups = opened_images.groups(10 * BATCH)
    prepared, fingerprint = prepare(adapter, groups, BATCH, enlarge)
    assert opened_images.opened == 10 * BATCH and len(fingerprint) == 64
    assert 0 < opened_images.most <= BATCH and opened_images.alive == 0
    pixels = prepared.images["pixel_values"]
    assert str(pixels.dtype) == "torch.uint8" and pixels.shape == (10 * BATCH, 3, 32, 32), (
        "the model's own size, as bytes"
    )


def test_scoring_pair_by_pair_holds_a_batch_or_two(opened_images):
    class Brightness:
        def score_pairs(self, images, captions):
            return np.array(
                [image.getpixel((0, 0))[0] + len(text) for image, text in zip(images, captions, strict=True)]
            )

    score_task_pairs(Capabilities(Brightness()), opened_images.groups(5 * BATCH), BATCH, all_pairs=False)
    assert opened_images.opened == 5 * BATCH and opened_images.most <= 2 * BATCH and opened_images.alive <= 1
