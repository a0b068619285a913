"""What of a task a model left out, and sentences that say so: pairs without a score, captions that are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ttmbench.errors import TtmbenchError
from ttmbench.protocols import MayRefuse, Truncating
from ttmbench.scoring.fingerprint import distinct_captions
from ttmbench.types import Group, Scores

SHOWN = 8  # group ids in a message


def usable_scores(adapter: MayRefuse | None, scores: Scores, groups: Sequence[Group]) -> Scores:
    """Scores without NaN: a group that misses one (of a model whose refusals count as wrong) ties everywhere.

    A tie is never correct.

    Args:
        adapter: the model; None for one that refuses nothing.
        scores: its scores.
        groups: in the order of the scores.

    Returns:
        The scores, all finite.

    Raises:
        TtmbenchError: a score is infinite or missing, and the model does not say that missing ones count as wrong.
    """
    if adapter is not None:
        missing = np.isnan(scores.groups).any(axis=(1, 2))
        if scores.all_pairs is not None and np.isnan(scores.all_pairs).any():
            count = int(np.isnan(scores.all_pairs).sum())
            raise TtmbenchError(
                f"the model gave no score for {count} pairs, and one assignment over all pairs needs every one of them"
            )
        if missing.any() and not adapter.refusals_are_wrong:
            ids = _missing_ids(scores, groups)
            shown = ", ".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
            raise TtmbenchError(
                f"the model gave no score for a pair of {len(ids)} of {len(groups)} groups: {shown}. "
                "--model_args on_refusal=wrong counts such groups as wrong"
            )
        scores = Scores(np.where(missing[:, None, None], np.float32(0), scores.groups), scores.all_pairs)
    finite = np.isfinite(scores.groups).all(axis=(1, 2))
    if not finite.all():
        group_id = groups[int(np.argmin(finite))].group_id
        raise TtmbenchError(f"the model gave group {group_id} a score that is not a finite number")
    if scores.all_pairs is not None and not np.isfinite(scores.all_pairs).all():
        image = int(np.argmin(np.isfinite(scores.all_pairs).all(axis=1)))
        group_id = groups[image // scores.shape.images].group_id
        raise TtmbenchError(f"the model gave an image of group {group_id} a score that is not a finite number")
    return scores


def refusal_notes(scores: Scores, groups: Sequence[Group]) -> list[str]:
    """A sentence that lists the groups with a missing score (NaN); none where there are none."""
    ids = _missing_ids(scores, groups)
    which = f"{len(ids)} of {len(groups)} groups"
    wrong = f"{which} have a pair without a score and count as wrong in every metric: {', '.join(ids)}"
    return [wrong] if ids else []


def _missing_ids(scores: Scores, groups: Sequence[Group]) -> list[str]:
    missing = np.isnan(scores.groups).any(axis=(1, 2))
    return [groups[index].group_id for index in np.flatnonzero(missing).tolist()]


def count_truncated(adapter: Truncating | None, groups: Sequence[Group]) -> dict[str, int] | None:
    """How many captions of a task a model cuts.

    Args:
        adapter: the model; None for one that does not say, or reads no captions.
        groups: of the task.

    Returns:
        ``captions`` that are cut ``of`` all distinct ones, and the ``groups`` that have one; None without a model.

    Raises:
        TtmbenchError: the model did not give one answer a caption.
    """
    if adapter is None:
        return None
    captions = distinct_captions(groups)
    answers = np.asarray(adapter.truncated(captions), dtype=bool)
    if answers.shape != (len(captions),):
        raise TtmbenchError(
            f"truncated() of {type(adapter).__name__} gave an array of shape {list(answers.shape)} for {len(captions)} "
            "captions; one answer each is expected"
        )
    cut = {caption for caption, answer in zip(captions, answers.tolist(), strict=True) if answer}
    touched = sum(any(caption in cut for caption in group.captions) for group in groups)
    return {"captions": len(cut), "of": len(captions), "groups": touched}


def truncated_notes(counted: Mapping[str, int] | None) -> list[str]:
    """A sentence for the task's notes where captions are cut; none elsewhere."""
    if not counted or not counted["captions"]:
        return []
    return [
        f"{counted['captions']} of {counted['of']} captions are longer than the model reads and were cut (in "
        f"{counted['groups']} groups): captions that differ beyond the cut tie"
    ]
