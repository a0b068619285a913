"""Images opened as every model gets them, in threads ahead of it; and a digest of a task's images and captions."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import torch

from ttmbench._util.console import progress_bar
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


@contextmanager
def _reading(image: ImageRef, group_id: str) -> Iterator[None]:
    """Errors inside become DataErrors that name the image and the group."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TtmbenchError) and not isinstance(error, BadImage):
            raise
        raise DataError(f"image {image.name} of group {group_id} cannot be read: {error}") from error


def open_upright(image: ImageRef, group_id: str) -> Image:
    """Opens an image as RGB, turned upright unless its source ignores that; DataError if it cannot be read."""
    with _reading(image, group_id):
        return as_rgb(image.open(), turn=image.exif == "apply")


def pixels_digest(image: Image) -> str:
    """sha256 of an RGB image's size and pixels."""
    return hashlib.sha256(f"{image.width}x{image.height}:".encode() + image.tobytes()).hexdigest()


class Fingerprint:
    """The data digest of a task: encoded images, how they are read, and captions, in the order of the groups.

    Images without encoded bytes (rendered, in memory, frames) and those that plugins open count by their pixels.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._digests: dict[str, str] = {}
        self._groups = groups

    def open(self, group_id: str, image: ImageRef) -> Image:
        """Opens an image as `open_upright` and takes it in."""
        is_new = image.name not in self._digests
        if is_new and image.encoded is not None:
            self._take_in_bytes(group_id, image)
        opened = open_upright(image, group_id)
        if is_new and image.encoded is None:
            self._digests[image.name] = pixels_digest(opened)
        return opened

    def opener(self) -> Callable[[str], Image]:
        """A function that opens an image by name at each call, and takes it in the first time."""
        by_name = {image.name: (group_id, image) for group_id, image in distinct_images(self._groups)}
        return lambda name: self.open(*by_name[name])

    def add_remaining(self) -> None:
        """Takes in every image that has not been taken in; those with encoded bytes are not decoded."""
        images = [item for item in distinct_images(self._groups) if item[1].name not in self._digests]
        threads = threads_beside_the_model()

        def take_in(item: tuple[str, ImageRef]) -> None:
            if item[1].encoded is None:
                self.open(*item)
            else:
                self._take_in_bytes(*item)

        with ahead(images, take_in, threads, 4 * threads, lambda item: item[1].read is not None) as done:
            for _ in progress_bar(len(images), "looking at data", "images", done):
                pass

    def _take_in_bytes(self, group_id: str, image: ImageRef) -> None:
        assert image.encoded is not None, "asked of images with bytes"
        with _reading(image, group_id):
            self._digests[image.name] = hashlib.sha256(image.encoded()).hexdigest()

    def content_of(self, image: ImageRef) -> str:
        """Digest of an image that was taken in, however it is read: crops of one file have the same."""
        return self._digests[image.name]

    def of(self, image: ImageRef) -> str:
        """Digest of an image that was taken in, and of how it is read."""
        content = self._digests[image.name]
        if image.encoded is None:
            return content
        return hashlib.sha256(f"{content} exif {image.exif}; {image.variant}".encode()).hexdigest()

    def hexdigest(self) -> str:
        """sha256 over every group's images and captions in order; every image must have been taken in."""
        digest = hashlib.sha256()
        for group in self._groups:
            for image in group.images:
                digest.update(self.of(image).encode())
            for caption in group.captions:
                digest.update(hashlib.sha256(caption.encode()).digest())
        return digest.hexdigest()
