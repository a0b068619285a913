"""Scores of pairs of an image and a caption, by models that see both together; each distinct pair is scored once.

A model that prepares images encodes each of them once a pass; any other gets opened images.
Pairs are taken image by image, so that an encoded image stays in memory only as long as its captions come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from ttmbench._util.console import progress_bar
from ttmbench._util.images import KEPT, LazyImages
from ttmbench._util.third_party import foreign_errors
from ttmbench.errors import TtmbenchError
from ttmbench.model import PairScorer
from ttmbench.scoring.batches import PAIRS, BatchSizer, BlockStore, load, save, spans
from ttmbench.scoring.inputs import Inputs, Prepared, Rows, Window, concatenate, row_each, take
from ttmbench.types import Scores

if TYPE_CHECKING:
    from PIL.Image import Image

    from ttmbench.model import Batch

MAX_GLOBAL_PAIRS = 20_000  # beyond this, asking a pair scorer for every pair is refused
LOWEST = np.float32(-1e30)  # below every logit
_TOGETHER = 8  # images that are made ready at a time

_Score: TypeAlias = Callable[[slice], np.ndarray]
"""Some of the pairs that are wanted -> their scores, float32."""

_Open: TypeAlias = Callable[[np.ndarray], AbstractContextManager[Callable[[], _Score]]]
"""Rows of images that will be asked for, rising -> what begins a span of pairs."""


@dataclass(frozen=True)
class PairTable:
    """Scores of the distinct pairs of a task, float32."""

    groups: np.ndarray  # [groups, images, captions]
    values: np.ndarray | None  # [distinct images, distinct captions]; None for pairs inside groups
    rows: Rows  # which distinct image and caption is where

    @property
    def every(self) -> np.ndarray:
        """The values; for callers that asked for every pair."""
        assert self.values is not None, "every pair was asked for"
        return self.values

    def scores(self, all_pairs: bool) -> Scores:
        """The same by group; every pair of the task too if that was asked for."""
        order = np.ix_(self.rows.images.reshape(-1), self.rows.captions.reshape(-1))
        return Scores(self.groups, self.every[order] if all_pairs else None)


def pair_table(
    model: PairScorer,
    inputs: Prepared | Inputs,
    batch_size: int | BatchSizer,
    all_pairs: bool,
    blocks: BlockStore | None = None,
) -> PairTable:
    """Scores each distinct pair of a task once, image by image, as `score_pairs`; TtmbenchError for too many."""
    rows, n_captions = inputs.rows, int(inputs.rows.captions.max()) + 1
    places = rows.images[:, :, None] * n_captions + rows.captions[:, None, :]
    if not all_pairs:
        distinct, inside = np.unique(places, return_inverse=True)
        wanted = np.stack(np.divmod(distinct, n_captions), axis=1)
        scores = score_pairs(model, inputs, wanted, batch_size, blocks)
        return PairTable(scores[inside.reshape(places.shape)], None, rows)
    n_images = int(rows.images.max()) + 1
    if n_images * n_captions > MAX_GLOBAL_PAIRS:
        raise TtmbenchError(
            f"every image with every caption makes {n_images * n_captions} pairs for a model that scores pair by "
            f"pair; at most {MAX_GLOBAL_PAIRS} are asked for. Use --limit, or what stays inside groups."
        )
    wanted = np.indices((n_images, n_captions)).reshape(2, -1).T
    scores = score_pairs(model, inputs, wanted, batch_size, blocks)
    return PairTable(scores[places], scores.reshape(n_images, n_captions), rows)


def score_ranked_pairs(
    model: PairScorer,
    inputs: Inputs,
    wanted: np.ndarray,
    batch_sizer: BatchSizer,
    blocks: BlockStore | None = None,
) -> np.ndarray:
    """As `score_pairs`, for ranking: a refused pair has the lowest score if the model counts refusals as wrong.

    Every other score must be finite, else TtmbenchError.
    """
    values = score_pairs(model, inputs, wanted, batch_sizer, blocks)
    finite = np.isfinite(values)
    if not finite.all() and not model.refusals_are_wrong:
        image, caption = wanted[int(np.argmin(finite))]
        raise TtmbenchError(
            f"the model gave no score for image {inputs.images[image][1].name} with caption "
            f"{inputs.captions[caption]!r:.80}"
        )
    return np.where(finite, values, LOWEST)


def score_pairs(
    model: PairScorer,
    inputs: Prepared | Inputs,
    wanted: np.ndarray,
    batch_size: int | BatchSizer,
    blocks: BlockStore | None = None,
) -> np.ndarray:
    """Scores of pairs, float32 [pairs], of prepared inputs, or each image opened when its pairs come, and then dropped.

    ``wanted`` are the rows of images and captions, int [pairs, 2], image by image in the order of rows. The model gets
    ``batch_size`` pairs at a time, unless it says how many it takes (``pairs_at_once``). Finished blocks of scores are
    stored in ``blocks``. DataError if an image cannot be read; TtmbenchError if the model did not return one score a
    pair.
    """
    sizer = BatchSizer.of(batch_size)
    if isinstance(inputs, Prepared):
        images, tokens = inputs.images, inputs.captions

        def begin() -> _Score:
            return _PreparedBatches(model, lambda rows: take(images, rows), tokens, wanted).score

        return _in_blocks(wanted, lambda rows: nullcontext(begin), sizer, blocks)
    if not model.prepares:
        open_image = lru_cache(KEPT)(inputs.open)
        last: dict[str, Image] = {}

        def score(some: slice) -> np.ndarray:
            names = [inputs.images[row][1].name for row in wanted[some, 0].tolist()]
            texts = [inputs.captions[row] for row in wanted[some, 1].tolist()]
            shown: Sequence[Image] = LazyImages(names, open_image)
            if model.pairs_at_once is None:  # few are open at a time, those of the last batch among them
                opened = {name: last.get(name) or open_image(name) for name in dict.fromkeys(names)}
                last.clear()
                last.update(opened)
                shown = [opened[name] for name in names]
            values = model.score_pairs(shown, texts)
            with foreign_errors(f"score_pairs of {type(model).__name__}", function=model.score_pairs):
                return _one_score_each(values, len(names))

        sizer = BatchSizer.of(model.pairs_at_once or sizer)
        return _in_blocks(wanted, lambda rows: nullcontext(lambda: score), sizer, blocks)
    captions = row_each(model.prepare_captions, inputs.captions)

    @contextmanager
    def streamed(opened: np.ndarray) -> Iterator[Callable[[], _Score]]:
        lists = [opened[start : start + _TOGETHER] for start in range(0, len(opened), _TOGETHER)]
        with closing(inputs.parts(model, lists)) as parts:
            window = Window(parts, lists)
            yield lambda: _PreparedBatches(model, window.get, captions, wanted).score

    return _in_blocks(wanted, streamed, sizer, blocks)


def _in_blocks(
    wanted: np.ndarray, open_images: _Open, batch_sizer: BatchSizer, blocks: BlockStore | None
) -> np.ndarray:
    """Scores pairs span by span, float32 [pairs]; only images of pairs that are in no finished block are opened."""
    cut = spans(len(wanted), PAIRS, batch_sizer.rows)[slice(None) if blocks is None else blocks.share]
    finished = [load(blocks, span) for span in cut]
    missing = [wanted[span.start : span.stop, 0] for span, values in zip(cut, finished, strict=True) if values is None]
    opened = np.unique(np.concatenate(missing)) if missing else np.array([], dtype=np.int64)
    scores = np.full(len(wanted), np.nan, dtype=np.float32)  # what is not of a share stays open
    with progress_bar(len(wanted), "scoring", "pairs") as shown, open_images(opened) as begin:
        for span, values in zip(cut, finished, strict=True):
            start = span.start
            for part in batch_sizer.map_batches(start, span.stop, begin()) if values is None else [values]:
                scores[start : start + len(part)] = part
                start += len(part)
                shown.update(len(part))
            if values is None:
                save(blocks, span, scores[span.start : span.stop])
    return scores


class _PreparedBatches:
    """Scores batches of pairs one after the other; an image that goes on in the next batch is encoded once.

    There is a new one for every span: what a batch encodes must not depend on where the run began.
    """

    def __init__(
        self,
        adapter: PairScorer,
        images: Callable[[np.ndarray], Batch],
        captions: Batch,
        wanted: np.ndarray,
    ) -> None:
        self._adapter, self._images, self._captions, self._wanted = adapter, images, captions, wanted
        self._encoded: dict[int, Batch] = {}

    def score(self, rows: slice) -> np.ndarray:
        """Scores of some of the pairs, float32 [rows]."""
        pairs = self._wanted[rows]
        with torch.inference_mode():
            needed = np.unique(pairs[:, 0]).tolist()
            self._encoded = {row: self._encoded[row] for row in needed if row in self._encoded}
            new = np.array([row for row in needed if row not in self._encoded], dtype=np.int64)
            if len(new):
                encoded = self._adapter.encode_images(self._images(new))
                self._encoded |= {row: take(encoded, slice(at, at + 1)) for at, row in enumerate(new.tolist())}
            images = concatenate([self._encoded[row] for row in pairs[:, 0].tolist()])
            return _one_score_each(self._adapter.score_prepared(images, take(self._captions, pairs[:, 1])), len(pairs))


def _one_score_each(values: object, pairs: int) -> np.ndarray:
    """What a model returned for pairs as float32 [pairs]; TtmbenchError unless it is one real number a pair."""
    scores = np.asarray(values)
    if scores.shape != (pairs,):
        raise TtmbenchError(
            f"the model returned scores of shape {scores.shape} for {pairs} pairs; one each is expected"
        )
    if scores.dtype.kind not in "fiu":
        raise TtmbenchError(f"the model returned scores of type {scores.dtype}; real numbers are expected")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused by group
        return scores.astype(np.float32)
