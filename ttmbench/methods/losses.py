"""Entropies of a model's answers, in nats and computed in log space: loss functions of test-time methods.

The answer of an image is a softmax over the captions of its group, the answer of a caption a softmax over the images.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from ttmbench.errors import UsageError

Direction = Literal["i2t", "t2i", "both"]
"""Direction of a loss: answers of images (rows), of captions (columns), or both."""


def row_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each image's answer, a softmax over the captions: [..., m, n] -> [..., m].

    >>> row_entropy(torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
    tensor([0.6931, 0.1909])
    """
    answers = logits.log_softmax(dim=-1)
    return -(answers.exp() * answers).sum(dim=-1)


def column_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each caption's answer, a softmax over the images: [..., m, n] -> [..., n]."""
    return row_entropy(logits.mT)


def directions(direction: Direction, m: int, n: int) -> tuple[bool, bool]:
    """Whether rows and whether columns of an m x n group are used; a direction with one item to choose from is dropped.

    Raises a UsageError if no direction remains.
    """
    rows, columns = direction != "t2i" and n > 1, direction != "i2t" and m > 1
    if not (rows or columns):
        side = "caption" if direction == "i2t" else "image"
        raise UsageError(f"direction={direction} needs groups of at least two {side}s to choose from, not {m}x{n}")
    return rows, columns


def entropies(logits: torch.Tensor, direction: Direction) -> list[tuple[torch.Tensor, float]]:
    """Entropies of the answers in each direction, rows before columns, with the largest possible value of each.

    A direction with one item to choose from is dropped from ``both``.

    Args:
        logits: [groups, m, n].
        direction: direction of the answers.

    Returns:
        ([groups, m], ln n) of the rows, ([groups, n], ln m) of the columns.

    Raises:
        UsageError: no direction has two items to choose from.

    >>> [(list(values.shape), most) for values, most in entropies(torch.zeros(7, 1, 4), "both")]
    [([7, 1], 1.3862943611198906)]
    """
    m, n = logits.shape[-2:]
    rows, columns = directions(direction, m, n)
    answers = [(row_entropy(logits), math.log(n))] if rows else []
    return answers + ([(column_entropy(logits), math.log(m))] if columns else [])


def entropy(logits: torch.Tensor, direction: Direction) -> torch.Tensor:
    """Mean entropy of the rows, of the columns, or the mean of these two means; [groups, m, n] -> a scalar.

    >>> entropy(torch.zeros(3, 2, 2), "both")
    tensor(0.6931)
    """
    return torch.stack([values.mean() for values, _ in entropies(logits, direction)]).mean()


def confident(logits: torch.Tensor, share: float) -> torch.Tensor:
    """Positions of the most confident views: those with the lowest entropy, ascending; ties keep their order.

    Args:
        logits: of each view, [..., V, n].
        share: fraction of the views to select; at least one is selected.

    Returns:
        int64 [..., max(1, int(V * share))].

    >>> confident(torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [2.0, 0.0]]), 0.75).tolist()
    [2, 1, 3]
    """
    order = row_entropy(logits).argsort(dim=-1, stable=True)
    return order[..., : max(1, int(order.shape[-1] * share))]


def marginal_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of the mean answer of several views (arXiv:2209.07511): [..., V, n] -> [...].

    The mean is a logsumexp over views, clamped at the smallest number of its type, so that no gradient is NaN.

    >>> marginal_entropy(torch.tensor([[100.0, 0.0], [0.0, 100.0]]))
    tensor(0.6931)
    """
    answers = logits.log_softmax(dim=-1)
    mean = answers.logsumexp(dim=-2) - math.log(logits.shape[-2])
    mean = mean.clamp(min=torch.finfo(mean.dtype).min)
    return -(mean.exp() * mean).sum(dim=-1)


def view_entropy(logits: torch.Tensor, direction: Direction) -> torch.Tensor:
    """The loss of test-time prompt tuning on groups: [groups, m, V, n] of the views of each image -> a scalar.

    Rows: the entropy of each image's mean answer (`marginal_entropy`). Columns: the entropy of each caption's answer
    by the logits averaged over views. Both are means, and ``both`` is the mean of these two.
    """
    rows, columns = directions(direction, logits.shape[1], logits.shape[3])
    losses = [marginal_entropy(logits).mean()] if rows else []
    return torch.stack(losses + ([column_entropy(logits.mean(dim=2)).mean()] if columns else [])).mean()
