"""The numbers of single groups, and which numbers no metric can have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ttmbench.results.labels import base_metric

FRACTIONS = (
    *("text_score", "image_score", "group_score", "group_match", "individual_match", "global_assignment_accuracy"),
    *("original_accuracy", "augmented_accuracy", "brittleness", "text_only_score"),
)
_RANKED = re.compile(r"(?:(?:i2t|t2i)_recall_at_|accuracy_top)\d+(?:_as_topk)?")
LARGEST = 1e300


def wrong_number(key: str, value: Any) -> str | None:
    """What is wrong with a number of results or samples, in words that follow it; None if nothing is.

    >>> wrong_number("group_match,none", 1.5)
    'which is no fraction'
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return "which is no finite number"
    metric = key.partition(",")[0]
    if (base_metric(metric) in FRACTIONS or _RANKED.fullmatch(base_metric(metric))) and not 0 <= value <= 1:
        return "which is no fraction"
    return "which is a negative spread" if base_metric(metric) != metric and value < 0 else None


def sample_value(metrics: Any) -> dict[str, float] | None:
    """The defined numbers of a samples line; None if they are no such thing."""
    if not isinstance(metrics, Mapping):
        return None
    if any(wrong_number(str(key), value) for key, value in metrics.items()):
        return None
    return {str(key): float(value) for key, value in metrics.items() if value is not None}
