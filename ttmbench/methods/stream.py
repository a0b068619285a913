"""The order in which an online method receives the groups of a task: batches, drawn by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

# Types of method settings, with their allowed values.
Clusters = Literal["together", "scattered"]
"""Whether groups that share an image are in one batch, or are scattered at random."""
ResetEvery = Annotated[int, Field(ge=1)] | None
"""Number of batches after which the model is reset; None for never."""


def batches_of(groups: int, size: int, seed: int, clusters: Sequence[int] | None = None) -> list[torch.Tensor]:
    """Positions of the groups of each batch, int64, in an order drawn by seed.

    Without clusters of groups that share images, every batch but the last has ``size`` groups. With clusters, all
    groups of a cluster are in the batch of its first group, and a batch ends where the next cluster would exceed its
    size. A larger cluster is a separate batch. Clusters of one group each have no effect.

    >>> [batch.tolist() for batch in batches_of(5, 2, 0)]
    [[4, 0], [1, 3], [2]]
    >>> [batch.tolist() for batch in batches_of(5, 2, 0, clusters=[7, 8, 7, 9, 9])]
    [[4, 3], [0, 2], [1]]
    """
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed))
    if clusters is None:
        return list(torch.split(order, size))
    members: dict[int, list[int]] = {}
    for group in order.tolist():
        members.setdefault(int(clusters[group]), []).append(group)
    batches: list[list[int]] = []
    for cluster in members.values():
        if not batches or len(batches[-1]) + len(cluster) > size:
            batches.append([])
        batches[-1] += cluster
    return [torch.tensor(batch) for batch in batches]
