"""How many rows a model takes at a time: fewer once memory has run out, and said so once.

Scores do not depend on it but for rounding. What a training batch holds is part of the method and is never changed
here; only the parts in which its gradient is computed are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from ttmbench._util.console import warn
from ttmbench._util.heartbeat import step_done
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
