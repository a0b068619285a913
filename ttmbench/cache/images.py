"""Prepared images by the digests of file and preprocessing, up to a size; those not used for longest go first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from ttmbench.cache.entry import ENDING, Entry
from ttmbench.cache.location import PREPARED
from ttmbench.cache.pixels import reading_digest
from ttmbench.types import ImageRef

if TYPE_CHECKING:
    from ttmbench.protocols import Batch

_ALONE, _NAMED = "tensor", "tensors."  # a prepared image is one tensor, or several by name
_DTYPES = {torch.uint8, torch.int32, torch.int64, torch.float32, torch.bool}
_ROOM = 0.9  # of the limit, after making room


class PreparedImageCache:
    """Prepared images of one way of preprocessing; a `ttmbench.scoring.image_rows.PreparedImages`.

    Args:
        folder: of the cache.
        key: sha256 of everything that changes a prepared image, the decoders included.
        limit: bytes that all prepared images may take.
        read: reads a file of the cache.
        write: writes one.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        limit: int,
        read: Callable[[Path, Callable[[Entry], str | None]], Entry | None],
        write: Callable[[Path, Entry], bool],
    ) -> None:
        self._folder, self._key, self._limit = folder, key, limit
        self._read, self._write = read, write
        self._written = 0

    def get(self, image: ImageRef) -> tuple[Batch, str] | None:
        """A prepared image as one row, and the digest of its pixels; None if it is not there."""
        file = _file(image)
        if file is None:
            return None
        path = self._path(file)
        entry = self._read(path, lambda entry: self._wrong(entry, file))
        if entry is None:
            return None
        with suppress(OSError):
            os.utime(path)
        rows = {name: torch.from_numpy(values) for name, values in entry.arrays.items()}
        row = rows[_ALONE] if _ALONE in rows else {name.removeprefix(_NAMED): rows[name] for name in rows}
        return row, entry.about["pixels"]

    def put(self, image: ImageRef, row: Batch, pixels: str) -> None:
        """Keeps a prepared image, if it has a file and is made of tensors.

        Args:
            image: the image.
            row: what it was prepared to.
            pixels: digest of its decoded pixels.
        """
        arrays = _arrays(row)
        file = _file(image) if arrays else None
        if file is None or arrays is None:
            return
        about = {"kind": "image", "key": self._key, "file": file, "pixels": pixels}
        if self._write(self._path(file), Entry(about, arrays)):
            self._written += 1

    def evict(self) -> None:
        """Removes the images that were used least recently, if all together are over the limit."""
        if self._written:
            self._written = 0
            evict(self._folder, self._limit)

    def _path(self, file: str) -> Path:
        return self._folder / PREPARED / self._key[:32] / file[:2] / f"{file}{ENDING}"

    def _wrong(self, entry: Entry, file: str) -> str | None:
        about = entry.about
        if (about.get("kind"), about.get("key"), about.get("file")) != ("image", self._key, file):
            return "it is another image"
        if not entry.arrays or any(values.shape[:1] != (1,) for values in entry.arrays.values()):
            return "it is no single row"
        return None


def evict(folder: Path, limit: int) -> None:
    """Removes prepared images until they take nine tenths of the limit, if they take more than it.

    Args:
        folder: of the cache.
        limit: in bytes.
    """
    found: list[tuple[float, int, Path]] = []
    for path in (folder / PREPARED).glob(f"*/*/*{ENDING}"):
        if any(one.is_symlink() for one in (path, *path.parents[:3])):
            continue
        with suppress(OSError):
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    with suppress(OSError, Timeout), FileLock(folder / ".lock", timeout=0):
        for _, size, path in sorted(found):
            if total <= _ROOM * limit:
                break
            path.unlink(missing_ok=True)
            total -= size


def _arrays(row: Batch) -> dict[str, np.ndarray] | None:
    named: Mapping[str, Any] = {_ALONE: row}
    if isinstance(row, Mapping):
        named = {f"{_NAMED}{name}": tensor for name, tensor in row.items()}
    if not all(isinstance(value, torch.Tensor) and value.dtype in _DTYPES for value in named.values()):
        return None
    return {name: tensor.numpy() for name, tensor in named.items()}


def _file(image: ImageRef) -> str | None:
    try:
        digest = reading_digest(image)
    except Exception:  # whatever it is, opening the image says it properly
        return None
    return None if digest is None else digest.hex()
