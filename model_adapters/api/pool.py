"""Runs many small jobs at a time and stops without losing those underway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
GRACE = 10.0  # seconds that an interrupted run waits for answers underway
_PART = 5.0  # seconds of a wait, after which it reports a sign of life


class Stopped(Exception):
    """A job gave up its wait because the pool is stopping."""


class Pool:
    """Runs at most ``concurrency`` jobs at a time."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._stopping = asyncio.Event()

    async def run(self, jobs: int, work: Callable[[int], Awaitable[None]], may_start: Callable[[], bool]) -> None:
        """Runs ``work(0)``, ``work(1)``, ...: the first alone, since its error is likely that of all.

        When a job fails, or the run is interrupted, no further one starts and those underway are waited for.

        Args:
            jobs: their number.
            work: does one.
            may_start: asked before each; no further job starts once it is False.

        Raises:
            Exception: the error of the first failed job.
        """
        left = iter(range(jobs))

        async def worker(most: int) -> None:
            for _ in range(most):
                if self._stopping.is_set() or not may_start():
                    return
                index = next(left, None)
                if index is None:
                    return
                with contextlib.suppress(Stopped):
                    await work(index)

        for workers, each in ((1, 1), (min(self._concurrency, jobs - 1), jobs)):
            await self._finish([asyncio.ensure_future(worker(each)) for _ in range(workers)])

    async def sleep(self, seconds: float) -> None:
        """Waits; raises Stopped at once when the pool stops."""
        if self._stopping.is_set():
            raise Stopped
        while seconds > 0:
            part, seconds = min(seconds, _PART), seconds - _PART
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), part)
                raise Stopped

    async def _finish(self, running: list[asyncio.Future[None]]) -> None:
        if not running:
            return
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            self._stopping.set()
            await _wait_or_cancel(running, GRACE)
            raise
        failed = [task for task in running if task.done() and task.exception() is not None]
        if failed:
            self._stopping.set()
            await _wait_or_cancel(running, None)
            error = failed[0].exception()
            assert error is not None, "it failed"
            raise error


async def _wait_or_cancel(tasks: list[asyncio.Future[None]], seconds: float | None) -> None:
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run_async(main: Callable[[], Coroutine[object, None, T]]) -> T:
    """Runs the coroutine that ``main`` makes, also where an event loop is running already (a notebook).

    An interrupt cancels it and is raised when it has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    ready: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T] | None]] = []

    async def inside() -> T:
        ready.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await main()

    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(lambda: asyncio.run(inside()))
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in ready:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)
            raise
