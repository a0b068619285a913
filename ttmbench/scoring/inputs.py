"""Inputs of a model: each distinct image and caption of a task once, and where each one occurs.

Rows of images are prepared when they are asked for, ahead and in threads, and not held here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch

from ttmbench._annotations import Batch
from ttmbench.protocols import DualEncoder, PreparedPairScorer
from ttmbench.scoring.fingerprint import (
    Fingerprint,
    ahead,
    distinct_captions,
    distinct_images,
    open_all,
    threads_beside_the_model,
)
from ttmbench.types import Group, ImageRef

if TYPE_CHECKING:
    from PIL.Image import Image

DECODED = 64  # images held decoded at a time, while they are prepared
_TOGETHER = 8  # images that a thread takes at a time, at most

T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """Which distinct image and caption is where: int [groups, images] and int [groups, captions]."""

    images: np.ndarray
    captions: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A task as a dual encoder takes it.

    Attributes:
        images: one row per distinct image.
        captions: one row per distinct caption.
        rows: where they occur.
        enlarged: the images again, larger, for augmentation to cut from; None unless asked for.
    """

    images: Batch
    captions: Batch
    rows: Rows
    enlarged: Batch | None = None


def subset(prepared: Prepared, groups: np.ndarray) -> Prepared:
    """The groups at some positions (int) of a prepared task, with only the images and captions that occur in them."""
    images, image_rows = np.unique(prepared.rows.images[groups], return_inverse=True)
    captions, caption_rows = np.unique(prepared.rows.captions[groups], return_inverse=True)
    rows = Rows(
        image_rows.reshape(len(groups), -1),
        caption_rows.reshape(len(groups), -1),
    )
    enlarged = None if prepared.enlarged is None else take(prepared.enlarged, images)
    return Prepared(take(prepared.images, images), take(prepared.captions, captions), rows, enlarged)


def take(batch: Batch, index: np.ndarray | slice) -> Batch:
    """Some rows of prepared inputs."""
    if isinstance(batch, list):
        return batch[index] if isinstance(index, slice) else [batch[row] for row in index]
    if isinstance(batch, Mapping):
        return {name: _rows(tensor, index) for name, tensor in batch.items()}
    return _rows(batch, index)


def _rows(tensor: torch.Tensor, index: np.ndarray | slice) -> torch.Tensor:
    """Some rows of a tensor; ``index_select`` is twice as fast on images as indexing."""
    if isinstance(index, slice):
        return tensor[index]
    rows = torch.from_numpy(np.ascontiguousarray(index)).to(tensor.device, non_blocking=True)
    return tensor.index_select(0, rows)


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Prepared inputs, one after the other."""
    mappings = [part for part in parts if isinstance(part, Mapping)]
    if mappings:
        return {name: torch.cat([part[name] for part in mappings]) for name in mappings[0]}
    lists = [part for part in parts if isinstance(part, list)]
    if lists:
        return [row for part in lists for row in part]
    return torch.cat([part for part in parts if isinstance(part, torch.Tensor)])


def n_rows(batch: Batch) -> int:
    """Number of rows of prepared inputs."""
    return len(next(iter(batch.values()))) if isinstance(batch, Mapping) else len(batch)


def rows_of(groups: Sequence[Group]) -> Rows:
    """Which distinct image and caption is where."""
    image_row = {image.name: row for row, (_, image) in enumerate(distinct_images(groups))}
    caption_row = {caption: row for row, caption in enumerate(distinct_captions(groups))}
    return Rows(
        images=np.array([[image_row[image.name] for image in group.images] for group in groups]),
        captions=np.array([[caption_row[caption] for caption in group.captions] for group in groups]),
    )


class PreparedImages(Protocol):
    """Stores prepared images, by the digest of their files."""

    def get(self, image: ImageRef) -> tuple[Batch, str] | None:
        """A prepared image as one row, and the digest of its pixels; None if it is not stored."""
        ...

    def put(self, image: ImageRef, row: Batch, pixels: str) -> None:
        """Stores a prepared image and the digest of its pixels."""
        ...


@dataclass(frozen=True)
class Opened:
    """Images with the groups that have them; ``rows`` of those stored prepared, by name, the others decoded."""

    images: Sequence[tuple[str, ImageRef]]
    rows: dict[str, Batch]
    new: list[Image]


@dataclass
class ImageRows:
    """The distinct images of a task, opened and prepared ahead of the model.

    Images with a file are decoded in threads; those that only a program can open are opened by the thread that asks.
    The adapter is called from other threads only if its class says that it may be (`PreparesInThreads`).

    Attributes:
        adapter: the model.
        images: each with a group that has it, for messages; their positions are the rows.
        fingerprint: takes them in.
        kept: where prepared images are stored, if anywhere.
        decoded: images held decoded at a time.
        seconds: wall time spent waiting for images.
    """

    adapter: DualEncoder | PreparedPairScorer
    images: Sequence[tuple[str, ImageRef]]
    fingerprint: Fingerprint
    kept: PreparedImages | None = None
    decoded: int = DECODED
    seconds: float = field(default=0.0, init=False)

    @classmethod
    def of(
        cls,
        adapter: DualEncoder | PreparedPairScorer,
        groups: Sequence[Group],
        fingerprint: Fingerprint,
        kept: PreparedImages | None = None,
        decoded: int = DECODED,
    ) -> ImageRows:
        """Those of a task, in the order of rows."""
        return cls(adapter, list(distinct_images(groups)), fingerprint, kept, decoded)

    def __len__(self) -> int:
        return len(self.images)

    @contextmanager
    def parts(self, wanted: Sequence[np.ndarray]) -> Iterator[Iterator[Batch]]:
        """Prepared rows, a batch for each list of rows (int [n]), in order; the next ones are prepared meanwhile.

        DataError where an image cannot be read.
        """
        with self.made_of(wanted, self._prepared) as made:
            yield map(_joined, made)  # which holds no part while the next one comes

    @contextmanager
    def made_of(
        self, wanted: Sequence[np.ndarray], make: Callable[[Opened], T], reads: bool = True
    ) -> Iterator[Iterator[list[T]]]:
        """As `parts`, with what ``make`` makes of opened images: for each list of rows a list, one item a few images.

        Unless ``reads``, images that are stored prepared are opened too.
        """
        threads = min(threads_beside_the_model(), max(1, self.decoded // 2))
        size = max(1, min(_TOGETHER, self.decoded // (2 * threads)))
        pieces = [[rows[start : start + size] for start in range(0, len(rows), size)] for rows in wanted]
        jobs = [[self.images[row] for row in piece] for listed in pieces for piece in listed]
        inside = bool(getattr(type(self.adapter), "prepares_in_threads", False))

        def work(some: Sequence[tuple[str, ImageRef]]) -> Any:
            opened = self._open(some, reads)
            return make(opened) if inside else opened

        def has_bytes(some: Sequence[tuple[str, ImageRef]]) -> bool:
            return all(image.read is not None for _, image in some)

        with ahead(jobs, work, threads, max(1, self.decoded // size), has_bytes) as results:
            yield (self._listed(results, len(listed), None if inside else make) for listed in pieces)

    def _listed(self, results: Iterator[Any], count: int, make: Callable[[Opened], T] | None) -> list[T]:
        clock = time.perf_counter()
        found = [next(results) if make is None else make(next(results)) for _ in range(count)]
        self.seconds += time.perf_counter() - clock
        return found

    def _open(self, some: Sequence[tuple[str, ImageRef]], reads: bool) -> Opened:
        rows: dict[str, Batch] = {}
        if self.kept is not None and reads:
            for _, image in some:
                found = self.kept.get(image)
                if found is not None:
                    rows[image.name] = found[0]
                    self.fingerprint.add_digest(image, found[1])
        new = open_all([one for one in some if one[1].name not in rows], self.fingerprint)
        return Opened(some, rows, new)

    def _prepared(self, opened: Opened) -> Batch:
        """One row an image."""
        if not opened.rows and self.kept is None:
            return self.adapter.prepare_images(opened.new)
        rows = dict(opened.rows)
        images = [image for _, image in opened.images]
        if opened.new:
            batch = self.adapter.prepare_images(opened.new)
            for place, image in enumerate(image for image in images if image.name not in opened.rows):
                rows[image.name] = take(batch, slice(place, place + 1))
                if self.kept is not None:
                    self.kept.put(image, rows[image.name], self.fingerprint.of(image))
            if not opened.rows:
                return batch
        return concatenate([rows[image.name] for image in images])


class Window:
    """Prepared rows that are asked for in order, some of them again; ``parts`` are batches of the lists ``rows``."""

    def __init__(self, parts: Iterator[Batch], rows: Sequence[np.ndarray]) -> None:
        self._coming = zip(rows, parts, strict=True)
        self._here: dict[int, Batch] = {}

    def get(self, wanted: np.ndarray) -> Batch:
        """Prepared rows, one each; those before the first of them are not asked for again."""
        first = int(wanted.min())
        self._here = {row: batch for row, batch in self._here.items() if row >= first}
        while any(row not in self._here for row in wanted.tolist()):
            rows, batch = next(self._coming)
            for place, row in enumerate(rows.tolist()):
                if row >= first:
                    self._here[row] = take(batch, slice(place, place + 1))
        return concatenate([self._here[row] for row in wanted.tolist()])


def _joined(parts: list[Batch]) -> Batch:
    return parts[0] if len(parts) == 1 else concatenate(parts)
