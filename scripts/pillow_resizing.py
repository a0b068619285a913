"""Compares the resized pixels of several versions of Pillow, of `ttmbench._util.images.resized`, and of torchvision.

    python scripts/pillow_resizing.py 10.3.0 10.4.0 11.3.0 12.3.0 13.0.0

Installs each version into a temporary folder (needs a network), resizes the same generated images with each, bicubic,
and prints a table: how many of 100 bytes differ from the pixels of the first version, and by how many levels at most.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SIZES = {"landscape": (500, 333), "square": (512, 512), "portrait 3:4": (480, 640), "portrait 2:3": (333, 500)}
SIZES |= {"portrait 3:8": (300, 800), "small portrait": (150, 200)}
SIDE = 224


def images() -> Iterator[tuple[str, np.ndarray]]:
    """Name and pixels: the spectrum of photos (1/f), noise, and a gradient, in each size."""
    rng = np.random.default_rng(0)
    for name, (width, height) in SIZES.items():
        frequency = np.hypot(np.fft.fftfreq(height)[:, None, None], np.fft.rfftfreq(width)[None, :, None])
        phase = np.exp(2j * np.pi * rng.random((height, width // 2 + 1, 3)))
        photo = np.fft.irfft2(phase / np.maximum(frequency, 1 / max(width, height)), s=(height, width), axes=(0, 1))
        rows, columns = np.mgrid[:height, :width]
        gradient = np.stack([255 * columns / width, 255 * rows / height, 255 - 255 * columns / width], axis=-1)
        yield f"{name} | 1/f", (128 + 50 * photo / photo.std()).clip(0, 255).astype(np.uint8)
        yield f"{name} | noise", rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        yield f"{name} | gradient", gradient.astype(np.uint8)


def resize_all(version: str) -> dict[str, np.ndarray]:
    """Every image as a square, and with a short side of the same length: by Pillow, torchvision or ttmbench."""
    import torch
    from PIL import Image
    from torchvision.transforms.v2 import InterpolationMode, functional

    from ttmbench._util.images import resized

    def one(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
        if version == "torchvision":
            tensor = torch.from_numpy(pixels).permute(2, 0, 1)
            smaller = functional.resize(tensor, [height, width], InterpolationMode.BICUBIC, antialias=True)
            return smaller.permute(1, 2, 0).numpy()
        image, bicubic = Image.fromarray(pixels), Image.Resampling.BICUBIC
        by = resized if version == "ttmbench" else Image.Image.resize
        return np.asarray(by(image, (width, height), bicubic))

    found = {}
    for name, pixels in images():
        height, width = pixels.shape[:2]
        short = min(width, height)
        found[f"{name} | square"] = one(pixels, SIDE, SIDE)
        found[f"{name} | short side"] = one(pixels, SIDE * width // short, SIDE * height // short)
    return found


def in_another_process(version: str, folder: Path, pillow: str | None) -> dict[str, np.ndarray]:
    """`resize_all` with a version of Pillow; None for the one that is installed."""
    environment, file = dict(os.environ), folder / f"{version}.npz"
    if pillow is not None:
        target = folder / pillow
        if not target.exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
            subprocess.run([*install, f"pillow=={pillow}"], check=True)
        environment["PYTHONPATH"] = str(target)
    subprocess.run([sys.executable, __file__, "--write", version, str(file)], check=True, env=environment)
    with np.load(file) as arrays:
        return dict(arrays)


def main(words: list[str]) -> None:
    """Prints the table."""
    if words[:1] == ["--write"]:
        np.savez(words[2], **resize_all(words[1]))  # type: ignore[arg-type]
        return
    with tempfile.TemporaryDirectory() as name:
        found = {version: in_another_process(version, Path(name), version) for version in words}
        for other, pillow in (("ttmbench", words[-1]), ("torchvision", None)):
            found[other] = in_another_process(other, Path(name), pillow)
    first = found.pop(words[0])
    print(f"| image | pixels | to | {' | '.join(found)} |\n{'|---' * (len(found) + 3)}|")
    for name, pixels in first.items():
        cells = []
        for one in found.values():
            levels = np.abs(one[name].astype(int) - pixels)
            cells.append(f"{100 * (levels > 0).mean():.2f} ({levels.max()})" if levels.any() else "0")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
