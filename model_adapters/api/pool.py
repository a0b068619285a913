"""Runs many small jobs at a time and stops without losing what is underway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ttmbench._util.console import step_done

T = TypeVar("T")
GRACE = 10.0  # seconds that an interrupted run waits for answers underway
_PART = 5.0  # seconds of a wait, after which it is said that it goes on


class Stopped(Exception):
    """A job gave up its wait because the pool is stopping."""


class Pool:
    """A bound on how many jobs run at a time, and a sign for all of them to stop.

    Args:
        concurrency: jobs at a time.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._stopping = asyncio.Event()

    async def run(self, jobs: int, work: Callable[[int], Awaitable[None]], may_start: Callable[[], bool]) -> int:
        """Runs jobs 0, 1, ...: the first alone, since what is wrong with it is likely wrong with all.

        When a job fails, or the run is interrupted, no further one starts and those underway are waited for.

        Args:
            jobs: their number.
            work: does one.
            may_start: asked before each; once it says no, no further one starts.

        Returns:
            How many were started.

        Raises:
            Exception: what the first failed job raised.
        """
        left = iter(range(jobs))
        started = 0

        async def worker(most: int | None = None) -> None:
            nonlocal started
            while most is None or most > 0:
                if self._stopping.is_set() or started >= jobs or not may_start():
                    return
                index, started, most = next(left), started + 1, None if most is None else most - 1
                with contextlib.suppress(Stopped):
                    await work(index)

        await self._finish([asyncio.ensure_future(worker(1))])
        await self._finish([asyncio.ensure_future(worker()) for _ in range(min(self._concurrency, jobs - started))])
        return started

    async def sleep(self, seconds: float) -> None:
        """Waits; raises Stopped at once when the pool stops."""
        if self._stopping.is_set():
            raise Stopped
        while seconds > 0:
            part, seconds = min(seconds, _PART), seconds - _PART
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), part)
                raise Stopped
            step_done()

    async def _finish(self, tasks: Iterable[asyncio.Future[None]]) -> None:
        running = list(tasks)
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
    """Runs a coroutine to its end, also where an event loop is running already (a notebook).

    Args:
        main: makes the coroutine.

    Returns:
        What it returns.

    Raises:
        Exception: what it raises; KeyboardInterrupt once it has been cancelled and has ended.
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
