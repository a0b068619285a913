"""Dual softmax: logits weighted by a softmax over the other side of the group, then a softmax."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.methods.features import ScoreTask


def dual_softmax(
    task: ScoreTask,
    *,
    direction: Literal["i2t", "t2i"] = "i2t",
    temperature: Annotated[float, Field(gt=0)] = 1000.0,
) -> torch.Tensor:
    """Log of the dual softmax (arXiv:2109.04290) inside each m x n group, as in the authors' code.

    i2t: w_ij = m softmax over images i of s_ij / temperature, and the result is ln softmax over captions j of s_ij
    w_ij; t2i exchanges the two sides. Groups with one item to choose from take the other direction. Where logits are
    negative, as those of SigLIP, a larger weight lowers them.

    Args:
        task: provides the scores.
        direction: i2t: images choose among captions, as published for video-to-text; t2i: captions among images.
        temperature: of the weights; the authors' default leaves them close to 1.
    """
    logits = task.scores.double()
    chosen = "i2t" if logits.shape[1] == 1 else "t2i" if logits.shape[2] == 1 else direction
    answers, others = (2, 1) if chosen == "i2t" else (1, 2)
    if logits.shape[answers] == 1:
        raise UsageError("dual_softmax needs groups of at least two images or two captions, not 1x1")
    if chosen != direction:
        task.notes.append(f"direction {direction} is dropped: there is one item to choose from")
    weights = (logits / temperature).softmax(dim=others) * logits.shape[others]
    return (logits * weights).log_softmax(dim=answers).float()
