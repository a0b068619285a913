"""The checks of a method: the label audit, which permutes captions, and the gain on groups that are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ttmbench._arrays.scores import fewer_first
from ttmbench.errors import AssertionNotMet
from ttmbench.matching import match_groups
from ttmbench.results.summary import metric_mean
from ttmbench.types import Matching, MetricSpec, Record, Scores

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


def held_out_record(
    share: float, groups: tuple[int, int], metrics: Sequence[MetricSpec], before: Scores, after: Sequence[Scores]
) -> Record:
    """For results: the metrics of held-out groups.

    Args:
        share: of the groups, that was to be held out.
        groups: how many were trained on, and how many held out.
        metrics: of the task.
        before: scores of the held-out groups by the model as it is.
        after: by the model as each seed trained it on the others.
    """
    values = {
        metric.name: {"raw": metric_mean(metric, before), "adapted": [metric_mean(metric, each) for each in after]}
        for metric in metrics
        if metric.scope == "group"
    }
    return {"share": share, "adapted": groups[0], "scored": groups[1], "metrics": values}


def is_clear(matching: Matching) -> np.ndarray:
    """Of which groups the matching has a margin that rounding does not decide."""
    return np.asarray(matching.margin > CLEAR * np.median(matching.margin))
