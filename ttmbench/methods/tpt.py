"""Test-time prompt tuning: shifts of the captions' first tokens, learned separately for every group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field

from ttmbench.methods.losses import Direction, view_entropy
from ttmbench.methods.task import MethodStep, TrainingTask
from ttmbench.methods.views import CropScale, Share, ViewCount, check_directions, confident_views, view_logits


def tpt(
    task: TrainingTask,
    *,
    tokens: Annotated[int, Field(ge=1)] = 4,
    dispersion: Annotated[float, Field(ge=0)] = 0.0,
    direction: Direction = "both",
    views: ViewCount = 64,
    crop_scale: CropScale = 0.5,
    flip: bool = False,
    share: Share = 0.1,
    lr: Annotated[float, Field(gt=0)] = 5e-3,
    weight_decay: Annotated[float, Field(ge=0)] = 0.01,
    steps: Annotated[int, Field(ge=1)] = 1,
) -> Iterator[MethodStep]:
    """Test-time prompt tuning (arXiv:2209.07511), and C-TPT (arXiv:2403.14119) with ``dispersion``.

    The learned shift is added to the embeddings of the first tokens of each caption of the group. It starts at zero, so
    the scores before the first step are the raw scores. AdamW lowers the entropy of the mean answer of each image's
    most confident views, chosen once. The plain image is then scored with the tuned captions.

    Args:
        task: with views of its images.
        tokens: number of shifted tokens; all captions of a group share the shifts, and shorter captions use fewer.
        dispersion: weight of the mean distance of the caption features from their mean, which is subtracted from the
            loss: it keeps captions apart.
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
    width, features = task.caption_width, task.views(views, crop_scale, flip)
    for batch in task.stream(images=1):  # one group
        selected = confident_views(task, features[batch.image_rows], task.all_captions[batch.caption_rows], share)
        shift = torch.zeros(tokens, width, device=task.all_captions.device).requires_grad_()
        optimizer = task.optimizer(torch.optim.AdamW([shift], lr=lr, weight_decay=weight_decay))
        for _ in range(steps):
            captions = task.encode_captions(batch.caption_rows, shift)
            loss = view_entropy(view_logits(task, selected, captions), direction) - dispersion * spread(captions)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            captions = task.encode_captions(batch.caption_rows, shift)
        yield batch.step(task.logits(task.all_images[batch.image_rows], captions), loss)


def spread(captions: torch.Tensor) -> torch.Tensor:
    """Mean distance of the caption features of a group from their mean, [groups, n, d] -> a scalar.

    >>> spread(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor(0.7071)
    """
    return (captions - captions.mean(dim=1, keepdim=True)).norm(dim=-1).mean()
