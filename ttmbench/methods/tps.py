"""Test-time prototype shifting: a shift of each caption's features, learned separately for every group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field

from ttmbench.methods.losses import Direction, view_entropy
from ttmbench.methods.task import MethodStep, TrainingTask
from ttmbench.methods.views import CropScale, Share, ViewCount, check_directions, confident_views, view_logits


def tps(
    task: TrainingTask,
    *,
    direction: Direction = "both",
    views: ViewCount = 64,
    crop_scale: CropScale = 0.5,
    flip: bool = False,
    share: Share = 0.1,
    lr: Annotated[float, Field(gt=0)] = 5e-3,
    weight_decay: Annotated[float, Field(ge=0)] = 0.01,
    steps: Annotated[int, Field(ge=1)] = 1,
) -> Iterator[MethodStep]:
    """Test-time prototype shifting (arXiv:2403.12952): t'_j = normalise(t_j + delta_j), delta = 0 at first.

    AdamW lowers the entropy of the mean answer of each image's most confident views, chosen anew at each step. The
    plain image is then scored with the shifted captions. No gradient passes through a tower.

    Args:
        task: with views of its images.
        direction: whose answers count: of images among captions, as published, of captions among images, or both.
        views: of each image: the plain one, and random crops.
        crop_scale: least fraction of the image's area in a crop.
        flip: mirror each crop with probability one half; this exchanges left and right.
        share: fraction of the views that count.
        lr: learning rate of AdamW.
        weight_decay: of AdamW, on the shift.
        steps: of AdamW, for each group.
    """
    check_directions(task, direction)
    features = task.views(views, crop_scale, flip)
    for batch in task.stream(images=1):  # one group
        captions = task.all_captions[batch.caption_rows]
        shift = torch.zeros_like(captions).requires_grad_()
        optimizer = task.optimizer(torch.optim.AdamW([shift], lr=lr, weight_decay=weight_decay))
        for _ in range(steps):
            shifted = unit(captions + shift)
            selected = confident_views(task, features[batch.image_rows], shifted, share)
            loss = view_entropy(view_logits(task, selected, shifted), direction)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        yield batch.step(task.logits(task.all_images[batch.image_rows], unit(captions + shift)), loss)


def unit(features: torch.Tensor) -> torch.Tensor:
    """Normalises vectors to length 1."""
    return features / features.norm(dim=-1, keepdim=True)
