"""References: items by which a score correction measures others: of the task, of other groups, or of another task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.methods.features import FeatureTask
from ttmbench.methods.losses import Direction, directions

References = Annotated[str, Field(description="task, others, or another task: NAME or NAME:GROUPS")]
"""All distinct images or captions of the task, for each group those that are not in it, or those of another task."""

Side = Literal["images", "captions"]
_AT_ONCE = 1 << 22  # cosines, to bound memory


def mean_feature(task: FeatureTask, side: Side, references: References) -> torch.Tensor:
    """Mean feature of the references on one side, float64 [groups, d].

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

    Images choose among captions, so ``i2t`` subtracts the captions' biases, ``t2i`` those of the images. A side with
    one item in a group is dropped from ``both``: its bias changes no choice.

    Args:
        task: gives scores, features and temperature.
        bias: cosines float64 [..., references], -inf for those to skip -> biases [...], in units of cosines.
        direction: which choices are corrected.
        references: which items biases are measured by.

    Returns:
        float32 [groups, images, captions].

    Raises:
        UsageError: fewer than two references, or in the one direction asked for there is one item to choose from.
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
    """Of the images or captions of each group, float64 [groups, items]."""
    measured, group_rows = _side(task, "captions" if side == "images" else "images", references)
    features, rows = _features(task, side)
    # Without groups to leave out, each distinct item is a group of one, measured once.
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
    """Of each distinct item, float64 [distinct, d], and which of them is where, [groups, items]."""
    features, rows = (task.all_images, task.image_rows) if side == "images" else (task.all_captions, task.caption_rows)
    if features.ndim != 2:
        raise UsageError(f"references need one vector for each item, and this model has several for its {side}")
    return features.double(), rows.to(features.device)


def _side(task: FeatureTask, side: Side, references: References) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of the references on a side, and which item is where, once there are at least two for every group."""
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
    """Rows of each group, sorted, and whether each is the first of its kind: [groups, items] both."""
    rows = rows.sort(dim=1).values
    once = torch.ones_like(rows, dtype=torch.bool)
    once[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return rows, once
