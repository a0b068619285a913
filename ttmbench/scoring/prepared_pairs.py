"""Scoring by models that see an image and a caption together: each image is prepared and encoded once a pass.

Pairs are taken image by image, so that what an image was encoded to is kept only as long as its captions come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from ttmbench._util.progress import progress_bar
from ttmbench.errors import TtmbenchError
from ttmbench.protocols import PreparedPairScorer
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import PAIRS, BlockStore, load, own_spans, save
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.image_rows import ImageRows, PreparedImages, Window
from ttmbench.scoring.inputs import (
    Prepared,
    Rows,
    concatenate,
    distinct_captions,
    n_rows,
    rows_of,
    take,
)
from ttmbench.scoring.pairs import MAX_GLOBAL_PAIRS, one_score_each
from ttmbench.types import Group, Scores

if TYPE_CHECKING:
    from ttmbench.protocols import Batch

_Inputs: TypeAlias = Callable[[np.ndarray], "Batch"]
"""Rows of distinct images, int [n] -> these, prepared."""

Opener: TypeAlias = Callable[[np.ndarray], AbstractContextManager[_Inputs]]
"""Rows of images that will be asked for, rising, int [n] -> where they are asked for."""

_TOGETHER = 8  # images that are made ready at a time


@dataclass(frozen=True)
class PairTable:
    """Scores of the distinct pairs of a task.

    Attributes:
        groups: float32 [groups, images, captions].
        values: float32 [distinct images, distinct captions]; None where only pairs inside groups were asked for.
        rows: which distinct image and caption stands where.
    """

    groups: np.ndarray
    values: np.ndarray | None
    rows: Rows

    @property
    def every(self) -> np.ndarray:
        """The values; for who asked for every pair."""
        assert self.values is not None, "every pair was asked for"
        return self.values

    def scores(self, all_pairs: bool) -> Scores:
        """The same by group; every pair of the task too if that was asked for."""
        order = np.ix_(self.rows.images.reshape(-1), self.rows.captions.reshape(-1))
        return Scores(self.groups, self.every[order] if all_pairs else None)


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
    images = ImageRows.of(adapter, groups, fingerprint, kept)
    captions = adapter.prepare_captions(distinct_captions(groups))

    table = _score(adapter, rows, streamed(images), captions, len(images), batch_size, all_pairs, blocks)
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

    @contextmanager
    def inputs(wanted: np.ndarray) -> Iterator[_Inputs]:
        yield lambda rows: take(prepared.images, rows)

    images = n_rows(prepared.images)
    return _score(adapter, prepared.rows, inputs, prepared.captions, images, batch_size, all_pairs, blocks)


def _score(
    adapter: PreparedPairScorer,
    rows: Rows,
    inputs: Opener,
    captions: Batch,
    n_images: int,
    batch_size: int | BatchSizer,
    all_pairs: bool,
    blocks: BlockStore | None,
) -> PairTable:
    wanted, inside = _wanted(rows, n_images, n_rows(captions), all_pairs)
    scores = score_wanted(adapter, inputs, captions, wanted, batch_size, blocks)
    values = scores.reshape(n_images, n_rows(captions)) if all_pairs else None
    return PairTable(scores[inside], values, rows)


def streamed(images: ImageRows) -> Opener:
    """Images that are opened when they are asked for, a few ahead, and dropped afterwards."""

    @contextmanager
    def prepared(wanted: np.ndarray) -> Iterator[_Inputs]:
        lists = [wanted[start : start + _TOGETHER] for start in range(0, len(wanted), _TOGETHER)]
        with images.parts(lists) as parts:
            yield Window(parts, lists).get

    return prepared


def score_wanted(
    adapter: PreparedPairScorer,
    inputs: Opener,
    captions: Batch,
    wanted: np.ndarray,
    batch_size: int | BatchSizer,
    blocks: BlockStore | None = None,
) -> np.ndarray:
    """Scores some pairs.

    Args:
        adapter: the model.
        inputs: where prepared images come from; only those of pairs that are not kept are asked for.
        captions: prepared.
        wanted: rows of images and captions, int [pairs, 2], image by image in the order of rows.
        batch_size: pairs given to the model at a time; changes no score.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        float32 [pairs].

    Raises:
        TtmbenchError: the model did not return one score a pair.
    """
    batch_sizer = BatchSizer.of(batch_size)
    cut = own_spans(len(wanted), PAIRS, batch_sizer.rows, blocks)
    kept = [load(blocks, "pairs", span) for span in cut]
    missing = [wanted[span.start : span.stop, 0] for span, found in zip(cut, kept, strict=True) if found is None]
    opened = np.unique(np.concatenate(missing)) if missing else np.array([], dtype=np.int64)
    scores = np.full(len(wanted), np.nan, dtype=np.float32)  # what is not of a share stays open
    bar = progress_bar(len(wanted), "scoring", "pairs")
    with torch.inference_mode(), bar as shown, inputs(opened) as images:
        for span, found in zip(cut, kept, strict=True):
            if found is None:
                work = _Batches(adapter, images, captions, wanted)
                found = np.concatenate(list(batch_sizer.map_batches(span.start, span.stop, work.score)))
                save(blocks, "pairs", span, found)
            shown.update(len(found))
            scores[span.start : span.stop] = found
    return scores


class _Batches:
    """Scores batches of pairs one after the other; an image that goes on in the next batch is encoded once."""

    def __init__(self, adapter: PreparedPairScorer, images: _Inputs, captions: Batch, wanted: np.ndarray) -> None:
        self._adapter, self._images, self._captions, self._wanted = adapter, images, captions, wanted
        # Begun anew with every span: what a batch encodes must not depend on where the run began.
        self._kept: dict[int, Batch] = {}

    def score(self, rows: slice) -> np.ndarray:
        """Scores of some of the pairs, float32 [rows]."""
        pairs = self._wanted[rows]
        self._kept = self._encoded(pairs[:, 0])
        images = concatenate([self._kept[row] for row in pairs[:, 0].tolist()])
        return one_score_each(self._adapter.score_prepared(images, take(self._captions, pairs[:, 1])), len(pairs))

    def _encoded(self, images: np.ndarray) -> dict[int, Batch]:
        """What the images of a batch are encoded to; those kept from the batch before are not encoded again."""
        needed = np.unique(images).tolist()
        found = {row: self._kept[row] for row in needed if row in self._kept}
        new = np.array([row for row in needed if row not in found], dtype=np.int64)
        if len(new):
            encoded = self._adapter.encode_images(self._images(new))
            found |= {row: take(encoded, slice(place, place + 1)) for place, row in enumerate(new.tolist())}
        return found


def _wanted(rows: Rows, n_images: int, n_captions: int, all_pairs: bool) -> tuple[np.ndarray, np.ndarray]:
    """Each distinct pair once, image by image, int [pairs, 2]; and which of them stands where in the groups."""
    places = rows.images[:, :, None] * n_captions + rows.captions[:, None, :]
    if all_pairs:
        if n_images * n_captions > MAX_GLOBAL_PAIRS:
            raise TtmbenchError(
                f"every image with every caption makes {n_images * n_captions} pairs for a model that scores pair by "
                f"pair; at most {MAX_GLOBAL_PAIRS} are asked for. Use --limit, or what stays inside groups."
            )
        return np.indices((n_images, n_captions)).reshape(2, -1).T, places
    distinct, inside = np.unique(places, return_inverse=True)
    return np.stack(np.divmod(distinct, n_captions), axis=1), inside.reshape(places.shape)
