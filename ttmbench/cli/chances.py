"""Chance levels of a task's metrics, as far as its file tells them."""

from __future__ import annotations

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.results.ranks import Ranks
from ttmbench.types import MetricSpec


def chance_of(metric: MetricSpec, spec: TaskSpec) -> float | None:
    """What a metric gives for random scores.

    Args:
        metric: one of the task's.
        spec: the task.

    Returns:
        A fraction; None where it is not known, or depends on more than the task file says. Where images have different
        numbers of captions it is taken as if they had the mean number, rounded down.
    """
    if metric.chance is None or metric.scope == "global":
        return None
    if spec.kind == "groups":
        shape = (spec.shape.images, spec.shape.captions)
        return metric.chance(*shape) if metric.defined(*shape) else None
    images = spec.group.n_groups
    others = spec.group.n_captions if spec.classes is None else spec.classes.n_classes
    if images is None or others is None:
        return None
    true = others // images if metric.scope == "i2t" else 1
    candidates = images if metric.scope == "t2i" else others
    one = np.zeros(1, np.int64)
    return metric.chance(Ranks(one, None, None, np.full(1, true), candidates))
