"""View ensemble: scores by the mean feature of an image's confident views."""

from __future__ import annotations

import torch

from ttmbench.methods.features import FeatureTask
from ttmbench.methods.losses import confident
from ttmbench.methods.views import CropScale, Share, ViewCount, views_in_groups


def vte(
    task: FeatureTask,
    *,
    views: ViewCount = 64,
    crop_scale: CropScale = 0.5,
    flip: bool = False,
    share: Share = 0.1,
    normalise: bool = False,
) -> torch.Tensor:
    """The image part of a view and text ensemble (arXiv:2405.14977): logits of the mean feature of confident views.

    It averages the fraction ``share`` of an image's views with the lowest entropy over the group's captions. With
    ``share=1`` this is the control for methods that learn from views: the same views without adaptation.

    Args:
        task: with views of its images.
        views: of each image: the plain one, and random crops.
        crop_scale: least fraction of the image's area in a crop.
        flip: mirror each crop with probability one half; this exchanges left and right.
        share: fraction of the views whose features are averaged.
        normalise: scale the mean feature to length 1; published: not, so views that differ give smaller logits.
    """
    scores = []
    for features, captions, logits in views_in_groups(task, views, crop_scale, flip):
        mean = features.take_along_dim(confident(logits, share)[..., None], dim=1).mean(dim=1)
        if normalise:
            mean = torch.nn.functional.normalize(mean, dim=-1)
        scores.append(task.logits(mean, captions))
    return torch.stack(scores)
