"""The chance levels of a task's metrics, from its task file alone."""

from __future__ import annotations

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.results.ranks import Ranks
from ttmbench.types import MetricSpec


def chance_of(metric: MetricSpec, spec: TaskSpec) -> float | None:
    """The value of a metric for random scores, as a fraction.

    None where it is unknown or depends on more than the task file. Where images have different numbers of captions,
    each is taken to have the mean number, rounded down.
    """
    if metric.chance is None:
        return None
    if metric.scope == "global":
        groups = spec.group.n_groups
        return None if groups is None else metric.chance(groups * spec.shape.images, groups * spec.shape.captions)
    if spec.kind == "groups":
        shape = (spec.shape.images, spec.shape.captions)
        return metric.chance(*shape) if metric.defined(*shape) else None
    images = spec.group.n_groups
    texts = spec.group.n_captions if spec.classes is None else spec.classes.n_classes
    if images is None or texts is None:
        return None
    correct = texts // images if metric.scope == "i2t" else 1
    candidates = images if metric.scope == "t2i" else texts
    query = np.zeros(1, np.int64)
    return metric.chance(Ranks(query, None, None, np.full(1, correct), candidates))
