"""Values of single groups of several runs, for paired tests between any two of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from ttmbench import stats
from ttmbench.errors import DataError
from ttmbench.results.clusters import cluster_numbers
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import RAW
from ttmbench.results.numbers import Number
from ttmbench.results.stored_runs import TaskGroups, stored_groups

_RESAMPLES = 1000


class GroupValues:
    """Reads the samples beside results documents when they are first asked for.

    Args:
        folder: of the documents.
        documents: by `Number.file`.
    """

    def __init__(self, folder: Path, documents: Mapping[str, ResultsDocument]) -> None:
        self._folder, self._documents = folder, documents
        self._groups = lru_cache(maxsize=None)(self._read)

    def p_value(self, one: Number, other: Number) -> float | None:
        """P of the paired test of two numbers on the same groups: McNemar's, or a permutation test of fractions.

        None if the samples of one are missing or damaged, or the groups differ.
        """
        pair = self._pair(one.task, (one.file, one.filter, one.metric), (other.file, other.filter, other.metric))
        if pair is None:
            return None
        before, after, clusters = pair
        if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
            return stats.mcnemar(before == 1, after == 1, clusters)
        return stats.sign_flip(before, after, _RESAMPLES, 0, clusters)

    def gain_interval(self, file: str, task: str, metric: str, filter_: str) -> tuple[float, float] | None:
        """The 95 % interval of a filter's number minus that of the raw model; None without samples."""
        pair = self._pair(task, (file, RAW, metric), (file, filter_, metric))
        return None if pair is None else stats.paired_difference(*pair[:2], _RESAMPLES, 0, clusters=pair[2])[1]

    def _pair(self, task: str, *keys: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
        """Values of the same groups for two keys (file, filter, metric), and the clusters of the groups."""
        known = [groups for file, _, _ in keys if (groups := self._groups(file).get(task)) is not None]
        if len(known) < len(keys):
            return None
        left, right = (
            groups.values.get(filter_, {}).get(metric, {})
            for groups, (_, filter_, metric) in zip(known, keys, strict=True)
        )
        if not left or left.keys() != right.keys():
            return None
        ids = list(left)
        clusters = cluster_numbers(ids, [groups.clusters for groups in known])
        return np.array([left[group] for group in ids]), np.array([right[group] for group in ids]), clusters

    def _read(self, file: str) -> Mapping[str, TaskGroups]:
        try:
            document = self._documents.get(file)
            return {} if document is None else stored_groups((self._folder / file).parent, document)
        except DataError:
            return {}
