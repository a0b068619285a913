"""Ray, as far as a sweep needs it: a connection that prints nothing, what the cluster has, and what its errors mean."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench._util.escape import one_line
from ttmbench.errors import TtmbenchError, UsageError

_ANSWER = 5.0  # seconds for a cluster to take a connection
# Read when Ray is imported or connects: nothing of its own on our screen, and no report to its makers.
_QUIET = {
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes:
        id: Ray's.
        address: for a person.
        resources: name -> amount, all of it.
    """

    id: str
    address: str
    resources: Mapping[str, float]

    def room(self, wanted: Mapping[str, float]) -> int:
        """How many workers of so much fit there."""
        return min((int(self.resources.get(name, 0) / amount + 1e-9) for name, amount in wanted.items()), default=0)


def import_ray() -> Any:
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


def connect(ray: Any, address: str, runtime_env: Mapping[str, Any]) -> str | None:
    """Joins a cluster; starts none.

    Args:
        ray: the module.
        address: ``host:port``, or ``auto``.
        runtime_env: of all workers.

    Returns:
        Where its head is; None if this process was connected before.

    Raises:
        TtmbenchError: nobody answers there, or it is a cluster of another version.
    """
    if ray.is_initialized():
        return None
    found = _address(address)
    if found is None:
        raise TtmbenchError(
            "no Ray cluster is known on this machine; start one (ray start --head), join one (ray start "
            "--address=HOST:PORT), or name it: --executor_args address=HOST:PORT"
        )
    _check_answers(found)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=found,
            runtime_env=dict(runtime_env) or None,
            log_to_driver=False,
            logging_level="CRITICAL",
            include_dashboard=False,
        )
    except Exception as error:
        raise TtmbenchError(f"the Ray cluster at {found} cannot be joined: {first_line(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray takes it for itself
    return found


def nodes(ray: Any) -> list[Node]:
    """The machines that are there now."""
    return [Node(one["NodeID"], one["NodeManagerAddress"], one["Resources"]) for one in ray.nodes() if one.get("Alive")]


def first_line(error: BaseException) -> str:
    """An error of Ray in one line of bounded length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0] if lines else type(error).__name__, 300)


def _address(given: str) -> str | None:
    """Where the cluster is; None if ``auto`` finds none."""
    if given != "auto":
        return given
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "ray_current_cluster").read_text(encoding="utf-8").strip() or None
    return None


def _check_answers(address: str) -> None:
    """TtmbenchError unless somebody takes connections there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise UsageError(f"--executor_args address={address}: is no HOST:PORT")
    why = silence(address)
    if why is not None:
        raise TtmbenchError(
            f"nobody answers at {address}, where the Ray cluster should be ({why}); start it there with: ray start "
            "--head"
        )


def silence(address: str) -> str | None:
    """Why nobody takes connections at an address; None if somebody does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
