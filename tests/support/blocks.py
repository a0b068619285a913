"""Finished blocks of scores or features, in memory."""

from __future__ import annotations

import numpy as np


class MemoryBlocks(dict[tuple[str, int], np.ndarray]):
    """A `ttmbench.scoring.batches.BlockStore`; (side, number) -> block."""

    def get(self, side: str, block: int) -> np.ndarray | None:
        """A block, if it is there."""
        return super().get((side, block))

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Keeps a block."""
        self[side, block] = values
