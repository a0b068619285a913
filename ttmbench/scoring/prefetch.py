"""Work done in threads before its results are asked for: in order, and a bounded number of results at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TypeVar

import torch

from ttmbench._util.images import quiet_decoding, quiet_thread

Job = TypeVar("Job")
T = TypeVar("T")


def threads_beside_the_model() -> int:
    """How many threads decode images: as many as torch may use here, and no more than there are cores.

    So ``OMP_NUM_THREADS`` and ``--deterministic``, which leave torch one thread, leave one here.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores))


@contextmanager
def ahead(
    jobs: Sequence[Job], work: Callable[[Job], T], threads: int, held: int, apart: Callable[[Job], bool]
) -> Iterator[Iterator[T]]:
    """Does jobs in threads; when the block is left, however that is, no thread goes on.

    Args:
        jobs: what to do.
        work: does one of them.
        threads: how many do.
        held: jobs that are begun and whose results have not been taken, at most.
        apart: whether a job may be done in another thread; else it is done when its result is asked for.

    Yields:
        The results, in the order of the jobs. What a job raised is raised in place of its result.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ttmbench-images", initializer=quiet_thread)

    def results() -> Iterator[T]:
        rest, begun = iter(jobs), deque[Future[T] | Callable[[], T]]()
        while True:
            for job in islice(rest, held - len(begun)):
                begun.append(pool.submit(work, job) if apart(job) else partial(work, job))
            if not begun:
                return
            yield _result(begun.popleft())

    try:
        with quiet_decoding():
            yield results()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _result(begun: Future[T] | Callable[[], T]) -> T:
    return begun.result() if isinstance(begun, Future) else begun()
