"""Runs the cells of a sweep as tasks of a Ray cluster, which places them, and repeats those that it loses."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeAlias

from ttmbench._util import machine
from ttmbench._util.console import one_line
from ttmbench._util.files import write_text
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.sweep.execute import Outcome, run_cell, write_run
from ttmbench.sweep.plan import Cell

_STOP = 8.0  # seconds for tasks to end
_ANSWER = 120.0  # seconds for a node to answer
Untyped: TypeAlias = Any
"""Ray, its functions and references have no types."""


def run_on_ray(
    cells: Sequence[Cell], root: Path, workers: int | None, /, address: str = "auto", **options: object
) -> Iterator[Outcome]:
    """Runs cells as tasks, at most ``workers`` at a time (None: as many as the cluster has room for).

    Args:
        cells: the cells.
        root: the sweep's folder, which every node must see.
        workers: the most at a time.
        address: of the cluster.
        options: of the tasks, as ``ray.remote`` takes them; by default one CPU, and a GPU if the cluster has any.

    Raises:
        UsageError: Ray is not installed, or an option is wrong.
        TtmbenchError: no cluster answers, or a node does not see the folder or has other packages.
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
            for package in sorted(here.keys() | packages.keys()):
                if here.get(package) != packages.get(package):
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
