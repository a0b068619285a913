"""Values of single groups of several runs, for paired tests between any two of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from ttmbench import stats
from ttmbench.errors import DataError
from ttmbench.results.clusters import cluster_numbers
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import Number
from ttmbench.results.stored_runs import TaskGroups, stored_groups

_PERMUTATIONS = 1000


class GroupValues:
    """Reads the samples beside results documents when they are first asked for.

    Args:
        folder: of the documents.
        documents: by `Number.file`.
    """

    def __init__(self, folder: Path, documents: Mapping[str, ResultsDocument]) -> None:
        self._folder, self._documents = folder, documents
        self._groups = lru_cache(maxsize=None)(self._read)

    @cached_property
    def files(self) -> frozenset[str]:
        """The documents with samples."""
        kinds = {file: {about.kind for about in of.artifacts.values()} for file, of in self._documents.items()}
        return frozenset(file for file, found in kinds.items() if "samples" in found)

    def p_value(self, one: Number, other: Number) -> float | None:
        """P of the paired test of two numbers on the same groups: McNemar's, or a permutation test of fractions.

        None if the samples of one are missing or damaged, or the groups differ.
        """
        if one.task != other.task or not {one.file, other.file} <= self.files:
            return None
        groups = [self._groups(row.file).get(row.task) for row in (one, other)]
        if groups[0] is None or groups[1] is None:
            return None
        left, right = (
            found.values.get(row.filter, {}).get(row.metric, {})
            for found, row in zip(groups, (one, other), strict=True)
            if found is not None
        )
        if not left or left.keys() != right.keys():
            return None
        ids = list(left)
        before, after = np.array([left[group] for group in ids]), np.array([right[group] for group in ids])
        clusters = cluster_numbers(ids, [groups[0].clusters, groups[1].clusters])
        if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
            return stats.mcnemar(before == 1, after == 1, clusters)
        return stats.sign_flip(before, after, _PERMUTATIONS, 0, clusters)

    def _read(self, file: str) -> Mapping[str, TaskGroups]:
        try:
            return stored_groups((self._folder / file).parent, self._documents[file])
        except DataError:
            return {}
