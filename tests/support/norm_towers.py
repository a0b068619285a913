"""A dual encoder of a few weights in float64, with normalisation layers, for methods restated step by step."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn

from ttmbench.methods.features import FeatureTask
from ttmbench.methods.task import MethodStep, TrainingTask
from ttmbench.model import DualEncoder
from ttmbench.scoring.inputs import Prepared, Rows


class NormTowers(DualEncoder, nn.Module):
    """Each side: linear, layer norm, linear, unit length; names as in open_clip."""

    trains_in_parts = True

    def __init__(self, scale: float = 10.0, bias: float = -2.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.visual, self.text = (nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 4)) for _ in range(2))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.logit_bias = nn.Parameter(torch.tensor(bias))
        self.double()

    def train_images(self, prepared):
        return nn.functional.normalize(self.visual(prepared), dim=-1)

    def train_captions(self, prepared):
        return nn.functional.normalize(self.text(prepared), dim=-1)

    def encode_images(self, prepared):
        return self.train_images(prepared).detach()

    def encode_captions(self, prepared):
        return self.train_captions(prepared).detach()

    def logits(self, images, captions):
        return images @ captions.T * self.logit_scale.exp() + self.logit_bias

    def fingerprint(self):
        return "norm towers"

    def prepare_images(self, images): ...

    def prepare_captions(self, captions): ...

    def matching_loss(self, images, captions): ...

    def loss_of(self, images, captions): ...


def vector_task(
    model: NormTowers,
    shape: tuple[int, int, int] = (9, 2, 2),
    *,
    same: bool = False,
    resume=None,
    shared: list[int] | None = None,
) -> TrainingTask:
    """Random inputs, all equal with ``same``; ``shared`` are clusters."""
    groups, m, n = shape
    rng = np.random.default_rng(7)
    images, captions = (torch.from_numpy(rng.normal(size=(groups * count, 5))) for count in (m, n))
    if same:
        images, captions = (side[:1].expand(len(side), -1).clone() for side in (images, captions))
    image_rows, caption_rows = (torch.arange(groups * count).reshape(groups, count) for count in (m, n))
    all_images, all_captions = model.encode_images(images), model.encode_captions(captions)
    pairs = zip(image_rows, caption_rows, strict=True)
    features = FeatureTask(
        torch.stack([model.logits(all_images[i], all_captions[j]).detach() for i, j in pairs]),
        0,
        model=model.logits,
        images=all_images,
        captions=all_captions,
        image_rows=image_rows,
        caption_rows=caption_rows,
    )
    prepared = Prepared(images, captions, Rows(image_rows.numpy(), caption_rows.numpy()))
    return TrainingTask(features, 0, adapter=model, prepared=prepared, resume=resume, clusters=shared)


def run_method(
    method, model: NormTowers, shape: tuple[int, int, int] = (9, 2, 2), *, same=False, shared=None, **settings
) -> tuple[torch.Tensor, list[MethodStep], TrainingTask]:
    """The last scores of every group, the steps and the task of a method on `vector_task`."""
    task = vector_task(model, shape, same=same, shared=shared)
    scores, steps = torch.full_like(task.scores, torch.nan), []
    for step in method(task, **settings):
        scores[step.groups] = step.scores
        steps.append(step)
    return scores, steps, task


def batches_of(task: TrainingTask, images: int) -> list[list[int]]:
    """Positions of the groups of each batch in the order of the stream, restated."""
    order = torch.randperm(len(task.scores), generator=torch.Generator().manual_seed(0)).tolist()
    size = max(1, images // task.scores.shape[1])
    return [order[start : start + size] for start in range(0, len(order), size)]


def plain_logits(model: NormTowers, task: TrainingTask, group: int) -> torch.Tensor:
    """Scores of one group, with gradients, by a loop over pairs."""
    rows = []
    for i in task.image_rows[group].tolist():
        v = model.visual(task._prepared.images[i])
        row = []
        for j in task.caption_rows[group].tolist():
            t = model.text(task._prepared.captions[j])
            row.append(torch.exp(model.logit_scale) * (v @ t) / (v.norm() * t.norm()) + model.logit_bias)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def plain_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Of the softmax of a vector."""
    p = torch.exp(logits) / torch.exp(logits).sum()
    return -sum(one * torch.log(one) for one in p)


class PlainAdam:
    """Adam without weight decay, written out (arXiv:1412.6980)."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.parameters, self.lr, self.step_number = parameters, lr, 0
        self.first = [torch.zeros_like(one) for one in parameters]
        self.second = [torch.zeros_like(one) for one in parameters]

    def step(self, gradients) -> None:
        self.step_number += 1
        for at, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            self.first[at] = 0.9 * self.first[at] + 0.1 * gradient
            self.second[at] = 0.999 * self.second[at] + 0.001 * gradient**2
            mean = self.first[at] / (1 - 0.9**self.step_number)
            size = self.second[at] / (1 - 0.999**self.step_number)
            parameter.data -= self.lr * mean / (size.sqrt() + 1e-8)


class PlainMomentum:
    """SGD with momentum 0.9, written out."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.parameters, self.lr, self.past = parameters, lr, None

    def step(self, gradients) -> None:
        self.past = (
            list(gradients)
            if self.past is None
            else [0.9 * past + gradient for past, gradient in zip(self.past, gradients, strict=True)]
        )
        for parameter, velocity in zip(self.parameters, self.past, strict=True):
            parameter.data -= self.lr * velocity


def norms_of(model: NormTowers) -> list[nn.Parameter]:
    """Scale and shift of the images' layer."""
    return [model.visual[1].weight, model.visual[1].bias]


def copied(model: NormTowers) -> NormTowers:
    """Another model with the same weights."""
    return copy.deepcopy(model)
