"""Tent, entropy minimisation along a stream of groups, with the filters of ETA and SAR."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.methods.losses import Direction, entropies
from ttmbench.methods.parameters import Train
from ttmbench.methods.task import Batch, Clusters, MethodStep, ResetEvery, TrainingTask

MARGIN = 0.4  # fraction of the largest entropy; answers above it are unreliable (ETA and SAR)
RADIUS = 0.05  # length of SAR's step that increases the loss
# fraction of the largest entropy below which SAR resets; equals 0.2 for the 1000 classes of ImageNet
RECOVERY = 0.2 / math.log(1000)
MEMORY = 0.9  # decay of SAR's moving average of the loss

Answers = list[tuple[torch.Tensor, float]]
"""Entropies in each direction, with the largest possible one (`ttmbench.methods.losses.entropies`)."""


def tent(
    task: TrainingTask,
    *,
    filter: Literal["none", "eta", "sar"] = "none",
    direction: Direction = "both",
    train: Train = "norm_images",
    lr: Annotated[float, Field(gt=0)] = 1e-3,
    images: Annotated[int, Field(ge=1)] = 64,
    clusters: Clusters = "together",
    reset_every: ResetEvery = None,
) -> Iterator[MethodStep]:
    """Entropy minimisation (arXiv:2006.10726): one step on the mean entropy of each batch, scored before that step.

    ``eta`` (arXiv:2204.02610, without its test of redundancy) trains on the answers with H < 0.4 ln n alone, each
    weighted by exp(0.4 ln n - H). ``sar`` (arXiv:2302.12400) trains on them at the weights where a step of length 0.05
    makes the loss larger, and resets the model when the moving average of the loss falls below 0.029 ln n. Its learning
    rate is ``lr`` for 64 images. A batch without such an answer is not trained on.

    Groups that share an image are in one batch, so that none is scored by a model that was trained on its image, unless
    ``clusters=scattered``. ``reset_every`` restores the model after so many batches: a control for long streams.
    """
    parameters = task.train(train, temperature=train == "temperature")
    if train == "temperature":
        task.notes.append("the temperature is trained: larger logits have lower entropies and the same answers")
    if len(task.batches(images, clusters)) == 1:
        task.notes.append(
            "all groups are in one batch, which is scored before the only update: the scores are the model's"
        )
    elif reset_every == 1:
        task.notes.append("reset_every=1: each batch is scored by the original model, so the scores are the model's")
    sgd = filter == "sar"
    optimizer = torch.optim.SGD(parameters, lr * images / 64, momentum=0.9) if sgd else torch.optim.Adam(parameters, lr)
    task.optimizer(optimizer)
    for batch in task.stream(images=images, clusters=clusters, reset_every=reset_every, keep=("resets",)):
        scores = batch.logits()
        answers = entropies(scores, direction)
        chosen = reliable(answers, math.inf if filter == "none" else MARGIN)
        loss = mean_entropy(answers, chosen, weighted=filter == "eta")
        optimizer.zero_grad()
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
            if filter == "sar":
                loss = second_pass(task, batch, answers, direction)
        if loss is not None:
            optimizer.step()
            if filter == "sar":
                recover(task, answers, loss)
        yield batch.step(scores, loss, updated=loss is not None)
    if "resets" in task.state:
        task.notes.append(f"SAR reset the model {int(task.state['resets'])} times")


def reliable(answers: Answers, margin: float) -> list[torch.Tensor]:
    """Answers whose entropy is below this fraction of the largest possible entropy."""
    return [values < margin * most for values, most in answers]


def mean_entropy(answers: Answers, chosen: list[torch.Tensor], weighted: bool = False) -> torch.Tensor | None:
    """Mean entropy of the selected answers, per direction and then over directions; None if none is selected."""
    means = []
    for (values, most), mask in zip(answers, chosen, strict=True):
        weights = (MARGIN * most - values.detach()).exp() if weighted else torch.ones_like(values)
        if mask.any():
            means.append((weights * values)[mask].mean())
    return torch.stack(means).mean() if means else None


def second_pass(task: TrainingTask, batch: Batch, answers: Answers, direction: Direction) -> torch.Tensor | None:
    """Computes the gradient of SAR's second pass, at weights moved by 0.05 along the gradient of the first pass.

    The second pass uses the answers that were and still are reliable; returns None if there are none.
    """
    parameters = [parameter for parameter in task.trained.values() if parameter.grad is not None]
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    length = torch.stack([gradient.norm() for gradient in gradients]).norm()
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient * (RADIUS / (length + 1e-12)))
            parameter.grad = None
    second = entropies(batch.logits(), direction)
    both = zip(reliable(answers, MARGIN), reliable(second, MARGIN), strict=True)
    loss = mean_entropy(second, [first & now for first, now in both])
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
    return loss


def recover(task: TrainingTask, answers: Answers, loss: torch.Tensor) -> None:
    """Updates SAR's moving average of the loss; resets model, optimiser and average when it is nearly zero."""
    past = task.state.get("average")
    average = loss.detach() if past is None else MEMORY * past + (1 - MEMORY) * loss.detach()
    task.state["average"] = average
    if average < RECOVERY * sum(most for _, most in answers) / len(answers):
        task.state["resets"] = task.state.get("resets", torch.tensor(0)) + 1
        task.reset(keep=("resets",))
