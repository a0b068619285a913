"""Nearest-neighbour normalisation: lowers the scores of captions that are close to many images."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from ttmbench.methods.features import FeatureTask
from ttmbench.methods.losses import Direction
from ttmbench.methods.references import References, subtract_biases


def nnn(
    task: FeatureTask,
    *,
    weight: Annotated[float, Field(ge=0)] = 0.75,
    k: Annotated[int, Field(ge=1)] = 128,
    direction: Direction = "both",
    references: References = "others",
) -> torch.Tensor:
    """Nearest-neighbour normalisation (arXiv:2410.24114): s_ij = T (c_ij - b_j - b_i) + b, with cosines c.

    The bias of an item is weight times the mean of its k largest cosines with the references on the other side (of all
    of them if there are fewer): b_j of a caption with images for i2t, b_i of an image with captions for t2i.
    """

    def bias(cosines: torch.Tensor) -> torch.Tensor:
        nearest = cosines.topk(min(k, cosines.shape[-1])).values
        finite = nearest.isfinite()  # references from the same group are skipped
        return weight * nearest.masked_fill(~finite, 0).sum(dim=-1) / finite.sum(dim=-1)

    return subtract_biases(task, bias, direction, references)
