"""References of score corrections: items of the same task, of its other groups, or of another task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.methods.features import FeatureTask
from ttmbench.methods.losses import Direction, directions

References = Annotated[str, Field(description="task, others, or another task: NAME or NAME:GROUPS")]
"""Distinct items of the whole task, of the task's other groups, or of another task."""

Side = Literal["images", "captions"]
_AT_ONCE = 1 << 22  # cosines, to bound memory


def mean_feature(task: FeatureTask, side: Side, references: References) -> torch.Tensor:
    """Mean feature of the references of one modality, float64 [groups, d].

    UsageError for fewer than two references.
    """
    features, rows = _side(task, side, references)
    total, count = features.sum(dim=0), len(features)
    if references != "others":
        return (total / count).expand(len(rows), -1)
    rows, once = _distinct(rows)
    group_sum = (features[rows] * once[..., None]).sum(dim=1)
    return (total - group_sum) / (count - once.sum(dim=1, keepdim=True))


def subtract_biases(
    task: FeatureTask, bias: Callable[[torch.Tensor], torch.Tensor], direction: Direction, references: References
) -> torch.Tensor:
    """Scores minus the bias of each item, measured by its cosines with the references on the other side.

    In ``i2t`` images choose among captions, so it subtracts the biases of captions; ``t2i`` subtracts those of images.
    A modality with one item per group is dropped from ``both``, because its bias changes no choice.

    Args:
        task: provides scores, features and temperature.
        bias: cosines float64 [..., references], -inf for those to skip -> biases [...], in units of cosines.
        direction: direction of the choices to correct.
        references: items from which biases are computed.

    Returns:
        float32 [groups, images, captions].

    Raises:
        UsageError: fewer than two references, or no direction has two items to choose from.
    """
    rows, columns = directions(direction, *task.scores.shape[1:])
    if direction == "both" and not (rows and columns):
        task.notes.append(f"direction {'t2i' if rows else 'i2t'} is dropped: there is one item to choose from")
    scores = task.scores.to(task.all_images.device).double()
    if rows:
        scores = scores - task.scale.double() * _biases(task, "captions", bias, references)[:, None, :]
    if columns:
        scores = scores - task.scale.double() * _biases(task, "images", bias, references)[:, :, None]
    return scores.float()


def _biases(
    task: FeatureTask, side: Side, bias: Callable[[torch.Tensor], torch.Tensor], references: References
) -> torch.Tensor:
    """Biases of the images or captions of each group, float64 [groups, items]."""
    measured, group_rows = _side(task, "captions" if side == "images" else "images", references)
    features, rows = _features(task, side)
    # If no groups are excluded, each distinct item is treated as a group of one, to compute its bias once.
    groups = rows if references == "others" else torch.arange(len(features), device=rows.device)[:, None]
    size = max(1, _AT_ONCE // (groups.shape[1] * len(measured)))
    parts = []
    for start in range(0, len(groups), size):
        part = groups[start : start + size]
        cosines = features[part] @ measured.T
        if references == "others":
            left_out = group_rows[start : start + size, None, :].expand(-1, part.shape[1], -1)
            cosines = cosines.scatter(2, left_out, -torch.inf)
        parts.append(bias(cosines))
    biases = torch.cat(parts)
    return biases if references == "others" else biases[:, 0][rows]


def _features(task: FeatureTask, side: Side) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of each distinct item, float64 [distinct, d], and the row of each item, [groups, items]."""
    features, rows = (task.all_images, task.image_rows) if side == "images" else (task.all_captions, task.caption_rows)
    if features.ndim != 2:
        raise UsageError(f"references need one vector for each item, and this model has several for its {side}")
    return features.double(), rows.to(features.device)


def _side(task: FeatureTask, side: Side, references: References) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of the references of one modality, and the row of each; UsageError for fewer than two per group."""
    features, rows = _features(task, side)
    if references not in ("task", "others"):
        there = task.reference_set(references)
        features = (there.images if side == "images" else there.captions).to(features.device, features.dtype)
    fewest = len(features)
    if references == "others":
        fewest -= int(_distinct(rows)[1].sum(dim=1).max())
    if fewest < 2:
        hint = ", or give references=task" if len(features) > 1 and references == "others" else ""
        raise UsageError(
            f"references={references} needs at least two reference {side}, and there are only {fewest}: "
            f"give a larger task{hint}"
        )
    return features, rows


def _distinct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted rows of each group, and whether each is the first of equal rows: both [groups, items]."""
    rows = rows.sort(dim=1).values
    once = torch.ones_like(rows, dtype=torch.bool)
    once[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return rows, once
