"""A Ray cluster of two nodes on loopback addresses, and what tests kill in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ttmbench.evaluator.executor import Event, Finished
from ttmbench.sweep.ray_cluster import import_ray
from ttmbench.sweep.ray_executor import RayExecutor

STORE = 80 * 2**20  # bytes; Ray takes no less than 75 MB
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0"}


@contextmanager
def cluster(cache: Path, nodes: int = 2) -> Iterator[object]:
    """Nodes of one processor each, the head first; workers keep raw scores in a folder of their own."""
    import_ray()  # which keeps Ray's lines off the screen, if it comes first
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in (*_ENVIRONMENT, "TTMBENCH_CACHE", "OMP_NUM_THREADS")}
    os.environ.update({**_ENVIRONMENT, "TTMBENCH_CACHE": str(cache)})
    os.environ.pop("OMP_NUM_THREADS", None)
    made = Cluster()
    try:
        # Ray takes 127.0.0.1 for the machine's own address in the network.
        made.add_node(num_cpus=1, object_store_memory=STORE, include_dashboard=False, node_ip_address="127.0.0.2")
        for number in range(1, nodes):
            add_node(made, number)
        yield made
    finally:
        made.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def add_node(made, number: int):
    """A further node; what it is removed by."""
    return made.add_node(num_cpus=1, object_store_memory=STORE, node_ip_address=f"127.0.0.{2 + number}")


class Disturbed(RayExecutor):
    """Does something at certain moments: when so many units are over, and others have been given out.

    Attributes:
        at: number of units -> what to do, once, when every worker has begun; it is given this executor.
        over: units that are over.
    """

    at: dict[int, Callable[[Disturbed], object]]
    over = 0

    def wait(self, timeout: float) -> list[Event]:
        due = min(self.at, default=self.over + 1) <= self.over
        if due and any(one.unit is not None for one in self._remotes.values()):
            self.at.pop(min(self.at))(self)
        events = super().wait(timeout)
        self.over += sum(isinstance(event, Finished) for event in events)
        # Units are faster than a worker's start: what is to happen next waits until every worker has begun.
        while self.at and min(self.at) <= self.over and any(one.process is None for one in self._remotes.values()):
            more = super().wait(timeout)
            self.over += sum(isinstance(event, Finished) for event in more)
            events += more
        return events

    def busy(self, address: str | None = None) -> str:
        """The name of a worker that is at a unit, on a node if that is given."""
        return next(
            one.name for one in self._remotes.values() if one.unit is not None and address in (None, one.node.address)
        )

    def kill(self, worker: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends the process of a worker, as a machine does that runs out of memory; or gives it another signal."""
        os.kill(self._remotes[worker].process, how)
