"""The label audit of a method: with the captions of every group in another order it must answer alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ttmbench._arrays.scores import fewer_first
from ttmbench.errors import AssertionNotMet
from ttmbench.matching import match_groups
from ttmbench.types import Matching, Record, Scores

CLEAR = 0.01  # of the median margin: below it rounding may decide


def audit_labels(name: str, found: Mapping[int, Scores], again: Callable[[int], Scores]) -> Record:
    """Compares every clear matching of each seed with that of a second run.

    A method that knows nothing but what it is given answers alike. Sums in another order differ by rounding, which
    training carries on: groups whose margin is below 1 % of the median margin are not compared.

    Args:
        name: of the method.
        found: seed -> its scores.
        again: runs a seed with the captions of every group in another order.

    Returns:
        For results: ``passed``, and how many groups were ``compared`` of how many.

    Raises:
        AssertionNotMet: a clear matching differs.
    """
    compared = 0
    for seed, scores in found.items():
        matching, repeated = (match_groups(fewer_first(each.groups)) for each in (scores, again(seed)))
        clear = is_clear(matching)
        differs = clear & (matching.captions != repeated.captions).any(axis=1)
        if differs.any():
            raise AssertionNotMet(
                f"method '{name}', seed {seed}: with the captions of every group in another order, "
                f"{int(differs.sum())} of {int(clear.sum())} clear matchings differ, that of group "
                f"{int(np.argmax(differs))} first: something reads positions"
            )
        compared += int(clear.sum())
    return {"passed": True, "compared": compared, "of": sum(len(scores.groups) for scores in found.values())}


def is_clear(matching: Matching) -> np.ndarray:
    """Of which groups the matching has a margin that rounding does not decide."""
    return np.asarray(matching.margin > CLEAR * np.median(matching.margin))
