"""Dual softmax: mean log probability of captions given the image and of images given the caption."""

from __future__ import annotations

import torch

from ttmbench.errors import UsageError
from ttmbench.methods.features import ScoreTask


def dual_softmax(task: ScoreTask) -> torch.Tensor:
    """Log of the dual softmax (arXiv:2109.04290) inside each group: s_ij = (ln p_ij + ln q_ij) / 2.

    p is a softmax over the captions of an image, q one over the images of a caption; groups of one image have p alone,
    groups of one caption q alone. Margins of matchings of a square group do not change.
    """
    logits = task.scores.double()
    answers = [logits.log_softmax(dim=axis) for axis in (2, 1) if logits.shape[axis] > 1]
    if not answers:
        raise UsageError("dual_softmax needs groups of at least two images or two captions, not 1x1")
    if len(answers) == 1:
        dropped = "t2i" if logits.shape[2] > 1 else "i2t"
        task.notes.append(f"direction {dropped} is dropped: there is one item to choose from")
    return torch.stack(answers).mean(dim=0).float()
