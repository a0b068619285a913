"""How much of log P(t) to take off generative scores: every alpha from 0 to 1, without running the model again.

This is Eq. 7 of arXiv:2306.01879. An alpha chosen on the groups that it is reported on has read their labels. So what
is reported as tuned is tuned elsewhere: each half of the groups is scored with the alpha that is best on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ttmbench.results.summary import metric_chance, metric_values
from ttmbench.scoring.debiasing import Likelihoods
from ttmbench.types import MetricSpec

STEPS = 200


def sweep(parts: Likelihoods, metrics: Sequence[MetricSpec], tuned: str, seed: int) -> dict[str, Any]:
    """Metrics as functions of alpha, and what tuning on other groups gives.

    Args:
        parts: log P(t|i) and log P(t) of a task.
        metrics: that the curves show.
        tuned: name of the one that alpha is tuned for.
        seed: splits the groups into halves.

    Returns:
        ``alpha``; for each metric its values, chance, and whether it changes; and ``held_out``: the alpha that is best
        on each half (the smallest of equals), the metric with each half scored by the other's alpha, and with alpha 0
        and 1 throughout. It is null for a task of one group.
    """
    alphas = np.linspace(0, 1, STEPS + 1)
    curves: dict[str, Any] = {}
    table: np.ndarray | None = None
    for metric in metrics:
        values = [metric_values(metric, parts.debiased(alpha)) for alpha in alphas.tolist()]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        means = [float(value.mean()) for value in known]
        curves[metric.name] = {
            "values": means,
            "chance": metric_chance(metric, parts.conditional),
            "depends_on_alpha": max(means) > min(means),
        }
        if metric.name == tuned:
            table = np.stack(known)
    return {
        "alpha": alphas.tolist(),
        "metrics": curves,
        "tuned_for": tuned,
        "held_out": None if table is None or table.shape[1] < 2 else _held_out(alphas, table, seed),
    }


def _held_out(alphas: np.ndarray, table: np.ndarray, seed: int) -> dict[str, Any]:
    """Tunes on each half of the groups and scores the other; ``table`` is the metric [alphas, groups]."""
    order = np.random.default_rng([seed, 5]).permutation(table.shape[1])
    halves = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    chosen = [int(table[:, half].mean(axis=1).argmax()) for half in halves]
    values = np.empty(table.shape[1])
    values[halves[0]], values[halves[1]] = table[chosen[1], halves[0]], table[chosen[0], halves[1]]
    return {
        "alphas": [float(alphas[place]) for place in chosen],
        "groups": [len(half) for half in halves],
        "value": float(values.mean()),
        "alpha_0": float(table[0].mean()),
        "alpha_1": float(table[-1].mean()),
    }
