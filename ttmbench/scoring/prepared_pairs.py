"""Scoring by models that see an image and a caption together: each image is prepared and encoded once a pass.

Pairs are taken image by image, so that what an image was encoded to is kept only as long as its captions come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ttmbench._util.progress import progress_bar
from ttmbench.errors import TtmbenchError
from ttmbench.protocols import PreparedPairScorer
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import PAIRS, BlockStore, load, save, spans
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.inputs import (
    Prepared,
    Rows,
    concatenate,
    distinct_captions,
    distinct_images,
    n_rows,
    rows_of,
    take,
)
from ttmbench.scoring.pairs import MAX_GLOBAL_PAIRS, one_score_each
from ttmbench.scoring.prepare import PreparedImages, prepare_some
from ttmbench.types import Group, Scores

if TYPE_CHECKING:
    from ttmbench.protocols import Batch

ImageEncoder = Callable[[np.ndarray], "Batch"]
"""Rows of distinct images, int [n] -> these, encoded."""


@dataclass(frozen=True)
class PairTable:
    """Scores by distinct image and caption.

    Attributes:
        values: float32 [distinct images, distinct captions]; NaN where the pair was not asked for.
        rows: which distinct image and caption stands where.
    """

    values: np.ndarray
    rows: Rows

    def scores(self, all_pairs: bool) -> Scores:
        """The same by group; every pair of the task too if that was asked for."""
        groups = self.values[self.rows.images[:, :, None], self.rows.captions[:, None, :]]
        matrix = (
            self.values[np.ix_(self.rows.images.reshape(-1), self.rows.captions.reshape(-1))] if all_pairs else None
        )
        return Scores(groups, matrix)


def score_streaming(
    adapter: PreparedPairScorer,
    groups: Sequence[Group],
    batch_size: int | BatchSizer,
    all_pairs: bool,
    fingerprint: Fingerprint | None = None,
    kept: PreparedImages | None = None,
    blocks: BlockStore | None = None,
) -> tuple[PairTable, str]:
    """Scores a task, opening each image when its pairs come and dropping it afterwards.

    Args:
        adapter: the model.
        groups: all of one shape, at least one.
        batch_size: pairs given to the model at a time; changes no score.
        all_pairs: score every image with every caption of the task.
        fingerprint: of the data, if it has been begun.
        kept: where prepared images are kept, if anywhere.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        The scores and the fingerprint of the data.

    Raises:
        DataError: an image cannot be read.
        TtmbenchError: too many pairs, or the model did not return one score a pair.
    """
    fingerprint, rows = fingerprint or Fingerprint(groups), rows_of(groups)
    images = list(distinct_images(groups))

    def encoder(wanted: np.ndarray) -> Batch:
        return adapter.encode_images(prepare_some(adapter, [images[row] for row in wanted], fingerprint, kept))

    captions = adapter.prepare_captions(distinct_captions(groups))
    table = _score(adapter, rows, encoder, captions, len(images), batch_size, all_pairs, blocks)
    fingerprint.add_remaining()
    return table, fingerprint.hexdigest()


def score_in_memory(
    adapter: PreparedPairScorer,
    prepared: Prepared,
    batch_size: int | BatchSizer,
    all_pairs: bool,
    blocks: BlockStore | None = None,
) -> PairTable:
    """Scores prepared inputs: what TTM does again after every iteration.

    Args:
        adapter: the model.
        prepared: the task.
        batch_size: pairs given to the model at a time; changes no score.
        all_pairs: score every image with every caption of the task.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        The scores.

    Raises:
        TtmbenchError: too many pairs, or the model did not return one score a pair.
    """

    def encoder(wanted: np.ndarray) -> Batch:
        return adapter.encode_images(take(prepared.images, wanted))

    images = n_rows(prepared.images)
    return _score(adapter, prepared.rows, encoder, prepared.captions, images, batch_size, all_pairs, blocks)


def _score(
    adapter: PreparedPairScorer,
    rows: Rows,
    encoder: ImageEncoder,
    captions: Batch,
    n_images: int,
    batch_size: int | BatchSizer,
    all_pairs: bool,
    blocks: BlockStore | None,
) -> PairTable:
    wanted = _wanted(rows, n_images, n_rows(captions), all_pairs)
    values = np.full((n_images, n_rows(captions)), np.nan, dtype=np.float32)
    values[tuple(wanted.T)] = score_wanted(adapter, encoder, captions, wanted, batch_size, blocks)
    return PairTable(values, rows)


def score_wanted(
    adapter: PreparedPairScorer,
    encoder: ImageEncoder,
    captions: Batch,
    wanted: np.ndarray,
    batch_size: int | BatchSizer,
    blocks: BlockStore | None = None,
) -> np.ndarray:
    """Scores some pairs.

    Args:
        adapter: the model.
        encoder: encodes images.
        captions: prepared.
        wanted: rows of images and captions, int [pairs, 2], the pairs of an image together.
        batch_size: pairs given to the model at a time; changes no score.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        float32 [pairs].

    Raises:
        TtmbenchError: the model did not return one score a pair.
    """
    batch_sizer, values = BatchSizer.of(batch_size), np.empty(len(wanted), dtype=np.float32)
    with torch.inference_mode(), progress_bar(len(wanted), "scoring", "pairs") as shown:
        for span in spans(len(wanted), PAIRS, batch_sizer.rows):
            found = load(blocks, "pairs", span)
            if found is None:
                work = _Batches(adapter, encoder, captions, wanted)
                found = np.concatenate(list(batch_sizer.map_batches(span.start, span.stop, work.score)))
                shown.update(len(found))
                save(blocks, "pairs", span, found)
            else:
                shown.update(len(found))
            values[span.start : span.stop] = found
    return values


class _Batches:
    """Scores batches of pairs one after the other; an image that goes on in the next batch is encoded once."""

    def __init__(self, adapter: PreparedPairScorer, encoder: ImageEncoder, captions: Batch, wanted: np.ndarray) -> None:
        self._adapter, self._encoder, self._captions, self._wanted = adapter, encoder, captions, wanted
        # Begun anew with every span: what a batch encodes must not depend on where the run began.
        self._kept: dict[int, Batch] = {}

    def score(self, rows: slice) -> np.ndarray:
        """Scores of some of the pairs, float32 [rows]."""
        pairs = self._wanted[rows]
        self._kept = _encoded(self._encoder, self._kept, pairs[:, 0])
        images = concatenate([self._kept[row] for row in pairs[:, 0].tolist()])
        return one_score_each(self._adapter.score_prepared(images, take(self._captions, pairs[:, 1])), len(pairs))


def _encoded(encoder: ImageEncoder, kept: dict[int, Batch], images: np.ndarray) -> dict[int, Batch]:
    """What the images of a batch are encoded to; those that are kept from the batch before are not encoded again."""
    needed = np.unique(images).tolist()
    found = {row: kept[row] for row in needed if row in kept}
    new = np.array([row for row in needed if row not in found], dtype=np.int64)
    if len(new):
        encoded = encoder(new)
        found |= {row: take(encoded, slice(place, place + 1)) for place, row in enumerate(new.tolist())}
    return found


def _wanted(rows: Rows, n_images: int, n_captions: int, all_pairs: bool) -> np.ndarray:
    """Each distinct pair once, image by image: int [pairs, 2]."""
    if all_pairs:
        if n_images * n_captions > MAX_GLOBAL_PAIRS:
            raise TtmbenchError(
                f"every image with every caption makes {n_images * n_captions} pairs for a model that scores pair by "
                f"pair; at most {MAX_GLOBAL_PAIRS} are asked for. Use --limit, or what stays inside groups."
            )
        return np.indices((n_images, n_captions)).reshape(2, -1).T
    images, captions = np.broadcast_arrays(rows.images[:, :, None], rows.captions[:, None, :])
    return np.unique(np.stack([images.reshape(-1), captions.reshape(-1)], axis=1), axis=0)
