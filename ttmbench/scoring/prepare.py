"""Prepares a task for a model: every image decoded and preprocessed once, every caption tokenised once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttmbench._util.console import one_line, progress_bar
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model import Batch, DualEncoder, Model, PairScorer, StoredFeatures
from ttmbench.scoring.batches import BatchSizer, BlockStore
from ttmbench.scoring.dual_encoder import encode, score_features
from ttmbench.scoring.inputs import (
    Fingerprint,
    ImageRows,
    Prepared,
    Rows,
    concatenate,
    distinct_captions,
    distinct_images,
    n_rows,
    rows_of,
    subset,
)
from ttmbench.scoring.pairs import score_in_memory
from ttmbench.types import Group, GroupShape, Scores

if TYPE_CHECKING:
    from PIL.Image import Image


def prepare(
    adapter: DualEncoder | PairScorer,
    groups: Sequence[Group],
    batch_size: int,
    enlarge: float | None = None,
    fingerprint: Fingerprint | None = None,
) -> tuple[Prepared, str]:
    """Decodes and preprocesses every distinct image once and tokenises every distinct caption once.

    Args:
        adapter: the model.
        groups: all of one shape, at least one.
        batch_size: images held decoded at a time.
        enlarge: also prepare the images so many times as large, for augmentation; UsageError if the model cannot.
        fingerprint: of the data, if it has been begun.

    Returns:
        The prepared inputs and the fingerprint of the data.
    """
    augmented = adapter if isinstance(adapter, DualEncoder) and adapter.augments else None
    if enlarge is not None and augmented is None:
        raise UsageError("this model's adapter cannot augment (prepare_enlarged, crop); use --ttm_args augment=false")
    fingerprint = fingerprint or Fingerprint(groups)
    images = ImageRows(adapter, list(distinct_images(groups)), fingerprint, batch_size)
    made: list[tuple[Batch, Batch | None]] = []

    def make(opened: list[Image]) -> tuple[Batch, Batch | None]:
        batch = adapter.prepare_images(opened)
        if enlarge is None or augmented is None:
            return batch, None
        return batch, augmented.prepare_enlarged(opened, enlarge)

    count = len(images)
    wanted = [np.arange(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    with progress_bar(count, "preparing", "images") as shown, images.made_of(wanted, make) as pieces:
        for listed in pieces:
            made += listed
            shown.update(sum(n_rows(batch) for batch, _ in listed))
    larger = [enlarged for _, enlarged in made if enlarged is not None]
    prepared = Prepared(
        concatenate([batch for batch, _ in made]),
        adapter.prepare_captions(distinct_captions(groups)),
        rows_of(groups),
        concatenate(larger) if larger else None,
    )
    return prepared, fingerprint.hexdigest()


def stored(adapter: StoredFeatures, shape: GroupShape, limit: int | None) -> tuple[Prepared, str]:
    """Inputs of a model that reads precomputed embeddings, of at most ``limit`` groups, and their fingerprint.

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
    for batch in (prepared.images, prepared.captions):
        assert not isinstance(batch, list), "features are tensors"
        tensors = batch.values() if isinstance(batch, Mapping) else [batch]
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().tobytes())
    return prepared, digest.hexdigest()


@dataclass(frozen=True)
class PreparedTask:
    """A model, a task's prepared inputs and how to score them: what every variant of TTM works on."""

    adapter: DualEncoder | PairScorer
    prepared: Prepared
    batch_size: int | BatchSizer
    is_global: bool
    all_pairs: bool

    def score(self, blocks: BlockStore | None = None) -> Scores:
        """One scoring pass, for metrics and matching alike; stores finished blocks of pairs where given."""
        if not isinstance(self.adapter, DualEncoder):
            table = score_in_memory(self.adapter, self.prepared, self.batch_size, self.all_pairs, blocks)
            return table.scores(self.all_pairs)
        return score_features(self.adapter, encode(self.adapter, self.prepared, self.batch_size), self.all_pairs)


SHOWN = 8  # group ids in a message


def usable_scores(model: Model, scores: Scores, groups: Sequence[Group]) -> tuple[Scores, list[str]]:
    """Scores without NaN, and a sentence that lists the groups with a missing score, if there are any.

    A group with a missing score (of a model whose refusals count as wrong) ties everywhere, and a tie is never correct.
    TtmbenchError if a score is infinite or missing, and the model does not say that missing ones count as wrong.
    """
    notes = []
    if isinstance(model, PairScorer) and model.refusals_are_wrong is not None:
        missing = np.isnan(scores.groups).any(axis=(1, 2))
        if scores.all_pairs is not None and np.isnan(scores.all_pairs).any():
            count = int(np.isnan(scores.all_pairs).sum())
            raise TtmbenchError(
                f"the model gave no score for {count} pairs, and one assignment over all pairs needs every one of them"
            )
        ids = [groups[index].group_id for index in np.flatnonzero(missing).tolist()]
        if ids and not model.refusals_are_wrong:
            taken = model.take_undecided()
            shown = ", ".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
            raise TtmbenchError(
                f"the model gave no score for a pair of {len(ids)} of {len(groups)} groups: {shown}. "
                "--model_args on_refusal=wrong counts such groups as wrong"
                + (f"; {taken.remedy}" if taken is not None and taken.instead else "")
            )
        if ids:
            which = f"{len(ids)} of {len(groups)} groups have a pair without a score"
            notes = [f"{which} and count as wrong in every metric: {', '.join(ids)}"]
        scores = Scores(np.where(missing[:, None, None], np.float32(0), scores.groups), scores.all_pairs)
    for array in (scores.groups, scores.all_pairs):
        if array is not None and not np.isfinite(array).all():
            finite = np.isfinite(array).reshape(len(groups), -1).all(axis=1)
            group_id = groups[int(np.argmin(finite))].group_id
            raise TtmbenchError(f"the model gave group {group_id} a score that is NaN or infinite")
    return scores, notes


def check_captions(model: Model, groups: Sequence[Group]) -> None:
    """TtmbenchError for a caption that the model cannot read as text."""
    captions = distinct_captions(groups)
    for caption, token in zip(captions, model.refused(captions), strict=True):
        if token is not None:
            group_id = next(group.group_id for group in groups if caption in group.captions)
            raise TtmbenchError(
                f"group {group_id}: the caption {one_line(caption, 200)!r} contains {token!r}, which this model reads "
                "as a special token and not as text; change the caption, or leave the group out (--samples)"
            )


def count_truncated(model: Model, groups: Sequence[Group]) -> tuple[dict[str, int] | None, list[str]]:
    """How many ``captions`` of a task a model cuts, ``of`` all distinct ones, and the ``groups`` that have one.

    None for a model that does not say. Also a sentence for the task's notes if captions are cut. TtmbenchError if it
    did not answer for each caption.
    """
    captions = distinct_captions(groups)
    said = model.truncated(captions)
    if said is None:
        return None, []
    answers = np.asarray(said, dtype=bool)
    if answers.shape != (len(captions),):
        raise TtmbenchError(
            f"truncated() of {type(model).__name__} gave an array of shape {list(answers.shape)} for {len(captions)} "
            "captions; one answer each is expected"
        )
    cut = {caption for caption, answer in zip(captions, answers.tolist(), strict=True) if answer}
    touched = sum(any(caption in cut for caption in group.captions) for group in groups)
    counted = {"captions": len(cut), "of": len(captions), "groups": touched}
    if not cut:
        return counted, []
    return counted, [
        f"{len(cut)} of {len(captions)} captions are longer than the model reads and were cut (in {touched} groups): "
        "captions that differ beyond the cut tie"
    ]


def unknown_wrappers(model: DualEncoder, wrappers: Sequence[str]) -> str:
    """Says which words around captions, ``a photo of {}``, a model does not know; empty if it knows all."""
    unknown = model.has_unknown_words([wrapper.replace("{}", "") for wrapper in wrappers])
    listed = ", ".join(repr(wrapper) for wrapper, is_unknown in zip(wrappers, unknown, strict=True) if is_unknown)
    return f"its vocabulary lacks words of the wrappers {listed}" if listed else ""
