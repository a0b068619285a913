"""Pairs that a model gave no score for: the task fails and names the groups, or these groups count as wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttmbench.errors import TtmbenchError
from ttmbench.protocols import MayRefuse
from ttmbench.types import Group, Scores

SHOWN = 8  # group ids in a message


def resolve_missing_scores(
    adapter: MayRefuse | None, scores: Scores, groups: Sequence[Group]
) -> tuple[Scores, list[str]]:
    """Decides what a missing score (NaN) of a model that may refuse means; other models' scores pass untouched.

    A group with a missing score gets one score for all of its pairs: it ties everywhere, and a tie is never correct.

    Args:
        adapter: the model; None for one that refuses nothing.
        scores: its scores.
        groups: in the order of the scores.

    Returns:
        Scores without NaN, and notes that list the groups.

    Raises:
        TtmbenchError: scores are missing and the model does not say that they count as wrong, or a score across groups
            is missing.
    """
    if adapter is None:
        return scores, []
    missing = np.isnan(scores.groups).any(axis=(1, 2))
    if scores.all_pairs is not None and np.isnan(scores.all_pairs).any():
        count = int(np.isnan(scores.all_pairs).sum())
        raise TtmbenchError(
            f"the model gave no score for {count} pairs, and one assignment over all pairs needs every one of them"
        )
    if not missing.any():
        return scores, []
    ids = [groups[index].group_id for index in np.flatnonzero(missing).tolist()]
    if not adapter.refusals_are_wrong:
        raise TtmbenchError(
            f"the model gave no score for a pair of {len(ids)} of {len(groups)} groups: {_some(ids)}. "
            "--model_args on_refusal=wrong counts such groups as wrong"
        )
    settled = scores.groups.copy()
    settled[missing] = 0.0
    which = f"{len(ids)} of {len(groups)} groups"
    note = f"{which} have a pair without a score and count as wrong in every metric: {', '.join(ids)}"
    return Scores(settled, scores.all_pairs), [note]


def _some(ids: Sequence[str]) -> str:
    rest = len(ids) - SHOWN
    return ", ".join(ids[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
