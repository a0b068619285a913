"""A metric as a task's shape has it: where several captions are true for an image, its functions are told how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ttmbench.types import GroupShape, MetricSpec


def metric_for(metric: MetricSpec, shape: GroupShape) -> MetricSpec:
    """A registered metric for groups of a shape: its functions take the arguments of ordinary ones.

    Itself where one caption is true for an image. One that is not made for such a shape is defined for no groups.
    """
    true = shape.true_captions
    if true == 1 and metric.several_true != "only":
        return metric
    if true == 1 or metric.several_true == "undefined":
        return replace(metric, defined=_never)
    return replace(
        metric,
        compute=_told(metric.compute, metric, shape),
        ties=None if metric.ties is None else _told(metric.ties, metric, shape),
        chance=None if metric.chance is None else partial(metric.chance, true_captions=true),
        defined=partial(metric.defined, true_captions=true),
    )


def _told(function: Callable[..., np.ndarray], metric: MetricSpec, shape: GroupShape) -> Callable[..., np.ndarray]:
    """A function of scores that knows how many captions are true; of all pairs, also which ones."""
    told = partial(function, true_captions=shape.true_captions)
    if metric.scope != "global":
        return told
    return lambda pairs, truth: told(pairs, shape.truth(len(pairs) // shape.images))


def _never(images: int, captions: int) -> bool:
    return False
