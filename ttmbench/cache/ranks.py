"""What the cache does for a task that ranks: recognises the data, keeps blocks of features, and ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ttmbench.cache.scores import ScoreCache
from ttmbench.cache.task import KnownData
from ttmbench.data.task_file import TaskSpec
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.types import Group


class RankCache(KnownData):
    """The cache as a task that ranks uses it.

    Args:
        cache: of the run, if it has one.
        model: the model and what it can do.
        spec: the task.
        groups: its data.
        also: what else the arrays depend on: classes and prompts, the candidates of a first stage. For JSON.
    """

    def __init__(
        self, cache: ScoreCache | None, model: Capabilities, spec: TaskSpec, groups: Sequence[Group], also: Any = None
    ) -> None:
        slot = None if cache is None else cache.slot(model, spec, False, None)
        super().__init__(cache, model, slot, spec.task, groups)
        self._groups, self._also = len(groups), also
        self._date: str | None = None

    def look_up(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray] | None:
        """The arrays of an earlier run, float32; None if there are none. All images are looked at for it.

        Args:
            expected: name -> shape.

        Returns:
            The arrays by name.
        """
        if self._slot is None:
            return None
        of = json.dumps([self._recognise(), self._also], sort_keys=True)
        self._place = self._slot.at(hashlib.sha256(of.encode()).hexdigest())
        found = self._place.load_arrays(expected)
        if found is None:
            return None
        self._date = found[1]
        return found[0]

    def keep(self, arrays: Mapping[str, np.ndarray], model_name: str) -> dict[str, Any] | None:
        """Keeps arrays that are new, and says which were not.

        Args:
            arrays: by name; whole numbers below 2^24 stay what they are.
            model_name: for who lists the cache.

        Returns:
            What an earlier run kept: key and date of an entry, or a number of blocks; None for nothing.
        """
        small = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}
        return self._keep("ranks", self._date, lambda place: place.save_arrays(small, self._groups, model_name))
