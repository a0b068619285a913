"""The settings of ``--executor_args``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ttmbench._util.third_party_errors import describe
from ttmbench.errors import UsageError


class LocalOptions(BaseModel):
    """Settings for processes of this machine.

    Attributes:
        stall: seconds without a sign of progress after which a worker is ended; None for no limit. Signs take a few
            seconds to arrive.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    stall: float | None = Field(None, ge=10, lt=1e6)

    @classmethod
    def read(cls, given: Mapping[str, object]) -> Self:
        """Checks ``--executor_args``; UsageError for an unknown name, or a value that it cannot have."""
        address = given.get("address")
        if isinstance(address, str) and "://" in address:
            raise UsageError(
                f"--executor_args address={address}: Ray Client (ray://) is not used; give the command on a node of "
                "the cluster, or join this machine to it: ray start --address=HOST:PORT"
            )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise UsageError(f"--executor_args: {describe(error, cls)}") from None


class RayOptions(LocalOptions):
    """Settings for a cluster.

    Attributes:
        address: of the cluster, ``host:port``; ``auto`` is the one that this machine belongs to.
        num_cpus: of each worker; its threads too.
        num_gpus: of each worker; None for 1 where the cluster has any, else 0.
        memory: GB that Ray reserves for each worker; None for none.
        workers: the most; None for as many as the cluster has room for.
        folder: ``auto`` finds out which workers see the sweep's folder; ``own`` gives each one its own.
    """

    address: str = Field("auto", min_length=1)
    num_cpus: float = Field(1, gt=0, lt=1e6)
    num_gpus: float | None = Field(None, ge=0, lt=1e6)
    memory: float | None = Field(None, gt=0, lt=1e6)
    workers: int | None = Field(None, ge=1)
    folder: Literal["auto", "own"] = "auto"

    @property
    def threads(self) -> int:
        """Number of a worker's threads."""
        return max(1, int(self.num_cpus))

    def resources(self, cluster_has_gpus: bool) -> dict[str, float]:
        """What a worker takes of a node, as Ray calls it."""
        gpus = self.num_gpus if self.num_gpus is not None else float(cluster_has_gpus)
        wanted = {"CPU": self.num_cpus, "GPU": gpus, "memory": (self.memory or 0) * 1e9}
        return {name: amount for name, amount in wanted.items() if amount}
