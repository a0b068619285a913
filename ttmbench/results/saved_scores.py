"""What files of ``--save_scores`` say beside their arrays: clusters, held-out groups, true captions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.text import parse_json
from ttmbench.errors import DataError
from ttmbench.results.clusters import Clusters
from ttmbench.results.labels import RAW
from ttmbench.types import GroupShape


def saved_subsets(path: Path, metadata: Mapping[str, Any], groups: int) -> dict[str, list[int]]:
    """Subsets as ``--save_scores`` wrote them: of held-out groups; nothing where every filter has all groups."""
    try:
        found = parse_json(str(metadata.get("subsets", "{}")))
    except ValueError as error:
        raise DataError(f"{path}: its 'subsets' cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: its 'subsets' are no object of filter and positions")
    for name, positions in found.items():
        if (
            name == RAW
            or not isinstance(positions, list)
            or any(type(one) is not int or not 0 <= one < groups for one in positions)
            or positions != sorted(set(positions))
        ):
            raise DataError(f"{path}: its 'subsets' of {name} are no increasing positions of its {groups} groups")
    return found


def stated_true_captions(path: Path, metadata: Mapping[str, Any]) -> int:
    """As ``--save_scores`` wrote it; one where it says nothing."""
    stated = str(metadata.get("true_captions", "1"))
    if not stated.isdecimal() or len(stated) > 6:
        raise DataError(f"{path}: its 'true_captions' is {stated!r:.80}, not a whole number")
    return int(stated)


def saved_clusters(path: Path, metadata: Mapping[str, Any], groups: int, shape: GroupShape) -> Clusters | None:
    """Clusters as ``--save_scores`` wrote them; None if no image stands in several groups."""
    if "clusters" not in metadata:
        return None
    lists = []
    for key, length in (("clusters", groups), ("image_clusters", groups * shape.images)):
        try:
            found = parse_json(str(metadata.get(key, "[]")))
        except ValueError as error:
            raise DataError(f"{path}: its '{key}' cannot be read: {error}") from None
        if not isinstance(found, list) or len(found) != length or any(type(one) is not int for one in found):
            raise DataError(f"{path}: its '{key}' is no list of {length} whole numbers")
        lists.append(found)
    try:
        return Clusters(np.array(lists[0], np.int64), np.array(lists[1], np.int64).reshape(groups, -1))
    except OverflowError:
        raise DataError(f"{path}: its 'clusters' are numbers too large to be any") from None
