"""How many rows a model takes at a time (fewer once memory runs out), and blocks of rows that are stored when finished.

Scores depend on neither but for rounding. The size of a training batch is part of the method and never changed here;
only the parts in which its gradient is computed are. The borders of blocks are fixed, and a batch never crosses one (a
batch larger than a block is a whole number of blocks). So a resumed run gives the model the batches that an undisturbed
run gives it, and gets the same bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.third_party import is_out_of_memory
from ttmbench.errors import TtmbenchError

DEFAULT = 64
FIRST_TRY = 1024  # of ``auto`` on an accelerator, where running out of memory is an error and not the end

T = TypeVar("T")


class BatchSizer:
    """Rows at a time, halved whenever memory runs out; with ``fixed`` that is an error instead.

    Attributes:
        rows: images, captions or pairs that the model takes at a time without gradients; pairs also with gradients.
        training: images of a training batch that are in memory with gradients at a time; None for the whole batch.
    """

    def __init__(self, rows: int = DEFAULT, fixed: bool = False) -> None:
        self.rows, self._fixed = rows, fixed
        self.training: int | None = None

    @classmethod
    def of(cls, rows: int | BatchSizer) -> BatchSizer:
        """The same object, or a new one that begins with so many rows."""
        return rows if isinstance(rows, BatchSizer) else cls(rows)

    @classmethod
    def for_run(cls, batch_size: int | str, device: torch.device, fixed: bool = False) -> BatchSizer:
        """The sizer for ``--batch_size``; ``auto`` begins large on an accelerator and halves until it fits.

        On a CPU a system that is out of memory kills processes instead of refusing, so nothing is tried there.
        """
        if isinstance(batch_size, int):
            return cls(batch_size, fixed)
        return cls(DEFAULT if device.type == "cpu" else FIRST_TRY)

    def map_batches(self, start: int, stop: int, work: Callable[[slice], T]) -> Iterator[T]:
        """Yields the results of ``work`` on slices of rows from start to stop; out of memory, it goes on with half.

        TtmbenchError if memory is too small for a single row.
        """
        while start < stop:
            part = slice(start, min(start + self.rows, stop))
            done, result = attempt(lambda part=part: work(part))  # type: ignore[misc]
            if done:
                start = part.stop
                yield result
            else:
                self._fewer_rows(part.stop - part.start)

    def _fewer_rows(self, tried: int) -> None:
        if tried == 1:
            raise TtmbenchError(
                "memory is too small for a single input; use a smaller model, --dtype bf16, or more memory"
            )
        if self._fixed:
            raise TtmbenchError(
                f"out of memory with {tried} inputs at a time, and --deterministic keeps the batch size; "
                f"use --batch_size {tried // 2}"
            )
        self.rows = tried // 2
        warn(f"out of memory with {tried} inputs at a time; continuing with {self.rows} (--batch_size {self.rows})")

    def smaller_training_parts(self, images: int) -> None:
        """Computes the gradient of a batch of so many images, which did not fit, in more parts from now on.

        TtmbenchError if memory is too small for a single image.
        """
        tried = min(self.training or images, images)
        if tried == 1:
            raise TtmbenchError(
                "memory is too small to train on a single image; use --dtype bf16, a smaller model, or more memory"
            )
        if self._fixed:
            raise TtmbenchError(
                f"out of memory while training on {tried} images at a time, and --deterministic computes no "
                "gradient in other parts; use --dtype bf16, a smaller model, or more memory"
            )
        self.training = -(-tried // 2)
        warn(
            f"out of memory while training on {tried} images at a time; continuing with {self.training}: the batch and "
            "its loss stay the same, the gradient is computed in parts"
        )


def attempt(work: Callable[[], T]) -> tuple[bool, T]:
    """(True, result) of some work; (False, None) if memory ran out, and then frees what can be freed."""
    try:
        return True, work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: the error's traceback holds the tensors that are to go.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False, None  # type: ignore[return-value]


FEATURES = 256  # images or captions that are encoded together, whatever the batch size
PAIRS = 128  # pairs in a block of scores, which is stored when finished


class BlockStore(Protocol):
    """Stores finished blocks of pair scores by their numbers.

    Attributes:
        share: the spans that this process computes, of several that score a task together.
    """

    share: slice

    def get(self, block: int) -> np.ndarray | None:
        """A finished block, float32 [pairs]; None if it is not stored."""

    def put(self, block: int, values: np.ndarray) -> None:
        """Stores a finished block."""


@dataclass(frozen=True)
class Span:
    """Whole blocks that are computed together: rows ``start`` to ``stop`` (exclusive), in blocks of ``block`` rows."""

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
    """Cuts rows into spans of one block, or as many whole blocks as fit into a larger batch; the last may be shorter.

    >>> [(span.start, span.stop) for span in spans(600, 256, 64)]
    [(0, 256), (256, 512), (512, 600)]
    >>> [(span.start, span.stop) for span in spans(600, 256, 520)]
    [(0, 512), (512, 600)]
    """
    step = block * max(1, batch_size // block)
    return [Span(start, min(start + step, rows), block) for start in range(0, rows, step)]


def load(blocks: BlockStore | None, span: Span) -> np.ndarray | None:
    """The scores of a span from its blocks, float32 [pairs]; None unless all of them are stored."""
    if blocks is None:
        return None
    stored = []
    for number, rows in span.blocks:
        values = blocks.get(number)
        if values is None or len(values) != rows.stop - rows.start:
            return None
        stored.append(values)
    return np.concatenate(stored)


def save(blocks: BlockStore | None, span: Span, values: np.ndarray) -> None:
    """Stores the scores of a span, float32 [pairs], as its blocks."""
    if blocks is not None:
        for number, rows in span.blocks:
            blocks.put(number, values[rows])
