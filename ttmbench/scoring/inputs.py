"""What a model is given: each distinct image and caption of a task once, and where each one stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ttmbench._annotations import Batch
from ttmbench.types import Group, ImageRef


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


def take(batch: Batch, index: np.ndarray | slice) -> Batch:
    """Some rows of prepared inputs."""
    if isinstance(batch, list):
        return batch[index] if isinstance(index, slice) else [batch[row] for row in index]
    if isinstance(batch, Mapping):
        return {name: _rows(tensor, index) for name, tensor in batch.items()}
    return _rows(batch, index)


def _rows(tensor: torch.Tensor, index: np.ndarray | slice) -> torch.Tensor:
    """Some rows of a tensor; of images twice as fast as by indexing, which goes number by number."""
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


def rows_of(groups: Sequence[Group]) -> Rows:
    """Which distinct image and caption stands where."""
    image_row = {image.name: row for row, (_, image) in enumerate(distinct_images(groups))}
    caption_row = {caption: row for row, caption in enumerate(distinct_captions(groups))}
    return Rows(
        images=np.array([[image_row[image.name] for image in group.images] for group in groups]),
        captions=np.array([[caption_row[caption] for caption in group.captions] for group in groups]),
    )
