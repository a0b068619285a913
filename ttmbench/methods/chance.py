"""Chance levels of a method that trains nothing: what its numbers are when it is run on random scores or features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ttmbench.methods.task import FeatureTask, ScoreTask
from ttmbench.results.summary import metric_mean
from ttmbench.types import GroupShape, MethodSpec, MetricSpec, Scores

WIDTH = 16  # of random features
DRAWS = {"scores": 20_000, "features": 2_000, "views": 500}  # groups


@dataclass(frozen=True)
class Chance:
    """Chance levels, and what they are of.

    Attributes:
        values: metric -> mean over random groups; None where it is undefined.
        distribution: of the random numbers, in words.
        draws: number of random groups.
    """

    values: Mapping[str, float | None]
    distribution: str
    draws: int


def chance_of(
    spec: MethodSpec,
    method: Callable[[ScoreTask], torch.Tensor],
    shape: GroupShape,
    metrics: Sequence[MetricSpec],
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Chance:
    """Runs a method on random groups of a shape.

    A method of scores gets independent N(0, 1) logits; one of features, and of views, unit vectors in independent
    random directions, which ``model`` scores.
    """
    kind = "views" if "views" in spec.needs else "features" if spec.takes_features else "scores"
    draws, generator = DRAWS[kind], torch.Generator().manual_seed(0)
    images, captions = shape.images, shape.captions
    if kind == "scores":
        exchanged = shape.more_images
        size = (draws, captions, images) if exchanged else (draws, images, captions)
        found = method(ScoreTask(torch.randn(size, generator=generator), 0))
        found = found.transpose(1, 2) if exchanged else found
        distribution = "independent N(0, 1) logits"
    else:
        found = method(_random_task(draws, shape, generator, model))
        distribution = f"unit vectors in independent random directions of {WIDTH} dimensions, scored by the model"
    scores = Scores(found.detach().float().cpu().numpy())
    in_groups = [metric for metric in metrics if metric.scope == "group"]
    return Chance({metric.name: metric_mean(metric, scores) for metric in in_groups}, distribution, draws)


def _random_task(
    draws: int,
    shape: GroupShape,
    generator: torch.Generator,
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> FeatureTask:
    def directions(*size: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(*size, WIDTH, generator=generator), dim=-1)

    images, captions = directions(draws * shape.images), directions(draws * shape.captions)

    def views(count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        others = directions(len(images), count - 1)
        return torch.cat([images[:, None], others], dim=1)

    task = FeatureTask(
        torch.empty(0),
        0,
        model=model,
        images=images,
        captions=captions,
        image_rows=torch.arange(len(images)).reshape(draws, -1),
        caption_rows=torch.arange(len(captions)).reshape(draws, -1),
        views=views,
    )
    task.scores = task.logits(task.images, task.captions)
    return task
