"""Images opened as every model gets them, in threads ahead of it; and a digest of a task's images and captions."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from ttmbench._util.console import progress_iter
from ttmbench._util.images import BadImage, as_rgb, quiet_decoding, quiet_thread
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.types import Group, ImageRef

if TYPE_CHECKING:
    from PIL.Image import Image

Job = TypeVar("Job")
T = TypeVar("T")


def threads_beside_the_model() -> int:
    """How many threads decode images: as many as torch may use here, and no more than there are cores.

    So ``OMP_NUM_THREADS`` and ``--deterministic``, which leave torch one thread, leave one here.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores))


@contextmanager
def ahead(
    jobs: Sequence[Job], work: Callable[[Job], T], threads: int, held: int, apart: Callable[[Job], bool]
) -> Iterator[Iterator[T]]:
    """Does jobs in threads and yields their results in order; no thread goes on once the block is left.

    At most ``held`` jobs are begun whose results have not been taken. A job that may not be done ``apart``, in another
    thread, is done when its result is asked for. The error of a job is raised in place of its result.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ttmbench-images", initializer=quiet_thread)

    def results() -> Iterator[T]:
        rest, begun = iter(jobs), deque[Callable[[], T]]()
        while True:
            for job in islice(rest, held - len(begun)):
                begun.append(pool.submit(work, job).result if apart(job) else partial(work, job))
            if not begun:
                return
            yield begun.popleft()()

    try:
        with quiet_decoding():
            yield results()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def distinct_images(groups: Sequence[Group]) -> Iterator[tuple[str, ImageRef]]:
    """Each distinct image once, with the first group that has it; in the order of rows."""
    seen: set[str] = set()
    for group in groups:
        for image in group.images:
            if image.name not in seen:
                seen.add(image.name)
                yield group.group_id, image


def distinct_captions(groups: Sequence[Group]) -> list[str]:
    """Each distinct caption once, in the order of rows."""
    return list(dict.fromkeys(caption for group in groups for caption in group.captions))


def open_upright(image: ImageRef, group_id: str) -> Image:
    """Opens an image as RGB, turned upright unless its source ignores that.

    DataError, which names the image and the group, if it cannot be read.
    """
    try:
        return as_rgb(image.open(), turn=image.exif == "apply")
    except Exception as error:
        if isinstance(error, TtmbenchError) and not isinstance(error, BadImage):
            raise
        raise DataError(f"image {image.name} of group {group_id} cannot be read: {error}") from error


class PixelDigests(Protocol):
    """Stores digests of decoded images, by the digest of their files."""

    def get(self, image: ImageRef) -> str | None:
        """Digest of an image whose file was decoded before; None if it is unknown."""

    def put(self, image: ImageRef, digest: str) -> None:
        """Stores the digest of an image that was decoded."""


class Fingerprint:
    """A digest of a task's pixels and captions; ``pixels`` has those of images that were decoded before."""

    def __init__(self, groups: Sequence[Group], pixels: PixelDigests | None = None) -> None:
        self._digests: dict[str, str] = {}
        self._groups, self._kept = groups, pixels

    def open(self, group_id: str, image: ImageRef) -> Image:
        """Opens an image as `open_upright` and takes it in."""
        opened = open_upright(image, group_id)
        if image.name not in self._digests:
            head = f"{opened.width}x{opened.height}:".encode()
            self._digests[image.name] = hashlib.sha256(head + opened.tobytes()).hexdigest()
            if self._kept is not None:
                self._kept.put(image, self._digests[image.name])
        return opened

    def add_digest(self, image: ImageRef, pixels: str) -> None:
        """Takes in one distinct image by the digest of its pixels."""
        self._digests.setdefault(image.name, pixels)

    def of(self, image: ImageRef) -> str:
        """The digest of an image that was taken in."""
        return self._digests[image.name]

    def opener(self) -> Callable[[str], Image]:
        """A function that opens an image by name at each call, and adds it to the fingerprint the first time."""
        by_name = {image.name: (group_id, image) for group_id, image in distinct_images(self._groups)}
        return lambda name: self.open(*by_name[name])

    def add_remaining(self) -> None:
        """Takes in every image that has not been added; opens those whose digest is not stored."""
        images = [item for item in distinct_images(self._groups) if item[1].name not in self._digests]

        def take_in(item: tuple[str, ImageRef]) -> None:
            known = self._kept.get(item[1]) if self._kept is not None else None
            if known is None:
                self.open(*item)
            else:
                self.add_digest(item[1], known)

        threads = threads_beside_the_model()
        with ahead(images, take_in, threads, 4 * threads, lambda item: item[1].read is not None) as done:
            for _ in progress_iter(done, "looking at data", "images", total=len(images)):
                pass

    def names(self) -> str:
        """sha256 over the names of every group's images and over its captions, known before any image is opened."""
        named = [[[image.name for image in group.images], group.captions] for group in self._groups]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    def pixels_of(self, start: int, stop: int) -> str:
        """sha256 over the pixels of the distinct images from start to stop, which must all have been added."""
        names = self._names[start:stop]
        return hashlib.sha256("".join(self._digests[name] for name in names).encode()).hexdigest()

    @cached_property
    def _names(self) -> list[str]:
        return [image.name for _, image in distinct_images(self._groups)]

    def hexdigest(self) -> str:
        """sha256 over every group's images and captions in order; every image must have been added."""
        digest = hashlib.sha256()
        for group in self._groups:
            for image in group.images:
                digest.update(self._digests[image.name].encode())
            for caption in group.captions:
                digest.update(hashlib.sha256(caption.encode()).digest())
        return digest.hexdigest()
