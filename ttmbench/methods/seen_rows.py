"""Images and captions numbered as a method sees them, so that their numbers say nothing about the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ttmbench.protocols import Batch
from ttmbench.scoring.inputs import take


@dataclass(frozen=True)
class SeenRows:
    """One side of a task after the shuffle inside its groups.

    A task numbers its distinct captions as they come, so the smallest number of a group would be its first caption,
    which is that of the first image. Here they are numbered as they come after the shuffle.

    Attributes:
        order: the task's number of each distinct item, int [distinct].
        rows: which of them is where, int [groups, items of a group].
    """

    order: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> SeenRows:
        """From the task's numbers, shuffled inside groups.

        >>> seen = SeenRows.of(np.array([[5, 3], [3, 7]]))
        >>> seen.order.tolist(), seen.rows.tolist()
        ([5, 3, 7], [[0, 1], [1, 2]])
        """
        distinct, first, number = np.unique(rows, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return cls(distinct[order], np.argsort(order)[number].reshape(rows.shape))

    def features(self, features: torch.Tensor) -> torch.Tensor:
        """Features of the task's distinct items [distinct, ...] in this order."""
        return features if self._is_the_tasks else features[torch.from_numpy(self.order).to(features.device)]

    def prepared(self, batch: Batch) -> Batch:
        """The task's prepared items in this order."""
        return batch if self._is_the_tasks else take(batch, self.order)

    def texts(self, texts: Sequence[str]) -> list[str]:
        """The task's distinct captions in this order."""
        return [texts[row] for row in self.order]

    @property
    def _is_the_tasks(self) -> bool:
        return bool((self.order == np.arange(len(self.order))).all())
