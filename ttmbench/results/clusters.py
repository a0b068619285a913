"""Clusters of groups that share an image, and so are not independent; intervals and tests go by clusters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ttmbench._annotations import Bool, Int
from ttmbench.errors import UsageError
from ttmbench.types import Group, ImageRef


@dataclass(frozen=True)
class Clusters:
    """Clusters of a task's groups: those that share an image, directly or through others."""

    groups: Int[np.ndarray, " groups"]  # a number for each group; equal within a cluster
    images: Int[np.ndarray, "groups images"]  # a number for each image; equal for the same one

    @property
    def count(self) -> int:
        """Number of clusters."""
        return len(np.unique(self.groups))

    def of(self, positions: Sequence[int] | None) -> Clusters:
        """Those of the groups at some positions; None for all."""
        return self if positions is None else Clusters(self.groups[list(positions)], self.images[list(positions)])

    def names(self, group_ids: Sequence[str]) -> list[str]:
        """For each group the id of the first group of its cluster, as samples lines have it."""
        first: dict[int, str] = {}
        return [first.setdefault(cluster, name) for cluster, name in zip(self.groups.tolist(), group_ids, strict=True)]


def clusters_of(groups: Sequence[Group], digest: Callable[[ImageRef], str]) -> Clusters:
    """The clusters of groups of one shape; ``digest`` gives the digest of an image's file, else of its pixels.

    So parts of one image (``crop`` of a task file) count as that image.
    """
    shown = [[digest(image) for image in group.images] for group in groups]
    number: dict[str, int] = {}
    images = [[number.setdefault(key, len(number)) for key in row] for row in shown]
    return Clusters(np.array(connected(shown)), np.array(images))


def connected(keys: Iterable[Iterable[Hashable]]) -> list[int]:
    """A number for each item, equal for items that share a key directly or through others, in order of first items.

    >>> connected([["a", "b"], ["c"], ["b", "d"], ["d"], []])
    [0, 1, 0, 0, 2]
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    number: dict[Hashable, int] = {}
    listed = [[number.setdefault(key, len(number)) for key in of_item] for of_item in keys]
    # Items first and keys behind them, so that components are counted in the order of items.
    rows = np.repeat(np.arange(len(listed)), [len(of_item) for of_item in listed])
    columns = len(listed) + np.array([key for of_item in listed for key in of_item], dtype=np.int64)
    size = len(listed) + len(number)
    graph = csr_matrix((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(size, size))
    _, component = connected_components(graph, directed=False)
    return [int(label) for label in component[: len(listed)]]


def held_out(clusters: Int[np.ndarray, " groups"], share: float, seed: int) -> Bool[np.ndarray, " groups"]:
    """Random whole clusters with about this fraction of all groups: bool [groups].

    UsageError if the fraction leaves one side without groups, or there is only one cluster.
    """
    total = len(clusters)
    count = round(share * total)
    if not 0 < count < total:
        raise UsageError(f"ttm_holdout={share} of {total} groups leaves {count} to score and {total - count} to use")
    _, of_group, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        raise UsageError(f"ttm_holdout: all {total} groups share images, so none can be held out; omit it")
    order = np.random.default_rng([seed, 3]).permutation(len(sizes))
    drawn = 1 + int(np.abs(np.cumsum(sizes[order])[:-1] - count).argmin())
    return np.asarray(np.isin(of_group, order[:drawn]))


def clusters_note(groups: int, clusters: int) -> str:
    """A note for a task of which groups share images."""
    return (
        f"groups share images: {groups} groups in {clusters} clusters; standard errors, intervals and tests take a "
        "cluster for one independent observation"
    )


def cluster_numbers(ids: Sequence[str], known: Sequence[Mapping[str, str] | None]) -> np.ndarray | None:
    """Clusters of groups by what either run knows of them (each may have other groups); None where neither does."""
    if all(names is None for names in known):
        return None
    keys = [
        [(run, names[group]) for run, names in enumerate(known) if names is not None and group in names]
        for group in ids
    ]
    return np.array(connected(keys))
