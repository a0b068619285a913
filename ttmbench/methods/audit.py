"""Checks of a method: the label audit, which permutes captions, and the gain on held-out groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ttmbench._arrays import fewer_first
from ttmbench.errors import AssertionNotMet
from ttmbench.matching import match_groups
from ttmbench.results.summary import Clusters, differences, metric_mean
from ttmbench.stats import ClusterIds
from ttmbench.types import Matching, MetricSpec, Record, Scores

CLEAR = 0.01  # fraction of the median margin below which rounding may decide
RESAMPLES = 1000  # of the gain's interval on held-out groups


def audit_labels(name: str, found: Mapping[int, Scores], again: Callable[[int], Scores]) -> Record:
    """Compares the matchings of each seed with those of a second run on permuted captions.

    A method without access to labels gives the same matchings. Sums in a different order differ by rounding, which
    training amplifies, so groups whose margin is below 1 % of the median margin are not compared.

    Args:
        name: name of the method.
        found: seed -> scores of the first run.
        again: runs a seed with the captions of every group permuted.

    Returns:
        Record for results: ``passed``, and the number of groups that were ``compared``, with the number of all groups.

    Raises:
        AssertionNotMet: a compared matching differs.
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
    share: float,
    used: int,
    clusters: ClusterIds,
    metrics: Sequence[MetricSpec],
    before: Scores,
    after: Sequence[Scores],
) -> Record:
    """Record for results: the metrics of held-out groups, and their gains with intervals over these groups.

    Args:
        share: requested fraction of held-out groups.
        used: number of groups trained on.
        clusters: of the held-out groups; those of one share images.
        metrics: of the task.
        before: scores of the held-out groups by the original model.
        after: their scores by the model that each seed trained on the other groups.
    """
    measured, values = [metric for metric in metrics if metric.scope == "group"], {}
    gains = differences(measured, before, after, Clusters(clusters, clusters[:, None]), RESAMPLES, 0)
    for metric in measured:
        adapted = [metric_mean(metric, each) for each in after]
        values[metric.name] = {"raw": metric_mean(metric, before), "adapted": adapted, "gain": gains.get(metric.name)}
    return {"share": share, "adapted": used, "scored": len(clusters), "metrics": values}


def is_clear(matching: Matching) -> np.ndarray:
    """Groups whose margin is large enough that rounding cannot change the matching, bool [groups]."""
    return np.asarray(matching.margin > CLEAR * np.median(matching.margin))
