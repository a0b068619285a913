"""Blocks of scores that several processes of one run fill together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ttmbench.scoring.blocks import BlockStore


@dataclass(frozen=True)
class SharedBlocks:
    """Blocks of pair scores of which a process computes its own; those of others it takes as they are, unread."""

    entry: BlockStore
    index: int
    count: int

    def elsewhere(self, side: str, number: int) -> bool:
        """Whether a span, by its number, is another process's to compute."""
        return side == "pairs" and number % self.count != self.index

    def get(self, side: str, block: int) -> np.ndarray | None:
        """A finished block."""
        return self.entry.get(side, block)

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Keeps a finished block."""
        self.entry.put(side, block, values)
