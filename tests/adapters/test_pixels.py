"""Pixels normalised in parts are those normalised at once."""

from __future__ import annotations

import pytest
import torch

from ttmbench.model_adapters._shared import pixels
from ttmbench.model_adapters._shared.pixels import PixelScale, few_images


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("images", [0, 1, 5])
def test_parts_of_a_batch_have_the_bits_of_the_whole(images, form, monkeypatch):
    monkeypatch.setattr(pixels, "_AT_A_TIME", 2 * 3 * 6 * 4 + 1)  # two images a part
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(0, 256, (images, 3, 6, 4), dtype=torch.uint8, generator=generator).to(memory_format=form)
    scale = PixelScale(1 / 255, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28))
    found = scale.apply(given)
    mean, std = (torch.tensor(one)[:, None, None] for one in (scale.mean, scale.std))
    assert found.dtype == torch.float32 and found.stride() == given.stride()
    assert torch.equal(found, given.float() * (scale.rescale / std) - mean / std)


def test_an_image_that_is_larger_than_a_part_is_one():
    assert list(few_images(torch.empty(3, 3, 1000, 1000))) == [slice(0, 1), slice(1, 2), slice(2, 3)]
