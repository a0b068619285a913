"""Inverted softmax: a caption's score relative to its scores with reference images."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from ttmbench.methods.features import FeatureTask
from ttmbench.methods.losses import Direction
from ttmbench.methods.references import References, subtract_biases


def dis(
    task: FeatureTask,
    *,
    beta: Annotated[float, Field(gt=0)] = 20.0,
    direction: Direction = "both",
    references: References = "others",
) -> torch.Tensor:
    """Inverted softmax (arXiv:2112.12777): s_ij = (T / beta) ln(exp(beta c_ij) / sum_r exp(beta c_rj)) + b.

    This is the i2t direction, with cosines c and r over the reference images; t2i divides by a sum over reference
    captions, and ``both`` by both sums. The factor T / beta preserves the margins of matchings. Every row is
    normalised, unlike in the published "dynamic" rule, which leaves some rows on a different scale.
    """

    def bias(cosines: torch.Tensor) -> torch.Tensor:
        return (beta * cosines).logsumexp(dim=-1) / beta

    return subtract_biases(task, bias, direction, references)
