"""What tells whether a task's data are those that numbers are of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ttmbench.types import Group


@dataclass(frozen=True)
class DataNow:
    """A task's data as they are now.

    Attributes:
        fingerprint: of pixels and captions, or of stored features.
        groups: digest of ids and tags; None where groups have none of their own.
    """

    fingerprint: str
    groups: str | None = None


def stored_digest(task: str, version: int, shape: str, group_ids: Sequence[str]) -> str:
    """sha256 of what makes two files of scores comparable, as neither holds the data: task, version, shape, group ids.

    Args:
        task: name.
        version: of the task.
        shape: images and captions, such as ``2x2``.
        group_ids: of the file, in any order; empty where its format has none.

    Returns:
        The digest, the same for the scores of two models on the same groups.
    """
    return hashlib.sha256(json.dumps(["stored", task, version, shape, sorted(group_ids)]).encode()).hexdigest()


def groups_digest(groups: Sequence[Group]) -> str:
    """sha256 over ids and tags of groups in order: what breakdowns and samples are named by, and no model sees."""
    named = [[group.group_id, sorted(group.tags.items())] for group in groups]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()
