"""Ordinary finetuning on labelled groups: a model's own loss on true pairs, resumable between two epochs.

A dual encoder learns by its contrastive loss which image of a batch belongs to which caption; a matching head, of every
image and caption of a group, whether they match.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tqdm import tqdm

from ttmbench._util.third_party_errors import describe
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.training import TrainingPairs, TrainingState
from ttmbench.model import DualEncoder, Model
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Prepared
from ttmbench.types import Record

Loss = Literal["contrastive", "matching"]


class FinetuneConfig(BaseModel):
    """Hyperparameters of `ttmbench finetune`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(10, ge=1)  # passes over all pairs
    lr: float = Field(1e-5, gt=0, allow_inf_nan=False)  # learning rate at the first step
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # down to 0 at the end, or constant
    weight_decay: float = Field(0.05, ge=0, allow_inf_nan=False)  # of AdamW
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    batch: int = Field(64, ge=1)  # pairs: true ones for a dual encoder, all of a group's for a matching head

    def with_changes(self, changes: Mapping[str, object], origin: str) -> FinetuneConfig:
        """A copy with some settings replaced; UsageError, which ``origin`` begins, for a wrong one."""
        try:
            return FinetuneConfig.model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            raise UsageError(f"{origin}: {describe(error, FinetuneConfig)}") from None


_COLORSWAP = {"epochs": 100, "schedule": "linear"}
PRESETS: Mapping[str, Mapping[Loss, Mapping[str, object]]] = {
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


def loss_of(adapter: Model) -> Loss:
    """The loss that a trainable model is finetuned by."""
    return "contrastive" if isinstance(adapter, DualEncoder) else "matching"


def settings_of(preset: str | None, loss: Loss, changes: Mapping[str, object]) -> FinetuneConfig:
    """The package's defaults, changed by a preset and by ``--finetune_args``.

    UsageError for an unknown preset, an unknown setting, or a value out of range.
    """
    settings = FinetuneConfig()
    if preset is not None:
        if preset not in PRESETS:
            raise UsageError(f"unknown preset '{preset}' (--preset); known: {', '.join(PRESETS)}")
        settings = settings.with_changes(PRESETS[preset][loss], f"preset {preset}")
    return settings.with_changes(changes, "--finetune_args")


def true_pairs(prepared: Prepared, loss: Loss) -> TrainingPairs:
    """Pairs to train on, one a unit, so that batches are drawn over all groups; caption i is true for image i.

    For ``contrastive`` every image with its caption; for ``matching`` every image with every caption of its group, and
    whether it is its own.
    """
    images, captions = prepared.rows.images, prepared.rows.captions
    m, k = images.shape[1], captions.shape[1]
    true = min(m, k)
    if loss == "contrastive":
        return TrainingPairs(images[:, :true].reshape(-1, 1), captions[:, :true].reshape(-1, 1))
    shape = (len(images), m, k)
    matched = np.broadcast_to(np.eye(m, k, dtype=bool), shape)
    return TrainingPairs(
        np.broadcast_to(images[:, :, None], shape).reshape(-1, 1),
        np.broadcast_to(captions[:, None, :], shape).reshape(-1, 1),
        matched.reshape(-1, 1),
    )


def train(
    stage: PreparedTask,
    settings: FinetuneConfig,
    seed: int,
    shown: tqdm[NoReturn],
    *,
    resume: TrainingState | None = None,
) -> Iterator[tuple[Record, TrainingState]]:
    """Finetunes a model in place and yields every epoch with the state after it; the tensors change with the next one.

    Caption i of a group is true for image i. The seed shuffles the pairs in every epoch, and seeds torch's own
    draws. With ``resume``, the state of an earlier run with the same arguments, its epochs are not yielded again.
    DivergedError if the loss is NaN or infinite, TtmbenchError if memory is too small.
    """
    pairs = true_pairs(stage.prepared, loss_of(stage.adapter))
    config = TTMConfig(
        iterations=settings.epochs,
        epochs=1,
        lr_restart=1.0,
        weight_decay=settings.weight_decay,
        betas=settings.betas,
        batch_groups=settings.batch,
        keep_optimizer_state=True,
        lr=settings.lr,
    )
    task = ModelTask(stage, None, config, seed, resume=resume, option="--finetune_args")
    task.bar = shown
    task.start()
    for epoch in range(0 if resume is None else resume.iteration, settings.epochs):
        started = time.perf_counter()
        factor = _course(settings, epoch)
        (loss,) = task.fit(epoch, pairs, factor)
        rate, seconds = settings.lr * factor(0, 1), time.perf_counter() - started
        record = {"epoch": epoch + 1, "loss": loss, "learning_rate": rate, "seconds": seconds}
        yield record, task.snapshot(epoch + 1)


def _course(settings: FinetuneConfig, epoch: int) -> Callable[[int, int], float]:
    """(step, steps) of one epoch -> factor on the learning rate: 1 at the first step of all, 0 after the last."""

    def factor(step: int, steps: int) -> float:
        share = (epoch + step / steps) / settings.epochs
        if settings.schedule == "constant":
            return 1.0
        return 1 - share if settings.schedule == "linear" else (1 + math.cos(math.pi * share)) / 2

    return factor
