"""Inputs of a model: each distinct image and caption of a task once, where each one occurs, and their digest.

Images are opened as every model gets them, ahead of it and in threads. Their rows are prepared when they are asked for,
and not held here, or all of them once, where a task is scored again and again.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import numpy as np
import torch

from ttmbench._annotations import Batch
from ttmbench._util.console import one_line, progress_bar
from ttmbench._util.images import BadImage, as_rgb
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model import DualEncoder, Model, PairScorer, StoredFeatures
from ttmbench.types import Group, GroupShape, ImageRef, Record, Scores

if TYPE_CHECKING:
    from PIL.Image import Image

DECODED = 64  # images held decoded at a time, while they are prepared
_TOGETHER = 8  # images that a thread takes at a time, at most
SHOWN = 8  # group ids in a message

T = TypeVar("T")


def open_upright(image: ImageRef, group_id: str) -> Image:
    """Opens an image as RGB, turned upright unless its source ignores that; DataError if it cannot be read."""
    try:
        return as_rgb(image.open(), turn=image.exif == "apply")
    except Exception as error:
        raise _unreadable(image, group_id, error) from error


def _unreadable(image: ImageRef, group_id: str, error: Exception) -> TtmbenchError:
    """The error that names the image and the group, or ttmbench's own error."""
    if isinstance(error, TtmbenchError) and not isinstance(error, BadImage):
        return error
    return DataError(f"image {image.name} of group {group_id} cannot be read: {error}")


def pixels_digest(image: Image) -> str:
    """sha256 of an RGB image's size and pixels."""
    return hashlib.sha256(f"{image.width}x{image.height}:".encode() + image.tobytes()).hexdigest()


@dataclass(frozen=True)
class Rows:
    """Row of each image and caption among the distinct ones: int [groups, images] and int [groups, captions]."""

    images: np.ndarray
    captions: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """All inputs of a task as a model takes them, in memory."""

    images: Batch  # one row per distinct image
    captions: Batch  # one row per distinct caption
    rows: Rows  # where they occur
    enlarged: Batch | None = None  # the images again, larger, for augmentation to cut from; None unless asked for


def subset(prepared: Prepared, groups: np.ndarray) -> Prepared:
    """The groups at some positions (int) of a prepared task, with only the images and captions that occur in them."""
    images, image_rows = np.unique(prepared.rows.images[groups], return_inverse=True)
    captions, caption_rows = np.unique(prepared.rows.captions[groups], return_inverse=True)
    rows = Rows(image_rows.reshape(len(groups), -1), caption_rows.reshape(len(groups), -1))
    enlarged = None if prepared.enlarged is None else take(prepared.enlarged, images)
    return Prepared(take(prepared.images, images), take(prepared.captions, captions), rows, enlarged)


@overload
def take(batch: torch.Tensor, index: np.ndarray | slice) -> torch.Tensor: ...
@overload
def take(batch: Batch, index: np.ndarray | slice) -> Batch: ...
def take(batch: Batch, index: np.ndarray | slice) -> Batch:
    """Some rows of prepared inputs; ``index_select`` is twice as fast on images as indexing."""
    if isinstance(batch, Mapping):
        return {name: take(tensor, index) for name, tensor in batch.items()}
    if isinstance(index, slice):
        return batch[index]
    if isinstance(batch, list):
        return [batch[row] for row in index]
    return batch.index_select(0, torch.from_numpy(np.ascontiguousarray(index)).to(batch.device, non_blocking=True))


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Prepared inputs, one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Mapping):
        return {name: torch.cat([part[name] for part in parts]) for name in first}  # type: ignore[index, call-overload]
    if isinstance(first, list):
        return [row for part in parts for row in part]
    return torch.cat(parts)  # type: ignore[arg-type]  # all are tensors


def images_on_device(adapter: Model, prepared: Prepared) -> Prepared:
    """The same inputs, with images on the model's device: as bytes they fit, and are copied once, not in every pass.

    Images stay if the device is a CPU, if they are not bytes, or would take more than a quarter of the device's free
    memory.
    """
    return prepared if adapter.device.type == "cpu" else _moved_images(prepared, adapter.device)


def _moved_images(prepared: Prepared, device: torch.device) -> Prepared:
    images, enlarged = _moved(prepared.images, device), prepared.enlarged
    return replace(prepared, images=images, enlarged=None if enlarged is None else _moved(enlarged, device))


def _moved(batch: Batch, device: torch.device) -> Batch:
    tensors = tensors_of(batch)
    if not tensors or not all(tensor.dtype == torch.uint8 for tensor in tensors):
        return batch
    size = sum(tensor.nbytes for tensor in tensors if tensor.device.type != device.type)
    if device.type == "cuda" and size > torch.cuda.mem_get_info(device)[0] // 4:
        return batch
    # From ordinary memory: what is sent once would be copied once more to be pinned.
    if isinstance(batch, Mapping):
        return {name: tensor.to(device) for name, tensor in batch.items()}
    return [tensor.to(device) for tensor in batch] if isinstance(batch, list) else batch.to(device)


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """The tensors of prepared inputs; none of those that are a list of something else."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list) else [batch]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def n_rows(batch: Batch) -> int:
    """Number of rows of prepared inputs."""
    return len(next(iter(batch.values()))) if isinstance(batch, Mapping) else len(batch)


def row_each(prepare_side: Callable[[Any], Batch], inputs: Sequence[Any], side: str = "captions") -> Batch:
    """What a model's ``prepare_images`` or ``prepare_captions`` returns; TtmbenchError unless it is a row per input."""
    if n_rows(batch := prepare_side(inputs)) != len(inputs):
        raise TtmbenchError(f"prepare_{side} must return one row per input, got {n_rows(batch)} for {len(inputs)}")
    return batch


class Inputs:
    """Groups as models take them: distinct images, opened and prepared ahead, distinct captions, and the data digest.

    Images with a file are decoded in threads; those that only a program can open are opened by the thread that asks. A
    model is called from other threads only if its class says that it may be (``prepares_in_threads``).

    Attributes:
        images: the distinct ones, each with a group that has it, for messages; their positions are the rows.
        captions: the distinct ones, in the order of rows.
        source: where the groups came from.
        prepared: what models take, where it is held in memory.
        truncated: as of `check_captions`, and ``notes`` for readers of the task's results.
        contents: name of an image -> digest of its file, else of its pixels, once it was taken in; crops of one file
            have the same.
        digests: likewise, of the content and of how it is read.
        waited: seconds spent waiting for images.
    """

    def __init__(
        self, groups: Sequence[Group], source: Record | None = None, prepared: Prepared | None = None, digest: str = ""
    ) -> None:
        """``digest`` is that of data without images, else it is made of images and captions."""
        self.groups, self.source, self.prepared, self._digest = list(groups), source or {}, prepared, digest
        self._named: dict[str, tuple[str, ImageRef]] = {}
        for group in groups:
            for image in group.images:
                self._named.setdefault(image.name, (group.group_id, image))
        self.images = list(self._named.values())
        self.captions = list(dict.fromkeys(caption for group in groups for caption in group.captions))
        self.truncated: dict[str, int] | None = None
        self.notes: list[str] = []
        self.contents: dict[str, str] = {}
        self.digests: dict[str, str] = {}
        self.waited = 0.0

    @cached_property
    def rows(self) -> Rows:
        """Where the images and captions of groups of one shape occur."""
        image_row = {name: row for row, name in enumerate(self._named)}
        caption_row = {caption: row for row, caption in enumerate(self.captions)}
        return Rows(
            images=np.array([[image_row[image.name] for image in group.images] for group in self.groups]),
            captions=np.array([[caption_row[caption] for caption in group.captions] for group in self.groups]),
        )

    def open(self, name: str) -> Image:
        """Opens an image as `open_upright`, and takes it in."""
        opened = open_upright(self._named[name][1], self._named[name][0])
        if name not in self.contents:
            self._take_in(name, opened)
        return opened

    def _take_in(self, name: str, opened: Image | None = None) -> None:
        """Takes in an image; one that has encoded bytes need not be opened."""
        group_id, image = self._named[name]
        if image.of_plugin or image.read is None:  # its pixels identify it
            self.contents[name] = self.digests[name] = pixels_digest(opened or open_upright(image, group_id))
            return
        try:
            self.contents[name] = hashlib.sha256(image.read()).hexdigest()
        except Exception as error:
            raise _unreadable(image, group_id, error) from error
        how = f"{self.contents[name]} exif {image.exif}; {image.variant}"
        self.digests[name] = hashlib.sha256(how.encode()).hexdigest()

    def digest(self) -> str:
        """The data digest: sha256 over every group's images and captions in order; takes in what was not opened yet.

        Images count by their encoded bytes and how they are read; those without (rendered, in memory, frames), and
        those that plugins open, by their pixels.
        """
        if not self._digest:
            names = [name for name in self._named if name not in self.contents]
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                done = (pool.map if all(self._named[name][1].read for name in names) else map)(self._take_in, names)
                for _ in progress_bar(len(names), "looking at data", "images", done):
                    pass
            digest = hashlib.sha256()
            for group in self.groups:
                digest.update("".join(self.digests[image.name] for image in group.images).encode())
                digest.update(b"".join(hashlib.sha256(caption.encode()).digest() for caption in group.captions))
            self._digest = digest.hexdigest()
        return self._digest

    def parts(self, model: DualEncoder | PairScorer, wanted: Sequence[np.ndarray]) -> Generator[Batch]:
        """Prepared rows, a batch for each list of rows (int [n]), in order; the next ones are prepared meanwhile.

        No thread goes on once it is closed. DataError where an image cannot be read.
        """
        with closing(self.made_of(model, wanted, partial(row_each, model.prepare_images, side="images"))) as made:
            yield from map(concatenate, made)  # which holds no part while the next one comes

    def made_of(
        self,
        model: DualEncoder | PairScorer,
        wanted: Sequence[np.ndarray],
        make: Callable[[list[Image]], T],
        decoded: int = DECODED,
    ) -> Generator[list[T]]:
        """As `parts`, with what ``make`` makes of opened images: a list for each list of rows, an item a few images.

        At most ``decoded`` images are held decoded at a time.
        """
        decoded = max(1, decoded // model.frames)  # of videos, as many frames
        threads = min(torch.get_num_threads(), max(1, decoded // 2))  # so one with --deterministic
        size = max(1, min(_TOGETHER, decoded // (2 * threads)))
        pieces = [[rows[start : start + size] for start in range(0, len(rows), size)] for rows in wanted]
        rest, begun = iter([piece for listed in pieces for piece in listed]), deque[Callable[[], Callable[[], T]]]()

        def work(piece: np.ndarray) -> Callable[[], T]:
            opened = [self.open(self.images[row][1].name) for row in piece]
            if not model.prepares_in_threads:
                return partial(make, opened)
            made = make(opened)
            return lambda: made

        def take_next() -> T:
            clock = time.perf_counter()
            for piece in islice(rest, max(1, decoded // size) - len(begun)):
                has_bytes = all(self.images[row][1].read is not None for row in piece)
                begun.append(pool.submit(work, piece).result if has_bytes else partial(work, piece))
            made = begun.popleft()()()
            self.waited += time.perf_counter() - clock
            return made

        pool = ThreadPoolExecutor(threads, thread_name_prefix="ttmbench-images")
        try:
            for listed in pieces:
                yield [take_next() for _ in listed]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


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
            for position, row in enumerate(rows.tolist()):
                if row >= first:
                    self._here[row] = take(batch, slice(position, position + 1))
        return concatenate([self._here[row] for row in wanted.tolist()])


def prepare(
    model: DualEncoder | PairScorer, inputs: Inputs, batch_size: int = DECODED, enlarge: float | None = None
) -> Prepared:
    """Decodes and preprocesses every distinct image once and tokenises every distinct caption once, into memory.

    Also prepares the images ``enlarge`` times as large, for augmentation; UsageError if the model cannot. At most
    ``batch_size`` images are held decoded.
    """
    augmented = model if enlarge is not None and isinstance(model, DualEncoder) and model.augments else None
    if enlarge is not None and augmented is None:
        raise UsageError("this model's adapter cannot augment (prepare_enlarged, crop); use --ttm_args augment=false")

    def make(opened: list[Image]) -> tuple[Batch, Batch | None]:
        larger = augmented.prepare_enlarged(opened, enlarge) if augmented and enlarge else None
        return row_each(model.prepare_images, opened, "images"), larger

    rows, made = np.arange(len(inputs.images)), list[tuple[Batch, Batch | None]]()
    wanted = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    with (
        progress_bar(len(rows), "preparing", "images") as shown,
        closing(inputs.made_of(model, wanted, make, batch_size)) as blocks,
    ):
        for block, listed in zip(wanted, blocks, strict=True):
            made += listed
            shown.update(len(block))
    images, larger = concatenate([one for one, _ in made]), [one for _, one in made if one is not None]
    captions = row_each(model.prepare_captions, inputs.captions)
    return Prepared(images, captions, inputs.rows, concatenate(larger) if larger else None)


def stored(adapter: StoredFeatures, shape: GroupShape, limit: int | None) -> Inputs:
    """Inputs of a model that reads precomputed embeddings, of at most ``limit`` groups, which go by number.

    DataError if the rows make no whole groups of this shape, or more groups on one side than on the other.
    """
    images, captions = adapter.stored_images(), adapter.stored_captions()
    groups, rest = divmod(n_rows(images), shape.images)
    if rest or n_rows(captions) != groups * shape.captions or groups == 0:
        raise DataError(
            f"{n_rows(images)} stored images and {n_rows(captions)} captions must make whole groups of {shape}: "
            f"{shape.images} images and {shape.captions} captions each"
        )
    groups = min(groups, limit or groups)
    rows = Rows(
        np.arange(groups * shape.images).reshape(groups, -1), np.arange(groups * shape.captions).reshape(groups, -1)
    )
    prepared = subset(Prepared(images, captions, rows), np.arange(groups))
    digest = hashlib.sha256()
    for tensor in (*tensors_of(prepared.images), *tensors_of(prepared.captions)):
        digest.update(tensor.contiguous().numpy().data)
    named = [
        Group(
            group_id=str(group),
            images=tuple(ImageRef(f"{group}/image {index}", _no_image) for index in range(shape.images)),
            captions=tuple(f"{group}/caption {index}" for index in range(shape.captions)),
        )
        for group in range(groups)
    ]
    return Inputs(named, {"kind": "stored_features"}, prepared, digest.hexdigest())


def _no_image() -> NoReturn:
    raise DataError("the model reads stored features; there is no image to open")


def usable_scores(model: Model, scores: Scores, groups: Sequence[Group]) -> tuple[Scores, list[str]]:
    """Scores without NaN, and a sentence that lists the groups with a missing score, if there are any.

    A group with a missing score (of a model whose refusals count as wrong) ties everywhere, and a tie is never correct.
    TtmbenchError if a score is infinite or missing, and the model does not say that missing ones count as wrong.
    """
    notes: list[str] = []
    if isinstance(model, PairScorer) and model.refusals_are_wrong is not None:
        scores, notes = _without_refused(model, scores, groups)
    for array in (scores.groups, scores.all_pairs):
        if array is not None and not np.isfinite(array).all():
            finite = np.isfinite(array).reshape(len(groups), -1).all(axis=1)
            group = groups[int(np.argmin(finite))]
            raise TtmbenchError(f"the model gave group {group.group_id} a score that is NaN or infinite")
    return scores, notes


def _without_refused(model: PairScorer, scores: Scores, groups: Sequence[Group]) -> tuple[Scores, list[str]]:
    """Scores of a model that may refuse pairs: zeros for groups with a refused one, and the note on these."""
    if scores.all_pairs is not None and (count := int(np.isnan(scores.all_pairs).sum())):
        raise TtmbenchError(
            f"the model gave no score for {count} pairs, and one assignment over all pairs needs every one of them"
        )
    missing = np.isnan(scores.groups).any(axis=(1, 2))
    ids = [groups[index].group_id for index in np.flatnonzero(missing).tolist()]
    if ids and not model.refusals_are_wrong:
        taken = model.take_undecided()
        shown = ", ".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
        raise TtmbenchError(
            f"the model gave no score for a pair of {len(ids)} of {len(groups)} groups: {shown}. "
            "--model_args on_refusal=wrong counts such groups as wrong"
            + (f"; {taken.remedy}" if taken is not None and taken.instead else "")
        )
    which = f"{len(ids)} of {len(groups)} groups have a pair without a score"
    notes = [f"{which} and count as wrong in every metric: {', '.join(ids)}"] if ids else []
    return Scores(np.where(missing[:, None, None], np.float32(0), scores.groups), scores.all_pairs), notes


def check_captions(model: Model, inputs: Inputs) -> None:
    """Counts how many ``captions`` a model cuts, ``of`` all distinct ones, and the ``groups`` that have one.

    None where a model does not say; a note if captions are cut. TtmbenchError for a caption that it cannot read as
    text, or if it did not answer for each.
    """
    captions, groups = inputs.captions, inputs.groups
    for caption, token in zip(captions, model.refused(captions), strict=True):
        if token is not None:
            raise _special_token(groups, caption, token)
    if (said := model.truncated(captions)) is None:
        return
    answers = np.asarray(said, dtype=bool)
    if answers.shape != (len(captions),):
        given = f"{list(answers.shape)} answers for {len(captions)} captions"
        raise TtmbenchError(f"truncated() of {type(model).__name__} must give one answer each, and gave {given}")
    cut = set(np.array(captions, dtype=object)[answers])
    touched = sum(not cut.isdisjoint(group.captions) for group in groups)
    inputs.truncated = {"captions": len(cut), "of": len(captions), "groups": touched}
    if cut:
        inputs.notes = [
            f"{len(cut)} of {len(captions)} captions are longer than the model reads and were cut (in {touched} "
            "groups): captions that differ beyond the cut tie"
        ]


def _special_token(groups: Sequence[Group], caption: str, token: str) -> TtmbenchError:
    group_id = next(group.group_id for group in groups if caption in group.captions)
    return TtmbenchError(
        f"group {group_id}: the caption {one_line(caption, 200)!r} contains {token!r}, which this model reads as a "
        "special token and not as text; change the caption, or leave the group out (--samples)"
    )


def unknown_wrappers(model: DualEncoder, wrappers: Sequence[str]) -> str:
    """Says which words around captions, ``a photo of {}``, a model does not know; empty if it knows all."""
    unknown = model.has_unknown_words([wrapper.replace("{}", "") for wrapper in wrappers])
    listed = ", ".join(repr(wrapper) for wrapper, is_unknown in zip(wrappers, unknown, strict=True) if is_unknown)
    return f"its vocabulary lacks words of the wrappers {listed}" if listed else ""
