"""Ordinary finetuning on labelled groups: a model's own loss on true pairs.

A dual encoder learns by its contrastive loss which image of a batch belongs to which caption; a matching head, of every
image and caption of a group, whether they match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.config import TTMConfig
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.task import MethodStep

_COLORSWAP = {"epochs": 100, "schedule": "linear"}
PRESETS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "colorswap": {
        "contrastive": {**_COLORSWAP, "lr": 2e-5, "weight_decay": 0.1, "batch": 64},
        "matching": {**_COLORSWAP, "lr": 1e-5, "weight_decay": 0.05, "batch": 32},
    }
}
"""Name -> kind of loss -> settings as a paper states them."""

PRESET_NOTES: Mapping[str, str] = {
    "colorswap": "arXiv:2402.04492, Appendix D: it states these values for CLIP ViT-B/32 and for BLIP's matching head, "
    "without code. Not stated: whether Adam's weight decay is decoupled (here it is, as in AdamW), which pairs the "
    "matching head is told do not match (here the swapped ones of the same group), and what its batch counts (here "
    "pairs, matched or not)"
}

Schedule = Literal["linear", "cosine", "constant"]


def finetuned(
    task: ModelTask,
    *,
    epochs: Annotated[int, Field(ge=1)] = 10,
    lr: Annotated[float, Field(gt=0)] = 1e-5,
    schedule: Schedule = "linear",
    weight_decay: Annotated[float, Field(ge=0)] = 0.05,
    betas: tuple[float, float] = (0.9, 0.999),
    batch: Annotated[int, Field(ge=1)] = 64,
) -> Iterator[MethodStep]:
    """Finetunes a model on all labelled groups, an epoch a turn, by AdamW with ``betas``; no group is scored.

    ``lr`` is the rate of the first step, which ``schedule`` takes down to 0 at the end, or leaves as it is. ``batch``
    counts pairs: true ones for a dual encoder, all of a group's for a matching head. The seed shuffles the pairs in
    every epoch, and seeds torch's own draws.
    """
    how = {"weight_decay": weight_decay, "betas": betas, "batch_groups": batch, "keep_optimizer_state": True, "lr": lr}
    task.settings = TTMConfig(iterations=epochs, epochs=1, lr_restart=1.0, **how)
    pairs, none = task.labelled_pairs(), torch.zeros(0, dtype=torch.int64)
    for epoch in task.iterations():
        (loss,) = task.fit(epoch - 1, pairs, partial(course, schedule, epochs, epoch - 1))
        yield MethodStep(none, none[:, None, None], loss)


def course(schedule: Schedule, epochs: int, epoch: int, step: int = 0, steps: int = 1) -> float:
    """Factor on the learning rate at a step of an epoch, both from 0: 1 at the first step of all, 0 after the last.

    >>> course("linear", 4, 1), course("constant", 4, 1), round(course("cosine", 1, 0, 1, 2), 6)
    (0.75, 1.0, 0.5)
    """
    done = (epoch + step / steps) / epochs
    if schedule == "constant":
        return 1.0
    return 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
