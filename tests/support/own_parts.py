"""A plugin that brings parts of TTM: a selection rule, a loss, an optimiser with two parameter groups and a teacher."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from ttmbench import hookimpl
from ttmbench.types import MethodPart


@hookimpl
def ttmbench_register_methods():
    return [
        MethodPart("selection", "best", "support.own_parts:best", "the most confident units"),
        MethodPart("loss", "hinge", "support.own_parts:hinge"),
        MethodPart("optimizer", "two_rates", "support.own_parts:two_rates"),
        MethodPart("teacher", "slow", "support.own_parts:slow"),
    ]


def best(labels, threshold, by_share, ties, *, units: Annotated[int, Field(ge=1)] = 6):
    """So many units with the largest margins, whatever the threshold."""
    chosen = np.zeros(len(labels.tie), dtype=bool)
    chosen[np.argsort(-labels.confidence, kind="stable")[:units]] = True
    return chosen


def hinge(batch, *, margin: float = 1.0):
    """How far each label's score is from beating the others of its group, beside the model's own loss."""
    pairs = zip(batch.images, batch.captions, strict=True)
    scores = torch.stack([batch.logits(*pair) for pair in pairs])
    labelled = (scores * batch.targets).sum(2, keepdim=True)
    return batch.own_loss() + (margin - labelled + scores).clamp(min=0).mean()


def two_rates(parameters, settings, *, slow: float = 0.1):
    """Adam that trains vectors at the full rate, and matrices at a part of it."""
    vectors = [one for _, one in parameters if one.ndim < 2]
    matrices = [one for _, one in parameters if one.ndim >= 2]
    return torch.optim.Adam([{"params": vectors, "lr": 1.0}, {"params": matrices, "lr": slow}], betas=settings.betas)


@torch.no_grad()
def slow(teacher, model, *, decay: float = 0.7):
    """An exponential moving average of the weights."""
    for name, mean in teacher.items():
        mean.mul_(decay).add_(model[name], alpha=1 - decay)
