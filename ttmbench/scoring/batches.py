"""How many rows a model takes at a time, fewer once memory has run out; and blocks of rows that are kept once finished.

Scores depend on neither but for rounding. What a training batch holds is part of the method and is never changed here;
only the parts in which its gradient is computed are. The borders of blocks depend on nothing, and a batch never crosses
one (a batch larger than a block is a whole number of blocks). So a run that starts again in the middle gives the model
the batches that an undisturbed run gives it, and gets the same bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from ttmbench._util.console import step_done, warn
from ttmbench.errors import TtmbenchError

DEFAULT = 64
FIRST_TRY = 1024  # of ``auto`` on an accelerator, where running out of memory is an error and not the end
# The last two: oneDNN, on a processor, says no more than that when it finds no room for its code.
_OUT = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc"),
    *("could not create a primitive", "could not create a memory object"),
)

T = TypeVar("T")


class BatchSizer:
    """Rows at a time, halved whenever memory runs out.

    Args:
        rows: to begin with.
        fixed: never take fewer: where bits count, want of memory is an error.

    Attributes:
        rows: images, captions or pairs that the model takes at a time without gradients; pairs also with gradients,
            where each stands on its own.
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
    def for_run(cls, batch_size: int | str, adapter: object, fixed: bool = False) -> BatchSizer:
        """What ``--batch_size`` means; ``auto`` begins large on an accelerator and halves until it fits.

        On a processor a system that is out of memory ends processes instead of refusing, so nothing is tried there.
        """
        if isinstance(batch_size, int):
            return cls(batch_size, fixed)
        device = getattr(adapter, "device", None)
        return cls(FIRST_TRY if isinstance(device, torch.device) and device.type != "cpu" else DEFAULT)

    def map_batches(self, start: int, stop: int, work: Callable[[slice], T]) -> Iterator[T]:
        """Does some work on all rows, so many at a time; what failed for want of memory is done again with half.

        Args:
            start: first row.
            stop: the row after the last.
            work: what to do with some rows.

        Yields:
            What each piece of work gives, in order.

        Raises:
            TtmbenchError: memory is too small for a single row.
        """
        while start < stop:
            part = slice(start, min(start + self.rows, stop))
            done, result = attempt(lambda part=part: work(part))  # type: ignore[misc]
            step_done()
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
        warn(f"out of memory with {tried} inputs at a time; going on with {self.rows} (--batch_size {self.rows})")

    def smaller_training_parts(self, images: int) -> None:
        """The gradient of a batch of so many images did not fit: from now on it is computed in more parts.

        Raises:
            TtmbenchError: memory is too small for a single image.
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
            f"out of memory while training on {tried} images at a time; going on with {self.training}: the batch and "
            "its loss stay the same, the gradient is computed in parts"
        )


def attempt(work: Callable[[], T]) -> tuple[bool, T]:
    """Does some work; (False, nothing) if memory ran out, and then what can be freed is freed."""
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whichever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT)


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
