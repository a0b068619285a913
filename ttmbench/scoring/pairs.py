"""Scoring by the least that a model can offer: one score for an image and a caption, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ttmbench._util.images import KEPT, LazyImages
from ttmbench._util.progress import progress_bar
from ttmbench.errors import TtmbenchError
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import PAIRS, BlockStore, load, own_spans, save
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.inputs import distinct_captions, distinct_images
from ttmbench.types import Group, Scores

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_GLOBAL_PAIRS = 20_000  # beyond this, asking a pair scorer for every pair is refused


def score_with_pairs(
    model: Capabilities,
    groups: Sequence[Group],
    batch_size: int | BatchSizer,
    all_pairs: bool,
    fingerprint: Fingerprint | None = None,
    blocks: BlockStore | None = None,
) -> tuple[Scores, str]:
    """Scores a task pair by pair; each distinct pair is asked for once.

    Args:
        model: a `PairScorer`.
        groups: all of one shape, at least one.
        batch_size: pairs given to the model at a time, unless it says how many it takes (`ManyAtOnce`).
        all_pairs: also score every image with every caption of the task.
        fingerprint: of the data, if it has been begun.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        The scores and the fingerprint of the data.

    Raises:
        DataError: an image cannot be read.
        TtmbenchError: too many pairs for the global variant, or the model did not return one score a pair.
    """
    fingerprint = fingerprint or Fingerprint(groups)
    names = [image.name for _, image in distinct_images(groups)]
    captions = distinct_captions(groups)
    inside = [(image.name, c) for g in groups for image, c in product(g.images, g.captions)]
    wanted = list(dict.fromkeys(inside))
    if all_pairs:
        if len(names) * len(captions) > MAX_GLOBAL_PAIRS:
            raise TtmbenchError(
                f"a global metric needs {len(names) * len(captions)} pairs from a model that scores pair by pair; "
                f"at most {MAX_GLOBAL_PAIRS} are asked for. Use --limit, or a task inside groups."
            )
        wanted = list(product(names, captions))
    wanted.sort(key=_order_of(names))
    open_image = fingerprint.opener()
    score = dict(zip(wanted, score_opened(model, wanted, batch_size, open_image, blocks).tolist(), strict=True))
    fingerprint.add_remaining()
    shape = (len(groups), len(groups[0].images), len(groups[0].captions))
    grouped = np.array([score[pair] for pair in inside], dtype=np.float32).reshape(shape)
    matrix = None
    if all_pairs:
        rows = [image.name for group in groups for image in group.images]
        columns = [caption for group in groups for caption in group.captions]
        matrix = np.array([[score[(row, column)] for column in columns] for row in rows], dtype=np.float32)
    return Scores(grouped, matrix), fingerprint.hexdigest()


def score_opened(
    model: Capabilities,
    wanted: Sequence[tuple[str, str]],
    batch_size: int | BatchSizer,
    open_image: Callable[[str], Image],
    blocks: BlockStore | None = None,
) -> np.ndarray:
    """Scores pairs by a model that takes opened images; a few of them are open at a time.

    Args:
        model: a `PairScorer`.
        wanted: names of images, and captions; the pairs of an image together.
        batch_size: pairs given to the model at a time, unless it says how many it takes (`ManyAtOnce`).
        open_image: name -> decoded image.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        float32 [pairs].

    Raises:
        DataError: an image cannot be read.
        TtmbenchError: the model did not return one score a pair.
    """
    adapter, many = model.pair_scorer, model.many_at_once
    assert adapter is not None, "only such a model is given pairs"
    batch_sizer = BatchSizer.of(batch_size if many is None else many.pairs_at_once)
    opened = lru_cache(KEPT)(open_image)
    open_now: dict[str, Image] = {}

    def score(rows: slice) -> np.ndarray:
        nonlocal open_now
        part = wanted[rows]
        names = [name for name, _ in part]
        if many is not None:
            images: Sequence[Image] = LazyImages(names, opened)
        else:
            open_now = {name: open_now.get(name) or opened(name) for name in dict.fromkeys(names)}
            images = [open_now[name] for name in names]
        values = one_score_each(adapter.score_pairs(images, [c for _, c in part]), len(part))
        shown.update(len(part))
        return values

    scores = np.full(len(wanted), np.nan, dtype=np.float32)  # what is not of a share stays open
    with progress_bar(len(wanted), "scoring", "pairs") as shown:
        for span in own_spans(len(wanted), PAIRS, batch_sizer.rows, blocks):
            values = load(blocks, "pairs", span)
            if values is None:
                values = np.concatenate(list(batch_sizer.map_batches(span.start, span.stop, score)))
                save(blocks, "pairs", span, values)
            else:
                shown.update(len(values))
            scores[span.start : span.stop] = values
    return scores


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


def _order_of(images: Sequence[str]) -> Callable[[tuple[str, str]], int]:
    """Sort key that keeps the pairs of one image together, so that it is opened once."""
    position = {name: index for index, name in enumerate(images)}
    return lambda pair: position[pair[0]]
