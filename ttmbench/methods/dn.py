"""Distribution normalisation: inner products of features after subtracting a fraction of their mean."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from ttmbench.methods.features import FeatureTask
from ttmbench.methods.references import References, mean_feature


def dn(
    task: FeatureTask, *, strength: Annotated[float, Field(ge=0)] = 0.25, references: References = "others"
) -> torch.Tensor:
    """Distribution normalisation (arXiv:2302.11084): s_ij = T (v_i - L mean v) . (t_j - L mean t) + b, L = strength.

    The means are over the references, without renormalisation. The correction is the sum of an image term and a caption
    term, so the best matching of a square group does not change.
    """
    images = task.images.double() - strength * mean_feature(task, "images", references)[:, None]
    captions = task.captions.double() - strength * mean_feature(task, "captions", references)[:, None]
    return (task.scale * (images @ captions.mT) + task.bias).float()
