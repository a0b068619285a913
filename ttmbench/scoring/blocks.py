"""Long scoring in blocks of rows whose borders depend on nothing, so that what is finished can be kept meanwhile.

A batch never crosses a border (a batch larger than a block is a whole number of blocks). So a run that starts again
in the middle gives the model the batches that an undisturbed run gives it, and gets the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

FEATURES = 256  # images or captions in a block of features
PAIRS = 128  # pairs in a block of scores


class BlockStore(Protocol):
    """Where finished blocks are kept."""

    def get(self, side: str, block: int) -> np.ndarray | None:
        """A finished block, float32 [rows, ...]; None if it is not there."""
        ...

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Keeps a finished block."""
        ...


@dataclass(frozen=True)
class Span:
    """Whole blocks that are computed together.

    Attributes:
        start: first row.
        stop: the row after the last.
        block: rows of a block.
    """

    start: int
    stop: int
    block: int

    @property
    def blocks(self) -> list[tuple[int, slice]]:
        """Number of each block, and which rows of the span it has."""
        firsts = range(self.start, self.stop, self.block)
        return [
            (first // self.block, slice(first - self.start, min(first + self.block, self.stop) - self.start))
            for first in firsts
        ]


def spans(rows: int, block: int, batch_size: int) -> list[Span]:
    """Cuts rows into spans of whole blocks, of which the last may be shorter.

    Args:
        rows: how many.
        block: rows of a block.
        batch_size: a span has one batch if that is larger than a block, else one block.

    Returns:
        The spans, in order.

    >>> [(span.start, span.stop) for span in spans(600, 256, 64)]
    [(0, 256), (256, 512), (512, 600)]
    >>> [(span.start, span.stop) for span in spans(600, 256, 520)]
    [(0, 512), (512, 600)]
    """
    step = block * max(1, batch_size // block)
    return [Span(start, min(start + step, rows), block) for start in range(0, rows, step)]


@dataclass(frozen=True)
class Share:
    """A part of the blocks of a task, for one of several processes that score it; a `BlockStore`.

    Attributes:
        blocks: where all of them are kept.
        part: which, from 0.
        of: how many parts there are.
    """

    blocks: BlockStore
    part: int
    of: int

    def get(self, side: str, block: int) -> np.ndarray | None:
        """A finished block."""
        return self.blocks.get(side, block)

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Keeps a finished block."""
        self.blocks.put(side, block, values)


def own_spans(rows: int, block: int, batch_size: int, blocks: BlockStore | None) -> list[Span]:
    """The spans of all rows; of a `Share` those that are its own, the others are for somebody else to compute."""
    cut = spans(rows, block, batch_size)
    return cut[blocks.part :: blocks.of] if isinstance(blocks, Share) else cut


def load(blocks: BlockStore | None, side: str, span: Span) -> np.ndarray | None:
    """The rows of a span from its blocks, float32 [rows, ...]; None unless all of them are kept."""
    if blocks is None:
        return None
    kept = []
    for number, rows in span.blocks:
        values = blocks.get(side, number)
        if values is None or len(values) != rows.stop - rows.start:
            return None
        kept.append(values)
    return np.concatenate(kept)


def save(blocks: BlockStore | None, side: str, span: Span, values: np.ndarray) -> None:
    """Keeps the rows of a span, float32 [rows, ...], as its blocks."""
    if blocks is not None:
        for number, rows in span.blocks:
            blocks.put(side, number, values[rows])
