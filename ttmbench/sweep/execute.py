"""Runs the cells of a sweep, each by ``ttmbench run`` in a process of its own: here, or as tasks of a Ray cluster."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeAlias

import filelock
import yaml

from ttmbench._util import machine
from ttmbench._util.child import shared_threads, start, stop, why_failed
from ttmbench._util.console import one_line
from ttmbench._util.file_io import take_lock, write_text
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.output import LOCK, state_of
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
        take_lock(state_of(Path(run).with_name("results.json")) / LOCK, _PATIENCE).release()
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
            while wait([one for one in futures if not one.cancelled()], 0.1).not_done:  # cancelled ones are never done
                stop(list(running))


def _gpus() -> list[str]:
    """The GPUs of this process as CUDA numbers them; none without CUDA."""
    import torch

    visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return visible[:count] or [str(number) for number in range(count)]


_STOP = 8.0  # seconds for tasks to end
_ANSWER = 120.0  # seconds for a node to answer
Untyped: TypeAlias = Any
"""Ray, its functions and references have no types."""


def run_on_ray(
    cells: Sequence[Cell], root: Path, workers: int | None, /, address: str = "auto", **options: object
) -> Iterator[Outcome]:
    """Runs cells as tasks, at most ``workers`` at a time (None: as many as the cluster has room for).

    ``options`` are of the tasks, as ``ray.remote`` takes them; by default one CPU, and a GPU if the cluster has any.
    UsageError if Ray is not installed or an option is wrong; TtmbenchError if no cluster answers, or a node does not
    see the sweep's folder or has other packages.
    """
    ray = _join(address)
    pending: dict[Untyped, Cell] = {}
    try:
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int("GPU" in ray.cluster_resources()), **options}
        try:
            task = ray.remote(run_cell).options(**resources)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--executor_args: {one_line(str(error), 300)}") from None
        _check_nodes(ray, root, resources["num_cpus"])
        waiting = deque(cells)
        while waiting or pending:
            while waiting and len(pending) < (workers or len(cells)):
                cell = waiting.popleft()
                pending[task.remote(str(write_run(cell)), str(Path.cwd()))] = cell
            for done in ray.wait(list(pending), timeout=1.0)[0]:
                cell = pending.pop(done)
                try:
                    why = ray.get(done)
                except ray.exceptions.RayError as error:
                    why = one_line(str(error), 300)
                yield cell, why
    finally:
        for left in pending:
            ray.cancel(left)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=_STOP)
        ray.shutdown()


def _join(address: str) -> Untyped:
    """Ray, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    try:
        import ray
    except ImportError:
        raise UsageError("--executor ray needs Ray: pip install 'ttmbench[ray]'") from None
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise TtmbenchError(
            f"no Ray cluster at {address} can be joined ({one_line(str(error), 200)}); start one: ray start --head"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray takes it for itself
    return ray


def _check_nodes(ray: Untyped, root: Path, cpus: float) -> None:
    """TtmbenchError if a node that can run cells does not see the folder, or has other packages."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    probe = root.absolute() / f".probe-{token_hex(8)}"
    write_text(probe, "")
    try:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus]
        if not nodes:
            raise TtmbenchError(f"no node of the cluster has {cpus:g} CPUs (--executor_args num_cpus)")
        look, asked = ray.remote(_look), {}
        for node in nodes:
            there = look.options(num_cpus=0, scheduling_strategy=OnNode(node["NodeID"], soft=False))
            asked[node["NodeManagerAddress"]] = there.remote(str(probe))
        for name, answer in asked.items():
            try:
                sees, packages = ray.get(answer, timeout=_ANSWER)
            except ray.exceptions.RayError as error:
                raise TtmbenchError(f"node {name} cannot run ttmbench: {one_line(str(error), 300)}") from None
            if not sees:
                raise TtmbenchError(
                    f"node {name} does not see {root} or cannot write there; --output_path must lie on a file system "
                    "that all nodes share"
                )
            here = machine.packages()
            for package in [package for package in here | packages if here.get(package) != packages.get(package)]:
                raise TtmbenchError(
                    f"node {name} has {package} {packages.get(package)}, and this machine {here.get(package)}; "
                    "install the same version on all nodes"
                )
    finally:
        probe.unlink(missing_ok=True)


def _look(probe: str) -> tuple[bool, dict[str, str]]:
    """Whether a node sees a file and can write beside it, and its packages."""
    path = Path(probe)
    return path.is_file() and os.access(path.parent, os.W_OK), machine.packages()
