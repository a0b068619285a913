"""Chance levels of a method without training, estimated by running it on random scores or features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ttmbench.methods.features import FeatureTask, ReferenceSet, ScoreTask
from ttmbench.results.summary import metric_chance, metric_values
from ttmbench.types import GroupShape, MethodSpec, MetricSpec, Scores

WIDTH = 16  # of random features
DRAWS = {"scores": 20_000, "features": 2_000, "views": 1_000}  # groups
_DIRECTIONS = f"unit vectors in independent random directions of {WIDTH} dimensions, scored by the model"
DISTRIBUTIONS = {"scores": "independent N(0, 1) logits", "features": _DIRECTIONS, "views": _DIRECTIONS}
"""Descriptions of the random inputs that replace a task's scores or features."""


@dataclass(frozen=True)
class Chance:
    """Chance levels, and how they were estimated.

    Attributes:
        values: metric -> mean over random groups, a fraction; None where it is undefined.
        distribution: description of the random numbers.
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
    references: Mapping[str, ReferenceSet] | None = None,
) -> Chance:
    """Runs a method on random groups of a shape.

    A method that needs scores gets independent N(0, 1) logits. A method that needs features or views gets unit vectors
    in independent random directions, which ``model`` scores; its references from other tasks are replaced likewise.
    """
    kind = kind_of(spec)
    draws, generator = DRAWS[kind], torch.Generator().manual_seed(0)
    images, captions = shape.images, shape.captions
    if kind == "scores":
        exchanged = shape.more_images
        size = (draws, captions, images) if exchanged else (draws, images, captions)
        task = ScoreTask(torch.randn(size, generator=generator), 0)
        output = method(task)
        if exchanged:
            output, task.scores = output.transpose(1, 2), task.scores.transpose(1, 2)
    else:
        task = _random_task(draws, shape, generator, model, references or {})
        output = method(task)
    scores = Scores(output.detach().float().cpu().numpy())
    return Chance(_means(metrics, scores, Scores(task.scores.cpu().numpy())), DISTRIBUTIONS[kind], draws)


def kind_of(spec: MethodSpec) -> str:
    """The random input for a method's chance levels: ``scores``, ``features`` or ``views``."""
    return "views" if "views" in spec.needs else "features" if spec.takes_features else "scores"


def _means(metrics: Sequence[MetricSpec], scores: Scores, raw: Scores) -> dict[str, float | None]:
    """Mean of each metric, with the metrics of the raw scores, whose expectations are known, as control variates.

    A metric that the method does not change in any group thus gets exactly its raw chance level.
    """
    in_groups = [metric for metric in metrics if metric.scope == "group"]
    known = [(metric_values(metric, raw), metric_chance(metric, raw)) for metric in in_groups]
    controls = [values - chance for values, chance in known if values is not None and chance is not None]
    design = np.stack([np.ones(len(scores.groups)), *controls], axis=1)
    means: dict[str, float | None] = {}
    for metric in in_groups:
        values = metric_values(metric, scores)
        mean = None if values is None else float(np.linalg.lstsq(design, values, rcond=None)[0][0])
        means[metric.name] = None if mean is None else round(min(1.0, max(0.0, mean)), 6)
    return means


def _random_task(
    draws: int,
    shape: GroupShape,
    generator: torch.Generator,
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    references: Mapping[str, ReferenceSet],
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
        references={
            name: ReferenceSet(directions(len(there.images)), directions(len(there.captions)), there.record)
            for name, there in references.items()
        },
    )
    task.scores = task.logits(task.images, task.captions)
    return task
