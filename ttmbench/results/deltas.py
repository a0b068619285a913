"""What adaptation does to a task: every metric after it minus what it was, with intervals over groups and seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench.results.clusters import Clusters
from ttmbench.results.summary import metric_units, metric_values
from ttmbench.types import MetricSpec, Scores


def differences(
    metrics: Sequence[MetricSpec],
    raw: Scores,
    adapted: Sequence[Scores],
    clusters: Clusters | None,
    bootstrap_iters: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Every metric after adaptation minus what it was, group by group.

    Args:
        metrics: to compare.
        raw: scores of the model as it was.
        adapted: of the adapted model, one a seed, of the same groups.
        clusters: of the groups, where it is known which share images.
        bootstrap_iters: resamples of the interval over groups; 0 for none.
        seed: of the resampling.

    Returns:
        Metric -> ``value``, ``ci`` over groups, ``by_seed`` and ``seed_ci``; undefined metrics are left out.
    """
    found = {}
    for metric in metrics:
        before, after = metric_values(metric, raw), [metric_values(metric, one) for one in adapted]
        known = [one for one in after if one is not None]
        if before is None or len(known) < len(after):
            continue
        units = metric_units(metric, clusters, None)
        _, ends = stats.paired_difference(before, np.mean(known, axis=0), bootstrap_iters, seed, clusters=units)
        means = [stats.mean(one) for one in known]
        found[metric.name] = difference_of(stats.mean(before), means, None if ends is None else list(ends))
    return {name: one for name, one in found.items() if one is not None}


def difference_of(
    raw: float | None, by_seed: Sequence[float | None], ci: list[float] | None = None
) -> dict[str, Any] | None:
    """The difference of one number, as documents have it; None where a number is undefined.

    >>> difference_of(0.5, [0.5, 0.75])["value"], difference_of(None, [0.5])
    (0.125, None)
    """
    if raw is None or any(one is None for one in by_seed):
        return None
    each = [float(one) - raw for one in by_seed if one is not None]
    return {"value": float(np.mean(each)), "ci": ci, "by_seed": each, "seed_ci": seed_interval(each)}


def seed_interval(values: Sequence[float]) -> list[float] | None:
    """Student's 95 % interval of a mean over seeds; None for one seed, which knows no spread.

    >>> [round(end, 4) for end in seed_interval([0.1, 0.3])], seed_interval([0.1])
    ([-1.0706, 1.4706], None)
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean = float(np.mean(values))
    half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return [mean - half, mean + half]
