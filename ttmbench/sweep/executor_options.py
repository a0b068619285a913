"""What ``--executor_args`` says of workers: when processes of this machine hang, and of Ray also what they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ttmbench.errors import UsageError

LEAST = 10.0  # seconds without a sign of progress that can be asked for; signs take a few to arrive


@dataclass(frozen=True)
class RayOptions:
    """How a sweep uses a cluster.

    Attributes:
        address: of the cluster, ``host:port``; ``auto`` takes the one that this machine belongs to.
        num_cpus: of each worker; its threads too.
        num_gpus: of each worker; None takes 1 where the cluster has any, else 0.
        memory: GB that Ray sets aside for each worker; None for no demand.
        workers: how many at most; None for as many as the cluster has room for.
        stall: seconds without a sign of progress after which a worker at a unit is ended; None for none ever.
        folder: ``auto`` finds out which workers see the sweep's folder; ``own`` lets every one have its own.
    """

    address: str = "auto"
    num_cpus: float = 1
    num_gpus: float | None = None
    memory: float | None = None
    workers: int | None = None
    stall: float | None = None
    folder: str = "auto"

    @property
    def threads(self) -> int:
        """Of a worker's arithmetic."""
        return max(1, int(self.num_cpus))

    def resources(self, cluster_has_gpus: bool) -> dict[str, float]:
        """What a worker takes of a node, as Ray calls it."""
        gpus = self.num_gpus if self.num_gpus is not None else float(cluster_has_gpus)
        wanted = {"CPU": self.num_cpus, "GPU": gpus, "memory": (self.memory or 0) * 1e9}
        return {name: amount for name, amount in wanted.items() if amount}


def ray_options(given: Mapping[str, Any], workers: int | None = None) -> RayOptions:
    """The options of Ray's workers.

    Args:
        given: ``--executor_args``, read.
        workers: ``--workers``, which ``workers=`` says too.

    Returns:
        The options.

    Raises:
        UsageError: an unknown name, or a value that is none.
    """
    _check(given, _RAY, "Ray's workers")
    if "://" in given.get("address", ""):
        raise UsageError(
            f"--executor_args address={given['address']}: Ray Client (ray://) is not used; give the command on a node "
            "of the cluster, or join this machine to it: ray start --address=HOST:PORT"
        )
    return RayOptions(**{"workers": workers, **given})


def local_stall(given: Mapping[str, Any]) -> float | None:
    """Seconds after which a process of this machine hangs, None if not given; UsageError as for `ray_options`."""
    _check(given, {"stall": _RAY["stall"]}, "processes of this machine")
    return given.get("stall")


_Rule = tuple[str, Callable[[Any], bool]]


def _check(given: Mapping[str, Any], rules: Mapping[str, _Rule], who: str) -> None:
    for name, value in given.items():
        if name not in rules:
            raise UsageError(f"--executor_args: {who} have no '{name}'; they have: {', '.join(rules)}")
        must_be, holds = rules[name]
        if not holds(value):
            raise UsageError(f"--executor_args {name}={value}: must be {must_be}")


def _is_number(value: Any, least: float = 0, strictly: bool = False) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and value < 1e6 and (value > least if strictly else value >= least)


_RAY: dict[str, _Rule] = {
    "address": ("HOST:PORT of a cluster, or auto", lambda value: isinstance(value, str) and bool(value)),
    "num_cpus": ("a number of processors above 0", lambda value: _is_number(value, strictly=True)),
    "num_gpus": ("a number of GPUs, also a share of one", _is_number),
    "memory": ("a number of GB above 0", lambda value: _is_number(value, strictly=True)),
    "workers": ("a whole number from 1", lambda value: isinstance(value, int) and _is_number(value, 1)),
    "stall": (f"a number of seconds from {LEAST:g}", lambda value: _is_number(value, LEAST)),
    "folder": ("auto or own", lambda value: value in ("auto", "own")),
}
