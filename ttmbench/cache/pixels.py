"""Digests of decoded images by the digests of their files, so that data are recognised without decoding them."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench.cache.entry import ENDING, Entry
from ttmbench.cache.key import decoder
from ttmbench.cache.location import PIXELS
from ttmbench.errors import TtmbenchError
from ttmbench.types import ImageRef

_SIZE = 32  # bytes of a sha256
_TABLE = "pictures"  # what such files have called it from the first on


class PixelDigestCache:
    """The images of a task; a `ttmbench.scoring.fingerprint.PixelDigests`.

    A digest counts for the very version of the decoders with which it was made.

    Args:
        folder: of the cache.
        task: name of the task; images of one task lie in one file.
        read: reads a file of the cache.
        write: writes one.
    """

    def __init__(
        self,
        folder: Path,
        task: str,
        read: Callable[[Path, Callable[[Entry], str | None]], Entry | None],
        write: Callable[[Path, Entry], Any],
    ) -> None:
        self._decoder, self._read, self._write = decoder(), read, write
        name = re.sub(r"[^A-Za-z0-9_-]", "_", task)[:60]
        which = hashlib.sha256(f"{task}:{self._decoder}".encode()).hexdigest()[:16]
        self._path = folder / PIXELS / f"{name}-{which}{ENDING}"
        self._files: dict[str, bytes] = {}
        self._grown = False
        self._loading = threading.Lock()
        self._loaded: dict[bytes, bytes] | None = None

    def get(self, image: ImageRef) -> str | None:
        """The digest of an image whose file was decoded before; None if that is not known or it has no file."""
        file = self._file(image)
        found = None if file is None else self._images.get(file)
        return None if found is None else found.hex()

    def put(self, image: ImageRef, digest: str) -> None:
        """Keeps the digest of an image that was decoded."""
        file = self._file(image)
        if file is not None and file not in self._images:
            self._images[file] = bytes.fromhex(digest)
            self._grown = True

    @property
    def _images(self) -> dict[bytes, bytes]:
        with self._loading:  # images are taken in by several threads
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _file(self, image: ImageRef) -> bytes | None:
        """What an image is kept by; None if it has no file or that cannot be read, which opening it says properly."""
        if image.name not in self._files:
            with suppress(OSError, TtmbenchError):
                file = reading_digest(image)
                if file is not None:
                    self._files[image.name] = file
        return self._files.get(image.name)

    def flush(self) -> None:
        """Writes what is new."""
        if self._grown:
            known = {**self._load(), **self._images.copy()}  # another run may have written meanwhile
            table = np.frombuffer(b"".join(file + pixels for file, pixels in known.items()), dtype=np.uint8)
            about = {"kind": "pixels", "decoder": self._decoder}
            self._write(self._path, Entry(about, {_TABLE: table.reshape(-1, 2 * _SIZE)}))
            self._grown = False

    def _load(self) -> dict[bytes, bytes]:
        entry = self._read(self._path, self._wrong)
        if entry is None:
            return {}
        return {row[:_SIZE].tobytes(): row[_SIZE:].tobytes() for row in entry.arrays[_TABLE]}

    def _wrong(self, entry: Entry) -> str | None:
        table = entry.arrays.get(_TABLE)
        if entry.about.get("kind") != "pixels" or entry.about.get("decoder") != self._decoder:
            return "it belongs to another decoder"
        if table is None or table.dtype != np.uint8 or table.ndim != 2 or table.shape[1] != 2 * _SIZE:
            return "it is no table of digests"
        return None


def reading_digest(image: ImageRef) -> bytes | None:
    """sha256 of an image's file and of how it is read: what its pixels depend on beside the decoders.

    Args:
        image: any.

    Returns:
        The digest; that of the bytes alone for an image that is turned upright and read whole. None for an image
        without bytes, or whose reader's source cannot be read.

    Raises:
        OSError: the file cannot be read.
    """
    if image.read is None or image.reader is None:
        return None
    digest = hashlib.sha256(image.read()).digest()
    if image.exif != "apply":
        digest = hashlib.sha256(b"exif ignored:" + digest).digest()
    for how in (image.variant, image.reader):
        digest = hashlib.sha256(f"{how}:".encode() + digest).digest() if how else digest
    return digest
