"""MTA: mode of an image's views by mean shift; views whose answers agree with other views get larger weights."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.methods.features import FeatureTask
from ttmbench.methods.views import CropScale, Share, views_in_groups

_SMALL_CHANGE = 1e-6  # norm of a step below which a round has converged


def mta(
    task: FeatureTask,
    *,
    views: Annotated[int, Field(ge=5)] = 64,
    crop_scale: CropScale = 0.5,
    flip: bool = False,
    share: Share = 0.3,
    lambda_y: Annotated[float, Field(gt=0)] = 0.2,
    lambda_q: Annotated[float, Field(ge=0)] = 4.0,
    rounds: Annotated[int, Field(ge=1)] = 5,
    steps: Annotated[int, Field(ge=1)] = 5,
) -> torch.Tensor:
    """MeanShift for test-time augmentation (arXiv:2405.02266): logits of the mode of each image's views (`mode`).

    Args:
        task: with views of its images.
        views: number of views of each image: the plain image and random crops.
        crop_scale: least fraction of the image's area in a crop; published: 0.08, which loses objects.
        flip: mirror each crop with probability one half, as published; this exchanges left and right.
        share: fraction of the other views, the nearest, that give a view its bandwidth.
        lambda_y: temperature of the views' weights.
        lambda_q: how much a view's weight grows with those of the views that answer as it does.
        rounds: number of rounds; each updates first the weights and then the mode.
        steps: maximum number of steps of the weights, and of the mode, in each round.

    Raises:
        UsageError: no view has a neighbour to take its bandwidth from.
    """
    nearest = int(share * (views - 1))
    if nearest == 0:
        least = math.ceil(1 / share) + 1
        raise UsageError(f"share={share:g} needs at least {least} views, not {views}")
    scores = []
    for images, captions, logits in views_in_groups(task, views, crop_scale, flip):
        modes = [
            mode(features, answers, nearest, lambda_y, lambda_q, rounds, steps)[0]
            for features, answers in zip(images, logits.softmax(dim=-1), strict=True)
        ]
        scores.append(task.logits(torch.stack(modes), captions))
    return torch.stack(scores)


def bandwidths(features: torch.Tensor, nearest: int) -> torch.Tensor:
    """Squared bandwidth of each view: half the mean squared distance to so many nearest others; [V, d] -> [V]."""
    distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances.fill_diagonal_(torch.inf)
    return distances.sort(dim=1).values[:, :nearest].mean(dim=1) / 2


def mode(
    features: torch.Tensor,
    answers: torch.Tensor,
    nearest: int,
    lambda_y: float,
    lambda_q: float,
    rounds: int,
    steps: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mode of one image's views, and their weights.

    With views v_k, bandwidths h_k, answers p_k, W_kl = p_k . p_l and D_k = exp(-|v_k - f|^2 / (2 h_k^2)), each round
    repeats y <- softmax_k((D_k + lambda_q (W y)_k) / lambda_y), and then f <- sum_k D_k y_k v_k, scaled to length 1,
    with D of the new f each time. The first f is the plain view, the first y uniform; y goes on from round to round.

    Args:
        features: features of the views, [V, d]; the first is the plain image.
        answers: probabilities of the captions for each view, [V, n].
        nearest: how many other views give a view its bandwidth.
        lambda_y: temperature of y.
        lambda_q: weight of (W y)_k.
        rounds: number of rounds; each updates first y and then f.
        steps: maximum number of steps of y, and of f, in each round; a change below 1e-6 ends it.

    Returns:
        f, [d], and y, [V].
    """
    # Equal views have a bandwidth of 0: their kernel is 1 at themselves and 0 elsewhere.
    widths = 2 * bandwidths(features, nearest).clamp(min=torch.finfo(features.dtype).tiny)
    affinity = answers @ answers.T
    f = features[0]
    y = torch.full_like(widths, 1 / len(features))
    for _ in range(rounds):
        density = torch.exp(-(features - f).square().sum(dim=1) / widths)
        for _ in range(steps):
            before, y = y, ((density + lambda_q * affinity @ y) / lambda_y).softmax(dim=0)
            if torch.linalg.vector_norm(y - before) < _SMALL_CHANGE:
                break
        for _ in range(steps):
            # In log space, because every density may underflow; the length of the sum does not matter.
            weights = (y.log() - (features - f).square().sum(dim=1) / widths).softmax(dim=0)
            before, f = f, torch.nn.functional.normalize(features.T @ weights, dim=0)
            if torch.linalg.vector_norm(f - before) < _SMALL_CHANGE:
                break
    return f, y
