"""Ray, as far as a sweep needs it: a silent connection, the nodes, and a board on which workers report."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ttmbench._util.console import one_line
from ttmbench.errors import TtmbenchError, UsageError

_ANSWER = 5.0  # seconds for a cluster to accept a connection
# Read when Ray is imported or connects: it prints nothing and reports nothing to its makers.
_QUIET = {
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

Untyped: TypeAlias = Any
"""Ray itself, its handles and references have no types."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: Ray's id, its address, and all its resources (name -> amount)."""

    id: str
    address: str
    resources: Mapping[str, float]

    def room(self, wanted: Mapping[str, float]) -> int:
        """How many workers with these resources fit there."""
        return min((int(self.resources.get(name, 0) / amount + 1e-9) for name, amount in wanted.items()), default=0)


def import_ray() -> Untyped:
    """Ray; UsageError where it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise UsageError("--executor ray needs Ray: pip install 'ttmbench[ray]'") from None
    return ray


def connect(ray: Untyped, address: str, runtime_env: Mapping[str, object]) -> str | None:
    """Joins a running cluster.

    Args:
        ray: the module.
        address: ``host:port``, or ``auto``.
        runtime_env: of all workers.

    Returns:
        The address of its head; None if this process was connected before.

    Raises:
        TtmbenchError: no cluster answers there, or it is a cluster of another version.
    """
    if ray.is_initialized():
        return None
    head = _auto_address() if address == "auto" else address
    if head is None:
        raise TtmbenchError(
            "no Ray cluster is known on this machine; start one (ray start --head), join one (ray start "
            "--address=HOST:PORT), or name it: --executor_args address=HOST:PORT"
        )
    host, _, port = head.rpartition(":")
    if not port.isdecimal() or not host:
        raise UsageError(f"--executor_args address must be HOST:PORT, got {head}")
    why = silence(head)  # Ray itself would try for minutes
    if why is not None:
        raise TtmbenchError(f"no Ray cluster answers at {head} ({why}); start it there with: ray start --head")
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=head,
            runtime_env=dict(runtime_env) or None,
            log_to_driver=False,
            logging_level="CRITICAL",
            include_dashboard=False,
        )
    except Exception as error:
        raise TtmbenchError(f"the Ray cluster at {head} cannot be joined: {first_line(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray takes it for itself
    return head


def nodes(ray: Untyped) -> list[Node]:
    """The machines of the cluster that are alive."""
    alive = [node for node in ray.nodes() if node.get("Alive")]
    return [Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"]) for node in alive]


def first_line(error: BaseException) -> str:
    """An error of Ray in one line of bounded length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0] if lines else type(error).__name__, 300)


def silence(address: str) -> str | None:
    """Why connections to an address fail; None if they succeed."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _auto_address() -> str | None:
    """The address of this machine's cluster; None if there is none."""
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "ray_current_cluster").read_text(encoding="utf-8").strip() or None
    return None


def board_class() -> type:
    """The class of a small actor with the last line of each worker."""

    class Board:
        def __init__(self) -> None:
            self._lines: dict[str, str | None] = {}

        def tell(self, worker: str, line: str | None) -> None:
            self._lines[worker] = line or self._lines.get(worker)  # None is a sign of progress

        def take(self) -> dict[str, str | None]:
            lines, self._lines = self._lines, {}
            return lines

    return Board
