"""Captions that are longer than the model reads: counted, once for each distinct one, and said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ttmbench.errors import TtmbenchError
from ttmbench.protocols import Truncating
from ttmbench.scoring.inputs import distinct_captions
from ttmbench.types import Group


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
