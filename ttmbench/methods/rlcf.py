"""RLCF: reinforcement learning of a tower, with rewards from another model for its top-scored captions or images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch.nn.functional import normalize

from ttmbench.errors import UsageError
from ttmbench.methods.losses import Direction, directions
from ttmbench.methods.parameters import Train, is_temperature, trained_towers
from ttmbench.methods.task import Batch, MethodStep, TrainingTask

WEIGHT = 2.5  # weight of the cosine in CLIPScore (arXiv:2104.08718)
EPSILON = 1e-6  # of AdamW, as published
SELF = "reward=self: the reward model is the original model itself; compare with its raw scores"

Reward = Annotated[str, Field(min_length=1, description="self, or a model: NAME or NAME:KEY=VALUE|KEY=VALUE")]


def rlcf(
    task: TrainingTask,
    *,
    reward: Reward = "self",
    unit: Literal["image", "group"] = "image",
    direction: Direction = "both",
    k_captions: Annotated[int, Field(ge=2)] = 16,
    k_images: Annotated[int, Field(ge=2)] = 12,
    steps: Annotated[int, Field(ge=1)] = 8,
    train: Train = "all",
    lr: Annotated[float, Field(gt=0)] = 1e-6,
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4,
) -> Iterator[MethodStep]:
    """Reinforcement learning with CLIP feedback (arXiv:2305.18010), its form for retrieval.

    For each image, a copy of the image tower is tuned. The rewards of the K captions of the group that the copy scores
    highest are r_k = max(2.5 cosine, 0) by the reward model, minus their mean; loss = mean_k r_k (-ln p(k)), where p is
    the copy's softmax over the captions, with the top K updated at each step. The copy then scores the image's row.
    Likewise, for each caption a copy of the caption tower is tuned and scores the caption's column; the result is the
    mean of the two.
    If all rewards are equal, no step is made. With two captions, a step only uses which caption has the larger reward.
    For a reward model that scores pairs and has no features, r_k are its scores.

    Args:
        task: features of the original model, and scores of the reward model.
        reward: name of the reward model; self: the original model.
        unit: unit of a copy: one image or caption, as published, or the group, with both towers and all losses at once.
        direction: images to captions, captions to images, or both.
        k_captions: maximum number of captions considered for an image.
        k_images: maximum number of images considered for a caption.
        steps: steps of AdamW for each copy.
        train: which parameters of the towers are tuned; temperature and bias of the logits are not.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
    """
    task.notes.append(SELF if reward == "self" else task.reward_model(reward).note)
    parameters, sides = towers(task, train, direction)
    optimizer = task.optimizer(torch.optim.AdamW(parameters, lr=lr, eps=EPSILON, weight_decay=weight_decay))
    tune = partial(tuned, task, optimizer, k=(k_captions, k_images), steps=steps)
    for batch in task.stream(images=1):  # one group
        images, captions = task.all_images[batch.image_rows[0]], task.all_captions[batch.caption_rows[0]]
        rewards = clip_score(images, captions) if reward == "self" else rewards_by(task, reward, batch)
        if unit == "group":
            scores, losses = tune(partial(group_logits, batch, sides), rewards, sides)
        else:
            rows = [
                tune(partial(image_logits, task, row, captions), rewards[[i]], (True, False))
                for i, row in enumerate(batch.image_rows[0])
                if sides[0]
            ]
            columns = [
                tune(partial(caption_logits, task, images, row), rewards[:, [j]], (False, True))
                for j, row in enumerate(batch.caption_rows[0])
                if sides[1]
            ]
            by_side = [
                torch.cat([scores for scores, _ in side], dim) for dim, side in enumerate((rows, columns)) if side
            ]
            scores, losses = torch.stack(by_side).mean(dim=0), [loss for _, some in rows + columns for loss in some]
        yield batch.step(scores[None], torch.stack(losses).mean() if losses else None, updated=bool(losses))


def towers(task: TrainingTask, train: str, direction: Direction) -> tuple[list[torch.nn.Parameter], tuple[bool, bool]]:
    """The parameters to tune, and whether the image and the caption tower are tuned; UsageError if neither is."""
    task.train(train)
    chosen = {name: parameter for name, parameter in task.trained.items() if not is_temperature(name)}
    for name in task.trained.keys() - chosen.keys():
        task.trained[name].requires_grad_(False)
    rows, columns = directions(direction, *task.scores.shape[1:])
    of_images, of_captions = trained_towers(task.adapter, chosen)
    rows, columns = rows and of_images, columns and of_captions
    if not (rows or columns):
        raise UsageError(f"train={train} has no parameters that direction={direction} tunes")
    if direction == "both" and not (rows and columns):
        task.notes.append(f"direction=both: {'images' if rows else 'captions'} alone are tuned, and give the scores")
    return list(chosen.values()), (rows, columns)


def tuned(
    task: TrainingTask,
    optimizer: torch.optim.Optimizer,
    logits: Callable[[], torch.Tensor],
    rewards: torch.Tensor,
    sides: tuple[bool, bool],
    *,
    k: tuple[int, int],
    steps: int,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Scores of a tuned copy, which is restored, and its last loss, if there was a step.

    Args:
        task: task with the towers.
        optimizer: optimizer of their parameters.
        logits: function that scores some images and captions with the current model, [a, b].
        rewards: rewards of the same pairs, [a, b].
        sides: whether rows have a loss, and whether columns have one.
        k: number of best choices of a row and of a column.
        steps: maximum number of steps.
    """
    last: list[torch.Tensor] = []
    for _ in range(steps):
        now = logits()
        losses = [policy_loss(*row, k[0]) for row in zip(now, rewards, strict=True) if sides[0]]
        losses += [policy_loss(*column, k[1]) for column in zip(now.T, rewards.T, strict=True) if sides[1]]
        defined = [loss for loss in losses if loss is not None]
        if not defined:
            break
        loss = torch.stack(defined).sum() / len(losses)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()  # parameters without a gradient, such as those of the other tower, do not change
        last = [loss.detach()]
    with torch.no_grad():
        scores = logits()
    task.reset()
    return scores, last


def policy_loss(logits: torch.Tensor, rewards: torch.Tensor, k: int) -> torch.Tensor | None:
    """Mean over the k best choices of the centred reward times -ln p; None if their rewards are all equal.

    >>> policy_loss(torch.tensor([2.0, 1.0, -9.0]), torch.tensor([0.5, 0.3, 2.0]), 2)
    tensor(-0.0500)
    >>> policy_loss(torch.zeros(2), torch.tensor([0.4, 0.4]), 2) is None
    True
    """
    best = logits.detach().topk(min(k, len(logits))).indices
    chosen = rewards[best]
    if chosen.max() == chosen.min():
        return None
    return -((chosen - chosen.mean()) * logits.log_softmax(dim=0)[best]).mean()


def clip_score(images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """The reward of each image and caption, [m, n]: 2.5 times their cosine, at least 0."""
    return (WEIGHT * normalize(images, dim=-1) @ normalize(captions, dim=-1).T).clamp(min=0)


def rewards_by(task: TrainingTask, reward: str, batch: Batch) -> torch.Tensor:
    """The rewards of another model for a group, [m, n]: `clip_score` of a dual encoder, else its scores."""
    model = task.reward_model(reward)
    scores = model.scores[batch.groups[0]].to(task.scores.device, task.scores.dtype)
    return (WEIGHT * scores).clamp(min=0) if model.are_cosines else scores


def image_logits(task: TrainingTask, row: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """Scores of one image by the current model with captions by the original model, [1, n]."""
    return task.logits(task.encode_images(row[None]), captions)


def caption_logits(task: TrainingTask, images: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Scores of one caption by the current model with images by the original model, [m, 1]."""
    return task.logits(images, task.encode_captions(row[None]))


def group_logits(batch: Batch, sides: tuple[bool, bool]) -> torch.Tensor:
    """Scores of a group [m, n]; towers that are tuned encode with the current model."""
    images = batch.images()[0] if sides[0] else batch.task.all_images[batch.image_rows[0]]
    captions = batch.captions()[0] if sides[1] else batch.task.all_captions[batch.caption_rows[0]]
    return batch.task.logits(images, captions)
