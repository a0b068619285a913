"""Scoring by models that see an image and a caption together: each picture is prepared and encoded once a pass.

Pairs are taken picture by picture, so that what a picture was encoded to is kept only as long as its captions come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ttmbench.errors import TtmbenchError
from ttmbench.progress import bar
from ttmbench.protocols import PreparedPairScorer
from ttmbench.scoring import (
    MAX_GLOBAL_PAIRS,
    Fingerprint,
    Prepared,
    Rows,
    concatenate,
    distinct_captions,
    distinct_images,
    n_rows,
    one_score_each,
    open_upright,
    rows_of,
    take,
)
from ttmbench.types import Group, Scores

if TYPE_CHECKING:
    from ttmbench.protocols import Batch

_Encoder = Callable[[np.ndarray], "Batch"]
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
    adapter: PreparedPairScorer, groups: Sequence[Group], batch_size: int, all_pairs: bool
) -> tuple[PairTable, str]:
    """Scores a task, opening each picture when its pairs come and dropping it afterwards.

    Args:
        adapter: the model.
        groups: all of one shape, at least one.
        batch_size: pairs given to the model at a time; changes no score.
        all_pairs: score every image with every caption of the task.

    Returns:
        The scores and the fingerprint of the data.

    Raises:
        DataError: a picture cannot be read.
        TtmbenchError: too many pairs, or the model did not return one score a pair.
    """
    fingerprint, rows = Fingerprint(groups), rows_of(groups)
    images = list(distinct_images(groups))

    def encoder(wanted: np.ndarray) -> Batch:
        pictures = []
        for row in wanted:
            group_id, image = images[row]
            pictures.append(open_upright(image, group_id))
            fingerprint.add(image.name, pictures[-1])
        return adapter.encode_images(adapter.prepare_images(pictures))

    captions = adapter.prepare_captions(distinct_captions(groups))
    table = _score(adapter, rows, encoder, captions, len(images), batch_size, all_pairs)
    return table, fingerprint.hexdigest()


def score_in_memory(adapter: PreparedPairScorer, prepared: Prepared, batch_size: int, all_pairs: bool) -> PairTable:
    """Scores prepared inputs: what TTM does again after every iteration.

    Args:
        adapter: the model.
        prepared: the task.
        batch_size: pairs given to the model at a time; changes no score.
        all_pairs: score every image with every caption of the task.

    Returns:
        The scores.

    Raises:
        TtmbenchError: too many pairs, or the model did not return one score a pair.
    """

    def encoder(wanted: np.ndarray) -> Batch:
        return adapter.encode_images(take(prepared.images, wanted))

    images = n_rows(prepared.images)
    return _score(adapter, prepared.rows, encoder, prepared.captions, images, batch_size, all_pairs)


def _score(
    adapter: PreparedPairScorer,
    rows: Rows,
    encoder: _Encoder,
    captions: Batch,
    n_images: int,
    batch_size: int,
    all_pairs: bool,
) -> PairTable:
    wanted = _wanted(rows, n_images, n_rows(captions), all_pairs)
    values = np.full((n_images, n_rows(captions)), np.nan, dtype=np.float32)
    kept: dict[int, Batch] = {}
    with torch.inference_mode(), bar(len(wanted), "scoring", "pairs") as shown:
        for start in range(0, len(wanted), batch_size):
            part = wanted[start : start + batch_size]
            needed = np.unique(part[:, 0])
            kept = {row: kept[row] for row in needed.tolist() if row in kept}
            new = np.array([row for row in needed.tolist() if row not in kept], dtype=np.int64)
            if len(new):
                encoded = encoder(new)
                kept |= {row: take(encoded, slice(place, place + 1)) for place, row in enumerate(new.tolist())}
            images = concatenate([kept[row] for row in part[:, 0].tolist()])
            values[part[:, 0], part[:, 1]] = one_score_each(
                adapter.score_prepared(images, take(captions, part[:, 1])), len(part)
            )
            shown.update(len(part))
    return PairTable(values, rows)


def _wanted(rows: Rows, n_images: int, n_captions: int, all_pairs: bool) -> np.ndarray:
    """Each distinct pair once, picture by picture: int [pairs, 2]."""
    if all_pairs:
        if n_images * n_captions > MAX_GLOBAL_PAIRS:
            raise TtmbenchError(
                f"every image with every caption makes {n_images * n_captions} pairs for a model that scores pair by "
                f"pair; at most {MAX_GLOBAL_PAIRS} are asked for. Use --limit, or what stays inside groups."
            )
        return np.indices((n_images, n_captions)).reshape(2, -1).T
    images, captions = np.broadcast_arrays(rows.images[:, :, None], rows.captions[:, None, :])
    return np.unique(np.stack([images.reshape(-1), captions.reshape(-1)], axis=1), axis=0)
