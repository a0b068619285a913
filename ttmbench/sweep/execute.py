"""Runs the cells of a sweep, each by ``ttmbench run`` in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from pathlib import Path

import filelock
import yaml

from ttmbench._util.child import shared_threads, start, stop, why_failed
from ttmbench._util.files import take_lock, write_text
from ttmbench.evaluator.resume import LOCK
from ttmbench.results.stored_files import RunFiles
from ttmbench.sweep.plan import Cell

ATTEMPTS = 3  # of a cell whose process is killed; each goes on where the one before was
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE = 60.0  # seconds for a process whose node or parent was lost to end
Outcome = tuple[Cell, str | None]
"""A cell that is over; None if it is done, else why it failed."""


def write_run(cell: Cell) -> Path:
    """Writes the cell's configuration beside its results, for ``ttmbench run --config``; returns the file."""
    path = cell.document.absolute().with_name("run.yaml")
    settings = {**cell.config.model_dump(mode="json", exclude_unset=True), "output_path": str(cell.document.absolute())}
    write_text(path, yaml.safe_dump(json.loads(json.dumps(settings)), sort_keys=False))
    return path


def run_cell(
    run: str,
    folder: str | None = None,
    environment: Mapping[str, str] = {},
    running: set[subprocess.Popen[bytes]] | None = None,
    stopping: threading.Event | None = None,
) -> str | None:
    """Runs ``ttmbench run --config RUN``, which logs to ``log.txt`` beside it; returns why it failed, None if not.

    A process that is killed is begun again, a few times. ``running`` has the process while it runs, and after
    ``stopping`` none is begun.
    """
    log, why = Path(run).with_name("log.txt"), None
    there = folder if folder is not None and Path(folder).is_dir() else None
    with suppress(OSError, filelock.Timeout):  # which the run reports
        take_lock(RunFiles.of(str(Path(run).with_name("results.json")), "", "").state / LOCK, _PATIENCE).release()
    for _ in range(ATTEMPTS):
        if stopping is not None and stopping.is_set():
            return "stopped"
        process = start("ttmbench.cli:command", ["run", "--config", run], log, environment, there)
        if running is not None:
            running.add(process)
        try:
            why = why_failed(process, log)
        finally:
            stop([process])
            if running is not None:
                running.discard(process)
        if process.returncode >= 0:
            break
    return why


def run_locally(cells: Sequence[Cell], workers: int | None) -> Iterator[Outcome]:
    """Runs cells in processes of this machine, ``workers`` at a time (None: one for each GPU, else one)."""
    # A cell whose device has a number has to see all of them.
    devices = _gpus() if all(cell.config.device in ("auto", "cuda") for cell in cells) else []
    count = max(1, min(workers or len(devices), len(cells)))
    environments: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for number in range(count):
        visible = {_VISIBLE: devices[number % len(devices)]} if devices else {}
        environments.put({**shared_threads(count), **visible})
    running, stopping = set[subprocess.Popen[bytes]](), threading.Event()

    def run(cell: Cell) -> str | None:
        environment = environments.get()
        try:
            return run_cell(str(write_run(cell)), None, environment, running, stopping)
        finally:
            environments.put(environment)

    with ThreadPoolExecutor(count) as pool:
        futures = {pool.submit(run, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while wait(futures, 0.1).not_done:
                stop(list(running))


def _gpus() -> list[str]:
    """The GPUs of this process as CUDA numbers them; none without CUDA."""
    import torch

    visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return visible[:count] or [str(number) for number in range(count)]
