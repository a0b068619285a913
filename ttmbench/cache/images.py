"""Images that were decoded or prepared before, by the digest of their files and of how these are read.

Digests of decoded images lie in one file a task. Prepared images take up to a limit; the least recently used go first.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from ttmbench.cache.entry import ENDING, PIXELS, PREPARED, Arrays, DamagedError, Header, Store
from ttmbench.cache.key import decoder
from ttmbench.protocols import Batch
from ttmbench.types import ImageRef

_SIZE = 32  # bytes of a sha256
_TABLE = "pictures"  # what files of digests have called it from the first on
_ALONE, _NAMED = "tensor", "tensors."  # a prepared image is one tensor, or several by name
_DTYPES = {torch.uint8, torch.int32, torch.int64, torch.float32, torch.bool}
_ROOM = 0.9  # of the limit, after making room


def reading_digest(image: ImageRef) -> bytes | None:
    """sha256 of what an image's pixels depend on beside the decoders: its file, and how that is read.

    It is the digest of the file alone for an image that is turned upright and read whole. None for an image without a
    file, or whose reader's source cannot be read. OSError if the file cannot be read.
    """
    if image.read is None or image.reader is None:
        return None
    digest = hashlib.sha256(image.read()).digest()
    if image.exif != "apply":
        digest = hashlib.sha256(b"exif ignored:" + digest).digest()
    for how in (image.variant, image.reader):
        digest = hashlib.sha256(f"{how}:".encode() + digest).digest() if how else digest
    return digest


class PixelDigestCache:
    """Digests of a task's decoded images, in one file; a `ttmbench.scoring.fingerprint.PixelDigests`.

    A digest counts only for the version of the decoders with which it was made.
    """

    def __init__(self, store: Store, task: str) -> None:
        self._decoder, self._store = decoder(), store
        name = re.sub(r"[^A-Za-z0-9_-]", "_", task)[:60]
        which = hashlib.sha256(f"{task}:{self._decoder}".encode()).hexdigest()[:16]
        self._path = store.folder / PIXELS / f"{name}-{which}{ENDING}"
        self._files: dict[str, bytes] = {}
        self._grown = False
        self._lock = threading.Lock()
        self._loaded: dict[bytes, bytes] | None = None

    def get(self, image: ImageRef) -> str | None:
        """Digest of an image whose file was decoded before; None if it is unknown or the image has no file."""
        file = self._file(image)
        pixels = None if file is None else self._images.get(file)
        return None if pixels is None else pixels.hex()

    def put(self, image: ImageRef, digest: str) -> None:
        """Stores the digest of an image that was decoded."""
        file = self._file(image)
        if file is not None and file not in self._images:
            self._images[file] = bytes.fromhex(digest)
            self._grown = True

    @property
    def _images(self) -> dict[bytes, bytes]:
        with self._lock:  # images are opened by several threads
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _file(self, image: ImageRef) -> bytes | None:
        if image.name not in self._files:
            file = _file_digest(image)
            if file is None:
                return None
            self._files[image.name] = file
        return self._files[image.name]

    def flush(self) -> None:
        """Writes what is new."""
        if self._grown:
            known = {**self._load(), **self._images.copy()}  # another run may have written meanwhile
            table = np.frombuffer(b"".join(file + pixels for file, pixels in known.items()), dtype=np.uint8)
            about = {"kind": "pixels", "decoder": self._decoder}
            self._store.write(self._path, about, {_TABLE: table.reshape(-1, 2 * _SIZE)})
            self._grown = False

    def _load(self) -> dict[bytes, bytes]:
        return self._store.read(self._path, self._parse) or {}

    def _parse(self, about: Header, arrays: Arrays) -> dict[bytes, bytes]:
        table = arrays.get(_TABLE)
        if about.get("kind") != "pixels" or about.get("decoder") != self._decoder:
            raise DamagedError("it belongs to another decoder")
        if table is None or table.dtype != np.uint8 or table.ndim != 2 or table.shape[1] != 2 * _SIZE:
            raise DamagedError("it is not a table of digests")
        return {row[:_SIZE].tobytes(): row[_SIZE:].tobytes() for row in table}


class PreparedImageCache:
    """Prepared images of one way of preprocessing; a `ttmbench.scoring.inputs.PreparedImages`.

    The key is a sha256 of everything that changes a prepared image, the limit is in bytes, for all prepared images.
    """

    def __init__(self, store: Store, key: str, limit: int) -> None:
        self._store, self._key, self._limit = store, key, limit
        self._written = 0

    def get(self, image: ImageRef) -> tuple[Batch, str] | None:
        """A prepared image as one row, and the digest of its pixels; None if it is not cached."""
        digest = _file_digest(image)
        if digest is None:
            return None
        file = digest.hex()
        path = self._path(file)

        def parse(about: Header, arrays: Arrays) -> tuple[Batch, str]:
            if (about.get("kind"), about.get("key"), about.get("file")) != ("image", self._key, file):
                raise DamagedError("it is another image")
            if not arrays or any(values.shape[:1] != (1,) for values in arrays.values()):
                raise DamagedError("it is not a single row")
            with suppress(OSError):
                os.utime(path)
            rows = {name: torch.from_numpy(values) for name, values in arrays.items()}
            row = rows[_ALONE] if _ALONE in rows else {name.removeprefix(_NAMED): rows[name] for name in rows}
            return row, str(about["pixels"])

        return self._store.read(path, parse)

    def put(self, image: ImageRef, row: Batch, pixels: str) -> None:
        """Stores a prepared image with the digest of its pixels, if it has a file and is made of tensors."""
        arrays = _arrays(row)
        digest = _file_digest(image) if arrays else None
        if digest is None or arrays is None:
            return
        about = {"kind": "image", "key": self._key, "file": digest.hex(), "pixels": pixels}
        if self._store.write(self._path(digest.hex()), about, arrays):
            self._written += 1

    def evict(self) -> None:
        """Removes the least recently used images, if all together are over the limit."""
        if self._written:
            self._written = 0
            evict(self._store.folder, self._limit)

    def _path(self, file: str) -> Path:
        return self._store.folder / PREPARED / self._key[:32] / file[:2] / f"{file}{ENDING}"


def evict(folder: Path, limit: int) -> None:
    """Removes prepared images until they take nine tenths of the limit (bytes), if they take more than it."""
    images: list[tuple[float, int, Path]] = []
    for path in (folder / PREPARED).glob(f"*/*/*{ENDING}"):
        if any(part.is_symlink() for part in (path, *path.parents[:3])):
            continue
        with suppress(OSError):
            stat = path.stat()
            images.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in images)
    if total <= limit:
        return
    with suppress(OSError, Timeout), FileLock(folder / ".lock", timeout=0):
        for _, size, path in sorted(images):
            if total <= _ROOM * limit:
                break
            path.unlink(missing_ok=True)
            total -= size


def _arrays(row: Batch) -> dict[str, np.ndarray] | None:
    named: Mapping[str, object] = {_ALONE: row}
    if isinstance(row, Mapping):
        named = {f"{_NAMED}{name}": tensor for name, tensor in row.items()}
    arrays = {
        name: value.numpy()
        for name, value in named.items()
        if isinstance(value, torch.Tensor) and value.dtype in _DTYPES
    }
    return arrays if len(arrays) == len(named) else None


def _file_digest(image: ImageRef) -> bytes | None:
    """As `reading_digest`; None also where the file cannot be read, whose error opening the image reports."""
    try:
        return reading_digest(image)
    except Exception:
        return None
