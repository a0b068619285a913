"""Pixels of images as towers take them: normalised, cut out of larger ones, and cut into patches.

They are kept as uint8 and normalised on the device, at each pass; crops for augmentation are cut there too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

_AT_A_TIME = 2**19  # numbers: what is done with them one after the other stays in a processor's cache


@dataclass(frozen=True)
class PixelScale:
    """From stored pixels in 0..255 to what a tower takes: ``(pixel * rescale - mean) / std`` in each channel."""

    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [images, channels, height, width] -> float32 of the same shape, where the pixels are."""
        # Sent without blocking: an accelerator is not waited for in each step.
        mean, std = (
            torch.tensor(one)[:, None, None].to(pixels.device, non_blocking=True) for one in (self.mean, self.std)
        )
        factor, shift = self.rescale / std, mean / std
        if pixels.device.type != "cpu":
            return pixels.float().mul_(factor).sub_(shift)
        scaled = torch.empty_like(pixels, dtype=torch.float32)
        for part in few_images(pixels):
            scaled[part].copy_(pixels[part]).mul_(factor).sub_(shift)
        return scaled


def random_crop(
    enlarged: torch.Tensor | Sequence[torch.Tensor], corners: np.ndarray, size: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """Cuts a window out of every image, anywhere in it.

    Args:
        enlarged: pixels [images, channels, height, width]; or images of different sizes, each [channels, height,
            width], of which the windows alone go to the device.
        corners: where each window lies between the top left (0) and the bottom right, fractions in [0, 1) [images, 2].
        size: height and width of the window; no image is smaller.
        device: where the windows are to be.

    Returns:
        Pixels [images, channels, *size].
    """
    if not isinstance(enlarged, torch.Tensor):
        windows = []
        for image, (down, right) in zip(enlarged, corners, strict=True):
            top, left = int(down * (image.shape[1] - size[0] + 1)), int(right * (image.shape[2] - size[1] + 1))
            windows.append(image[:, top : top + size[0], left : left + size[1]])
        return torch.stack(windows).to(device, non_blocking=True)
    enlarged = enlarged.to(device, non_blocking=True)
    room = np.array([enlarged.shape[2] - size[0] + 1, enlarged.shape[3] - size[1] + 1])
    corner = torch.from_numpy((corners * room).astype(np.int64)).to(enlarged.device)
    rows = corner[:, 0, None] + torch.arange(size[0], device=enlarged.device)
    columns = corner[:, 1, None] + torch.arange(size[1], device=enlarged.device)
    image = torch.arange(len(enlarged), device=enlarged.device)
    # A slice between two index arrays moves its axis to the end.
    return enlarged[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def few_images(pixels: torch.Tensor) -> Iterator[slice]:
    """Parts of a batch [images, ...] that a processor's cache holds, for several passes over each."""
    size = max(1, _AT_A_TIME // max(1, pixels[:1].numel()))
    return (slice(start, start + size) for start in range(0, len(pixels), size))


class PatchProduct(nn.Conv2d):
    """A convolution whose windows neither overlap nor leave gaps: one matrix product of patches and weights.

    On a CPU this is faster, most of all the backward pass in bf16.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Features of every patch, [images, out, rows, columns]."""
        if input.device.type != "cpu" or input.ndim != 4:
            return super().forward(input)
        (height, width), dtype = self.kernel_size, input.dtype
        if torch.is_autocast_enabled("cpu"):  # cast before the copy below, which is slower from float32
            dtype = torch.get_autocast_dtype("cpu")
        rows, columns = input.shape[2] // height, input.shape[3] // width
        whole = input[:, :, : rows * height, : columns * width].to(dtype)
        windows = whole.reshape(*input.shape[:2], rows, height, columns, width)
        patches = windows.permute(0, 2, 4, 1, 3, 5).flatten(3)
        return functional.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def multiply_patches(model: nn.Module) -> None:
    """Turns the convolutions of a model on a CPU that cut an image into patches into a `PatchProduct`, in place."""
    for layer in model.modules():
        if (
            type(layer) is nn.Conv2d
            and layer.weight.device.type == "cpu"
            and layer.kernel_size == layer.stride != (1, 1)
            and layer.groups == 1
            and tuple(layer.dilation) == (1, 1)
            and layer.padding in ("valid", (0, 0))
        ):
            layer.__class__ = PatchProduct
