"""What the cache does for a task that ranks: recognises the data, keeps blocks of features, and ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ttmbench.cache.scores import CacheEntry, ScoreCache
from ttmbench.data.task_file import TaskSpec
from ttmbench.scoring.blocks import BlockStore
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.types import Group


class RankCache:
    """The cache as one task uses it; without a cache it finds nothing and keeps nothing.

    Args:
        cache: of the run, if it has one.
        adapter: the model.
        spec: the task.
        groups: its data.
        also: what else the arrays depend on: classes and prompts, the candidates of a first stage. For JSON.

    Attributes:
        data: fingerprint of the data.
        prepared: where prepared images are kept, if anywhere.
    """

    def __init__(
        self, cache: ScoreCache | None, adapter: Any, spec: TaskSpec, groups: Sequence[Group], also: Any = None
    ) -> None:
        self._slot = None if cache is None else cache.slot(adapter, spec, False, None)
        self._pixels = None if cache is None or self._slot is None else cache.pixels(spec.task)
        self._groups, self._also = len(groups), also
        self._place: CacheEntry | None = None
        self._date: str | None = None
        self.data = Fingerprint(groups, self._pixels)
        self.prepared = None if cache is None else cache.prepared(adapter)

    def look_up(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray] | None:
        """The arrays of an earlier run, float32; None if there are none. All images are looked at for it.

        Args:
            expected: name -> shape.

        Returns:
            The arrays by name.
        """
        if self._slot is None:
            return None
        self.data.add_remaining()
        if self._pixels is not None:
            self._pixels.flush()
        of = json.dumps([self.data.hexdigest(), self._also], sort_keys=True)
        self._place = self._slot.at(hashlib.sha256(of.encode()).hexdigest())
        found = self._place.load_arrays(expected)
        if found is None:
            return None
        self._date = found[1]
        return found[0]

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go, after `look_up`."""
        return self._place

    def keep(self, arrays: Mapping[str, np.ndarray], model_name: str) -> dict[str, Any] | None:
        """Keeps arrays that are new, and says which were not.

        Args:
            arrays: by name; whole numbers below 2^24 stay what they are.
            model_name: for who lists the cache.

        Returns:
            What an earlier run kept: key and date of an entry, or a number of blocks; None for nothing.
        """
        if self._pixels is not None:
            self._pixels.flush()
        if self.prepared is not None:
            self.prepared.evict()
        if self._place is None or self._slot is None:
            return None
        cache, about = self._slot.cache, self._slot.identity.about
        if self._date is not None:
            cache.warn_once("hit", f"ranks come from the cache in {cache.folder}; --use_cache off computes them again")
            return {"key": self._slot.identity.key, "date": self._date}
        small = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}
        self._place.save_arrays(small, self._groups, model_name)
        found, total = len(self._place.found), len(self._place.found | self._place.new)
        if not found:
            return None
        cache.warn_once(
            f"blocks {about['task']}", f"{about['task']}: {found} of {total} blocks were kept by a stopped run"
        )
        return {"key": self._slot.identity.key, "blocks": found, "of": total}
