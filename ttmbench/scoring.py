"""The only place that calls a model to score: prepared once, every distinct image and caption encoded once a pass.

Scores are float32 logits [groups, images, captions]. Inside groups only; every image meets every caption only where
the global variant asks for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ttmbench.atonce import AtOnce
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.inblocks import FEATURES, PAIRS, Blocks, load, save, spans
from ttmbench.pictures import KEPT, BadPicture, LazyPictures, as_rgb
from ttmbench.progress import bar, track
from ttmbench.protocols import Augmentable, DualEncoder, ManyAtOnce, PairScorer, PreparedPairScorer, StoredFeatures
from ttmbench.types import Group, GroupShape, ImageRef, Scores

if TYPE_CHECKING:
    from PIL.Image import Image

    from ttmbench.protocols import Batch

MAX_GLOBAL_PAIRS = 20_000  # beyond this, asking a pair scorer for every pair is refused


@dataclass(frozen=True)
class Rows:
    """Which distinct image and caption stands where: int [groups, images] and int [groups, captions]."""

    images: np.ndarray
    captions: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A task as a dual encoder takes it: each distinct image and caption once, and where each one stands.

    Attributes:
        images: one row per distinct image.
        captions: one row per distinct caption.
        rows: where they stand.
        enlarged: the images again, larger, for augmentation to cut from; only if that was asked for.
    """

    images: Batch
    captions: Batch
    rows: Rows
    enlarged: Batch | None = None


@dataclass(frozen=True)
class Features:
    """Encoded distinct images [n, d] and captions [n, d]."""

    images: torch.Tensor
    captions: torch.Tensor


def open_upright(image: ImageRef, group_id: str) -> Image:
    """Opens a picture, turns it upright and to RGB.

    Args:
        image: the picture.
        group_id: for the message.

    Returns:
        An RGB picture.

    Raises:
        DataError: it cannot be read; the message names picture and group.
    """
    try:
        return as_rgb(image.open())
    except Exception as error:
        if isinstance(error, TtmbenchError) and not isinstance(error, BadPicture):
            raise
        raise DataError(f"image {image.name} of group {group_id} cannot be read: {error}") from error


class PixelDigests(Protocol):
    """Where digests of decoded pictures are kept, by the digest of their files."""

    def get(self, image: ImageRef) -> str | None:
        """The digest of a picture whose file was decoded before; None if it is not known."""
        ...

    def put(self, image: ImageRef, digest: str) -> None:
        """Keeps the digest of a picture that was decoded."""
        ...


class PreparedPictures(Protocol):
    """Where prepared pictures are kept, by the digest of their files."""

    def get(self, image: ImageRef) -> tuple[Batch, str] | None:
        """A prepared picture as one row, and the digest of its pixels; None if it is not there."""
        ...

    def put(self, image: ImageRef, row: Batch, pixels: str) -> None:
        """Keeps a prepared picture and the digest of its pixels."""
        ...


class Fingerprint:
    """A digest of decoded pixels and captions, so that a changed dataset is noticed.

    Args:
        groups: the data.
        pixels: digests of pictures that were decoded before, if they are kept anywhere.
    """

    def __init__(self, groups: Sequence[Group], pixels: PixelDigests | None = None) -> None:
        self._pictures: dict[str, str] = {}
        self._groups, self._kept = groups, pixels

    def add(self, image: ImageRef, picture: Image) -> None:
        """Takes in one distinct picture, which was opened."""
        if image.name not in self._pictures:
            head = f"{picture.width}x{picture.height}:".encode()
            self._pictures[image.name] = hashlib.sha256(head + picture.tobytes()).hexdigest()
            if self._kept is not None:
                self._kept.put(image, self._pictures[image.name])

    def note(self, image: ImageRef, pixels: str) -> None:
        """Takes in one distinct picture by the digest of its pixels."""
        self._pictures.setdefault(image.name, pixels)

    def of(self, image: ImageRef) -> str:
        """The digest of a picture that was taken in."""
        return self._pictures[image.name]

    def opener(self) -> Callable[[str], Image]:
        """What opens a picture by name, anew at each call, and takes it in the first time."""
        by_name = {image.name: (group_id, image) for group_id, image in distinct_images(self._groups)}

        def open_picture(name: str) -> Image:
            group_id, image = by_name[name]
            picture = open_upright(image, group_id)
            self.add(image, picture)
            return picture

        return open_picture

    def take_in_the_rest(self) -> None:
        """Takes in every picture that has not been added; opens those whose digest is not kept."""
        images = [(group_id, one) for group_id, one in distinct_images(self._groups) if one.name not in self._pictures]
        for group_id, image in track(images, "looking at data", "images", total=len(images)):
            known = self._kept.get(image) if self._kept is not None else None
            if known is None:
                self.add(image, open_upright(image, group_id))
            else:
                self.note(image, known)

    def hexdigest(self) -> str:
        """sha256 over every group's pictures and captions in order; every picture must have been added."""
        digest = hashlib.sha256()
        for group in self._groups:
            for image in group.images:
                digest.update(self._pictures[image.name].encode())
            for caption in group.captions:
                digest.update(hashlib.sha256(caption.encode()).digest())
        return digest.hexdigest()


def prepare(
    adapter: DualEncoder | PreparedPairScorer,
    groups: Sequence[Group],
    batch_size: int,
    enlarge: float | None = None,
    fingerprint: Fingerprint | None = None,
    kept: PreparedPictures | None = None,
) -> tuple[Prepared, str]:
    """Decodes and preprocesses every distinct image once and tokenises every distinct caption once.

    Args:
        adapter: the model.
        groups: all of one shape, at least one.
        batch_size: pictures held decoded at a time.
        enlarge: also keep the images so many times as large, for augmentation.
        fingerprint: of the data, if it has been begun.
        kept: where prepared pictures are kept, if anywhere; not used with ``enlarge``.

    Returns:
        The prepared inputs and the fingerprint of the data.

    Raises:
        DataError: a picture cannot be read.
        UsageError: the model has no way to augment, and ``enlarge`` is set.
    """
    if enlarge is not None and not isinstance(adapter, Augmentable):
        raise UsageError("this model's adapter cannot augment (prepare_enlarged, crop); use --ttm_args augment=false")
    fingerprint = fingerprint or Fingerprint(groups)
    images = list(distinct_images(groups))
    parts: list[Batch] = []
    larger: list[Batch] = []
    with bar(len(images), "preparing", "images") as shown:
        for start in range(0, len(images), batch_size):
            some = images[start : start + batch_size]
            if enlarge is not None and isinstance(adapter, Augmentable):
                part, enlarged_part = _prepare_twice(adapter, some, fingerprint, enlarge)
                parts.append(part)
                larger.append(enlarged_part)
            else:
                parts.append(prepare_some(adapter, some, fingerprint, kept))
            shown.update(len(some))
    captions, rows = distinct_captions(groups), rows_of(groups)
    enlarged = concatenate(larger) if larger else None
    tokens = adapter.prepare_captions(captions)
    return Prepared(concatenate(parts), tokens, rows, enlarged), fingerprint.hexdigest()


def _prepare_twice(
    adapter: Any, images: Sequence[tuple[str, ImageRef]], fingerprint: Fingerprint, enlarge: float
) -> tuple[Batch, Batch]:
    """Prepares pictures in the model's own size and in a larger one."""
    pictures = open_all(images, fingerprint)
    return adapter.prepare_images(pictures), adapter.prepare_enlarged(pictures, enlarge)


def open_all(images: Sequence[tuple[str, ImageRef]], fingerprint: Fingerprint) -> list[Image]:
    """Opens pictures, given with the groups that have them, and takes them in."""
    pictures = []
    for group_id, image in images:
        pictures.append(open_upright(image, group_id))
        fingerprint.add(image, pictures[-1])
    return pictures


def prepare_some(
    adapter: DualEncoder | PreparedPairScorer,
    images: Sequence[tuple[str, ImageRef]],
    fingerprint: Fingerprint,
    kept: PreparedPictures | None,
) -> Batch:
    """Prepares pictures, or takes them from where prepared ones are kept.

    Args:
        adapter: the model.
        images: each with a group that has it, for messages.
        fingerprint: takes them in.
        kept: where prepared pictures are kept, if anywhere.

    Returns:
        One row a picture.
    """
    if kept is None:
        return adapter.prepare_images(open_all(images, fingerprint))
    rows: dict[str, Batch] = {}
    new = []
    for group_id, image in images:
        found = kept.get(image)
        if found is None:
            new.append((group_id, image))
        else:
            rows[image.name], pixels = found
            fingerprint.note(image, pixels)
    if new:
        batch = adapter.prepare_images(open_all(new, fingerprint))
        for place, (_, image) in enumerate(new):
            rows[image.name] = take(batch, slice(place, place + 1))
            kept.put(image, rows[image.name], fingerprint.of(image))
        if len(new) == len(images):
            return batch
    return concatenate([rows[image.name] for _, image in images])


def stored(adapter: StoredFeatures, shape: GroupShape, limit: int | None) -> tuple[Prepared, str]:
    """The inputs of a model that reads stored features: row by row, group by group, with no picture opened.

    Args:
        adapter: the model.
        shape: images and captions per group, from the task.
        limit: use no more groups than this.

    Returns:
        The inputs and the fingerprint of the data.

    Raises:
        DataError: the rows make no whole groups of this shape, or more groups on one side than on the other.
    """
    images, captions = adapter.stored_images(), adapter.stored_captions()
    groups, rest = divmod(n_rows(images), shape.images)
    if rest or n_rows(captions) != groups * shape.captions or groups == 0:
        raise DataError(
            f"{n_rows(images)} stored images and {n_rows(captions)} captions make no groups of {shape}: "
            f"images go by {shape.images} a group, captions by {shape.captions}"
        )
    groups = min(groups, limit or groups)
    rows = Rows(
        np.arange(groups * shape.images).reshape(groups, -1), np.arange(groups * shape.captions).reshape(groups, -1)
    )
    prepared = subset(Prepared(images, captions, rows), np.arange(groups))
    digest = hashlib.sha256()
    for batch in (prepared.images, prepared.captions):
        assert not isinstance(batch, list), "features are tensors"
        tensors = batch.values() if isinstance(batch, Mapping) else [batch]
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().tobytes())
    return prepared, digest.hexdigest()


def subset(prepared: Prepared, groups: np.ndarray) -> Prepared:
    """Some groups of a prepared task, with only the images and captions that stand in them.

    Args:
        prepared: the task.
        groups: their positions, int.

    Returns:
        The same for these groups alone.
    """
    images, image_rows = np.unique(prepared.rows.images[groups], return_inverse=True)
    captions, caption_rows = np.unique(prepared.rows.captions[groups], return_inverse=True)
    rows = Rows(
        image_rows.reshape(len(groups), -1),
        caption_rows.reshape(len(groups), -1),
    )
    enlarged = None if prepared.enlarged is None else take(prepared.enlarged, images)
    return Prepared(take(prepared.images, images), take(prepared.captions, captions), rows, enlarged)


def encode(
    adapter: DualEncoder, prepared: Prepared, batch_size: int | AtOnce, blocks: Blocks | None = None
) -> Features:
    """Encodes every distinct image and caption once, without gradients.

    Args:
        adapter: the model.
        prepared: its inputs.
        batch_size: rows encoded at a time, fewer if memory runs out; changes no score.
        blocks: where finished blocks of features are kept, if anywhere.

    Returns:
        Features of both sides.
    """
    at_once = AtOnce.of(batch_size)
    with torch.inference_mode():
        return Features(
            images=_encode(adapter, adapter.encode_images, prepared.images, at_once, "images", blocks),
            captions=_encode(adapter, adapter.encode_captions, prepared.captions, at_once, "captions", blocks),
        )


def score_groups(adapter: DualEncoder, features: Features, rows: Rows) -> np.ndarray:
    """Logits inside every group.

    Each group is its own product, so that its scores depend neither on its neighbours nor on their number.

    Args:
        adapter: the model.
        features: of all distinct images and captions.
        rows: which of them stand in which group.

    Returns:
        float32 [groups, images, captions].
    """
    scores = np.empty((*rows.images.shape, rows.captions.shape[1]), dtype=np.float32)
    image_features = features.images[torch.from_numpy(rows.images)]
    caption_features = features.captions[torch.from_numpy(rows.captions)]
    with torch.inference_mode():
        logits = [
            adapter.logits(images, captions) for images, captions in zip(image_features, caption_features, strict=True)
        ]
        wanted = scores.shape[1:]
        wrong = next((one for one in logits if tuple(getattr(one, "shape", ())) != wanted), None)
        if wrong is not None:
            raise TtmbenchError(f"the model's logits have shape {_shape(wrong)}, {list(wanted)} are expected")
        scores[:] = torch.stack(logits).float().cpu().numpy()
    return scores


def score_all_pairs(adapter: DualEncoder, features: Features, rows: Rows) -> np.ndarray:
    """Logits of every image with every caption, in the order of the groups.

    Args:
        adapter: the model.
        features: of all distinct images and captions.
        rows: which of them stand in which group.

    Returns:
        float32 [groups * images, groups * captions].
    """
    with torch.inference_mode():
        distinct = adapter.logits(features.images, features.captions).float().cpu().numpy()
    if distinct.shape != (len(features.images), len(features.captions)):
        raise TtmbenchError(
            f"the model's logits have shape {list(distinct.shape)} for {len(features.images)} images and "
            f"{len(features.captions)} captions"
        )
    table: np.ndarray = distinct[np.ix_(rows.images.reshape(-1), rows.captions.reshape(-1))]
    return table


def score_with_pairs(
    adapter: PairScorer,
    groups: Sequence[Group],
    batch_size: int | AtOnce,
    all_pairs: bool,
    fingerprint: Fingerprint | None = None,
    blocks: Blocks | None = None,
) -> tuple[Scores, str]:
    """Scores a task pair by pair; each distinct pair is asked for once.

    Args:
        adapter: the model.
        groups: all of one shape, at least one.
        batch_size: pairs given to the model at a time, unless it says how many it takes (`ManyAtOnce`).
        all_pairs: also score every image with every caption of the task.
        fingerprint: of the data, if it has been begun.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        The scores and the fingerprint of the data.

    Raises:
        DataError: a picture cannot be read.
        TtmbenchError: too many pairs for the global variant, or the model did not return one score a pair.
    """
    fingerprint = fingerprint or Fingerprint(groups)
    images = dict((image.name, (group_id, image)) for group_id, image in distinct_images(groups))
    captions = list(dict.fromkeys(caption for group in groups for caption in group.captions))
    inside = [(image.name, c) for g in groups for image, c in product(g.images, g.captions)]
    wanted = list(dict.fromkeys(inside))
    if all_pairs:
        if len(images) * len(captions) > MAX_GLOBAL_PAIRS:
            raise TtmbenchError(
                f"a global metric needs {len(images) * len(captions)} pairs from a model that scores pair by pair; "
                f"at most {MAX_GLOBAL_PAIRS} are asked for. Use --limit, or a task inside groups."
            )
        wanted = list(product(images, captions))
    wanted.sort(key=_order_of(images))
    score: dict[tuple[str, str], float] = {}
    open_now: dict[str, Image] = {}
    open_picture = lru_cache(KEPT)(fingerprint.opener())
    at_once = AtOnce.of(adapter.pairs_at_once if isinstance(adapter, ManyAtOnce) else batch_size)

    def values_of(chosen: slice) -> np.ndarray:
        nonlocal open_now
        part = wanted[chosen]
        names = [name for name, _ in part]
        if isinstance(adapter, ManyAtOnce):
            pictures: Sequence[Image] = LazyPictures(names, open_picture)
        else:
            open_now = {name: open_now.get(name) or open_picture(name) for name in dict.fromkeys(names)}
            pictures = [open_now[name] for name in names]
        values = one_score_each(adapter.score_pairs(pictures, [c for _, c in part]), len(part))
        shown.update(len(part))
        return values

    with bar(len(wanted), "scoring", "pairs") as shown:
        for span in spans(len(wanted), PAIRS, at_once.rows):
            values = load(blocks, "pairs", span)
            if values is None:
                values = np.concatenate(list(at_once.over(span.start, span.stop, values_of)))
                save(blocks, "pairs", span, values)
            else:
                shown.update(len(values))
            score.update(zip(wanted[span.start : span.stop], values.tolist(), strict=True))
    fingerprint.take_in_the_rest()
    shape = (len(groups), len(groups[0].images), len(groups[0].captions))
    grouped = np.array([score[pair] for pair in inside], dtype=np.float32).reshape(shape)
    matrix = None
    if all_pairs:
        rows = [image.name for group in groups for image in group.images]
        columns = [caption for group in groups for caption in group.captions]
        matrix = np.array([[score[(row, column)] for column in columns] for row in rows], dtype=np.float32)
    return Scores(grouped, matrix), fingerprint.hexdigest()


def take(batch: Batch, index: np.ndarray | slice) -> Batch:
    """Some rows of prepared inputs."""
    rows = index if isinstance(index, slice) else torch.from_numpy(np.ascontiguousarray(index))
    if isinstance(batch, list):
        return batch[index] if isinstance(index, slice) else [batch[row] for row in index]
    if isinstance(batch, Mapping):
        return {name: tensor[rows] for name, tensor in batch.items()}
    return batch[rows]


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


def check_finite(scores: np.ndarray, groups: Sequence[Group]) -> None:
    """Raises TtmbenchError naming the first group for which the model gave a score that is not finite."""
    finite = np.isfinite(scores).all(axis=(1, 2))
    if not finite.all():
        group_id = groups[int(np.argmin(finite))].group_id
        raise TtmbenchError(f"the model gave group {group_id} a score that is not a finite number")


def _shape(value: Any) -> str:
    return str(list(value.shape)) if hasattr(value, "shape") else type(value).__name__


def one_score_each(values: Any, pairs: int) -> np.ndarray:
    """What a model returned for pairs, checked.

    Args:
        values: what it returned.
        pairs: number of pairs.

    Returns:
        float32 [pairs].

    Raises:
        TtmbenchError: it is no array of one real number a pair.
    """
    found = np.asarray(values)
    if found.shape != (pairs,):
        raise TtmbenchError(f"the model returned scores of shape {found.shape} for {pairs} pairs; one each is expected")
    if found.dtype.kind not in "fiu":
        raise TtmbenchError(f"the model returned scores of type {found.dtype}; real numbers are expected")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused by group
        return found.astype(np.float32)


def _rows(encoder: Callable[[Any], torch.Tensor], batch: Batch, rows: slice, side: str) -> torch.Tensor:
    """Features of some rows; TtmbenchError if there is not one each."""
    part = encoder(take(batch, rows))
    count = rows.stop - rows.start
    if not isinstance(part, torch.Tensor) or part.ndim < 1 or len(part) != count:
        raise TtmbenchError(f"the model returned features of shape {_shape(part)} for {count} inputs (encoding {side})")
    return part


def _encode(
    adapter: DualEncoder,
    encoder: Callable[[Any], torch.Tensor],
    batch: Batch,
    at_once: AtOnce,
    side: str,
    blocks: Blocks | None,
) -> torch.Tensor:
    parts: list[torch.Tensor] = []
    device: torch.device | None = None
    with bar(n_rows(batch), f"encoding {side}", side) as shown:
        for span in spans(n_rows(batch), FEATURES, at_once.rows):
            kept = load(blocks, side, span)
            if kept is None:
                done = at_once.over(span.start, span.stop, lambda rows: _rows(encoder, batch, rows, side))
                parts.append(torch.cat(list(done)))
                device = parts[-1].device
                if blocks is not None:
                    save(blocks, side, span, parts[-1].float().cpu().numpy())
            else:
                parts.append(torch.from_numpy(kept))
            shown.update(span.stop - span.start)
    if device is None:  # All features were kept, on the CPU; any row shows where the model has its own.
        stated = getattr(adapter, "device", None)
        device = stated if isinstance(stated, torch.device) else encoder(take(batch, slice(0, 1))).device
    return torch.cat([part.to(device) for part in parts])


def distinct_images(groups: Sequence[Group]) -> Iterator[tuple[str, ImageRef]]:
    """Each distinct picture once, with the first group that has it; in the order of rows."""
    seen: set[str] = set()
    for group in groups:
        for image in group.images:
            if image.name not in seen:
                seen.add(image.name)
                yield group.group_id, image


def distinct_captions(groups: Sequence[Group]) -> list[str]:
    """Each distinct caption once, in the order of rows."""
    return list(dict.fromkeys(caption for group in groups for caption in group.captions))


def rows_of(groups: Sequence[Group]) -> Rows:
    """Which distinct image and caption stands where."""
    image_row = {image.name: row for row, (_, image) in enumerate(distinct_images(groups))}
    caption_row = {caption: row for row, caption in enumerate(distinct_captions(groups))}
    return Rows(
        images=np.array([[image_row[image.name] for image in group.images] for group in groups]),
        captions=np.array([[caption_row[caption] for caption in group.captions] for group in groups]),
    )


def _order_of(images: Mapping[str, Any]) -> Callable[[tuple[str, str]], int]:
    """Sort key that keeps the pairs of one picture together, so that it is opened once."""
    position = {name: index for index, name in enumerate(images)}
    return lambda pair: position[pair[0]]
