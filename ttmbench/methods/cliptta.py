"""CLIPTTA: the model's contrastive loss on a batch of images and their pseudo-captions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.matching import match_groups
from ttmbench.methods.losses import column_entropy, marginal_entropy, row_entropy
from ttmbench.methods.parameters import Train
from ttmbench.methods.task import Clusters, MethodStep, ResetEvery, TrainingTask

Labels = Literal["argmax", "matching"]
"""Source of an image's pseudo-caption: its own best caption, or the best matching of its group."""


def cliptta(
    task: TrainingTask,
    *,
    labels: Labels = "argmax",
    as_published_columns: bool = False,
    beta_reg: Annotated[float, Field(ge=0)] = 1.0,
    steps: Annotated[int, Field(ge=1)] = 10,
    train: Train = "norm_images",
    lr: Annotated[float, Field(gt=0)] = 1e-4,
    images: Annotated[int, Field(ge=1)] = 128,
    clusters: Clusters = "together",
    reset_every: ResetEvery = None,
) -> Iterator[MethodStep]:
    """Soft contrastive adaptation (arXiv:2507.14312): several steps on each batch, scored after the last one.

    With c_i the pseudo-caption of image i, updated at each step, and L_ij = T v_i . t_{c_j} over the images of the
    batch: loss = (mean entropy of the rows of L + mean entropy of its columns) / 2 - beta_reg D, where D is the entropy
    of the mean answer of a group's images, averaged over groups. ``as_published_columns`` takes the rows twice, as the
    authors' code does. No memory. D is for groups with as many images as captions, whose mean answer is known to be
    uniform; otherwise it is omitted.

    Groups that share an image are in one batch, unless ``clusters=scattered``. ``reset_every`` restores the model after
    so many batches: a control for long streams.
    """
    m, n = task.scores.shape[1:]
    if n == 1 or (labels == "matching" and m > n):
        raise UsageError(
            f"cliptta with labels={labels} gives each image one of several captions, not in {m}x{n} groups"
        )
    if m != n and beta_reg:
        task.notes.append(f"beta_reg is not used: in {m}x{n} groups the mean answer is not known to be uniform")
    parameters = task.train(train, temperature=train == "temperature")
    optimizer = task.optimizer(torch.optim.Adam(parameters, lr=lr))
    for batch in task.stream(images=images, clusters=clusters, reset_every=reset_every):
        loss = None
        for _ in range(steps if m * len(batch.groups) > 1 else 0):  # a contrastive loss needs two images
            v, t = batch.features()
            scores = task.logits(v, t)
            chosen = pseudo_captions(scores, labels)[:, :, None].expand(-1, -1, t.shape[2])
            pairs = task.logits(v.flatten(0, 1), t.gather(1, chosen).flatten(0, 1))  # L
            columns = row_entropy(pairs) if as_published_columns else column_entropy(pairs)
            loss = (row_entropy(pairs).mean() + columns.mean()) / 2
            if m == n:
                loss = loss - beta_reg * marginal_entropy(scores).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            scores = batch.logits()
        yield batch.step(scores, loss, updated=loss is not None)


def pseudo_captions(scores: torch.Tensor, labels: Labels) -> torch.Tensor:
    """Position of each image's caption in its group, int64 [groups, m]."""
    if labels == "argmax":
        return scores.argmax(dim=2)
    return torch.from_numpy(match_groups(scores.detach().cpu().numpy()).captions).to(scores.device)
