"""ZERO: the confident views of an image vote for a caption (zero temperature)."""

from __future__ import annotations

import torch

from ttmbench.methods.features import FeatureTask
from ttmbench.methods.losses import confident
from ttmbench.methods.views import CropScale, Share, ViewCount, views_in_groups


def zero(
    task: FeatureTask,
    *,
    views: ViewCount = 64,
    crop_scale: CropScale = 0.5,
    flip: bool = False,
    share: Share = 0.3,
    as_published: bool = False,
) -> torch.Tensor:
    """Votes of views (arXiv:2405.18330): a temperature of zero, then the sum of the answers.

    The fraction ``share`` of an image's views with the lowest entropy over the group's captions votes. Each view votes
    for its best caption; captions that tie in a view split its vote. Votes tie often, so the mean logit of these views
    is added, divided by 2 (1 + the group's largest absolute logit): less than half a vote, so that it only breaks ties
    between equal votes. All images have the same number of votes, so with two images and two captions the group score
    of the votes equals their text score: compare it with the chance level of this method.

    Args:
        task: with views of its images.
        views: of each image: the plain one, and random crops.
        crop_scale: least fraction of the image's area in a crop; published: 0.08, which loses objects.
        flip: mirror each crop with probability one half, as published; this exchanges left and right.
        share: fraction of the views that vote.
        as_published: votes only; images and captions with equal votes tie, and a tie counts as incorrect.

    Returns:
        Numbers of votes, not logits.
    """
    scores = []
    for _, _, logits in views_in_groups(task, views, crop_scale, flip):
        selected = logits.take_along_dim(confident(logits, share)[..., None], dim=1)
        best = (selected == selected.amax(dim=-1, keepdim=True)).float()
        votes = (best / best.sum(dim=-1, keepdim=True)).sum(dim=1)
        tie_break = selected.mean(dim=1) / (2 * (1 + logits.abs().amax()))
        scores.append(votes if as_published else votes + tie_break)
    return torch.stack(scores)
