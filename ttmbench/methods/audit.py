"""Checks of a method: the label audit, which permutes captions, and the gain on held-out groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttmbench._arrays import fewer_first
from ttmbench.errors import AssertionNotMet
from ttmbench.matching import match_groups
from ttmbench.methods.training import Iteration
from ttmbench.results.summary import Clusters, differences, metric_mean
from ttmbench.stats import ClusterIds
from ttmbench.types import Matching, MetricSpec, Record, Scores

CLEAR = 0.01  # fraction of the median margin below which rounding may decide
RESAMPLES = 1000  # of the gain's interval on held-out groups


def compare_matchings(name: str, seed: int, found: np.ndarray, again: np.ndarray) -> int:
    """Compares the matchings of a seed with those of a second run on permuted captions.

    A method without access to labels gives the same matchings. Sums in a different order differ by rounding, which
    training amplifies, so groups whose margin is below 1 % of the median margin are not compared.

    ``found`` and ``again`` are scores in the same order, [groups, images, captions]. Returns the number of groups that
    were compared; AssertionNotMet if a matching differs.
    """
    matching, repeated = (match_groups(fewer_first(each)) for each in (found, again))
    clear = is_clear(matching)
    differs = clear & (matching.captions != repeated.captions).any(axis=1)
    if differs.any():
        raise AssertionNotMet(
            f"method '{name}', seed {seed}: with the captions of every group in another order, "
            f"{int(differs.sum())} of {int(clear.sum())} clear matchings differ, that of group "
            f"{int(np.argmax(differs))} first: something reads positions"
        )
    return int(clear.sum())


def compare_selections(
    name: str, seed: int, found: Sequence[Iteration], again: Sequence[Iteration], order: np.ndarray, is_global: bool
) -> int:
    """Compares what each iteration selected with a second run on permuted captions.

    Of a tied unit, which is selected only where ties are included, another caption is as good. ``order`` is the caption
    of the first run at each position of the second, int [groups, captions]. Returns the number of units that were
    compared; AssertionNotMet if another unit or caption was selected, or the second run stopped elsewhere.
    """
    for step, other in zip(found, again, strict=False):
        captions = (
            (np.arange(len(order))[:, None] * order.shape[1] + order).reshape(-1)[other.captions]
            if is_global
            else np.take_along_axis(order, other.captions, axis=1)
        )
        differs = step.selected != other.selected
        differs |= step.selected & ~step.tie & (step.captions != captions).any(axis=1)
        if differs.any():
            raise AssertionNotMet(
                f"method '{name}', seed {seed}: with the captions of every group in another order, iteration "
                f"{step.iteration} selects otherwise ({int(differs.sum())} of {len(differs)} units, the first is "
                f"{int(np.argmax(differs))}; thresholds {step.threshold:.6g} and {other.threshold:.6g}): something "
                "reads positions, or the model's scores depend on what stands beside them"
            )
    if len(found) != len(again):
        raise AssertionNotMet(
            f"method '{name}', seed {seed}: with the captions of every group in another order, the run stops after "
            f"iteration {len(again)} and not {len(found)}: its stopping rule reads positions"
        )
    return len(found[-1].selected)


def held_out_record(
    share: float,
    used: int,
    clusters: ClusterIds,
    metrics: Sequence[MetricSpec],
    before: Scores,
    after: Sequence[Scores],
) -> Record:
    """Record for results: the metrics of held-out groups, and their gains with intervals over these groups.

    ``used`` is the number of groups trained on. The scores of the held-out groups are those of the original model, and
    of the model that each seed trained.
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
