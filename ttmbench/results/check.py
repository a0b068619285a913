"""Is a results document what other commands may build on? Structure and every number, before a table is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttmbench.results.labels import TRACK_ORDER, base_metric

FRACTIONS = (
    *("text_score", "image_score", "group_score", "group_match", "individual_match", "global_assignment_accuracy"),
)
LARGEST = 1e300
_MAPPINGS = ("results", "tracks", "versions", "n-samples", "task_hashes", "ttm", "simple_match", "oracle", "artifacts")


def wrong_with(document: Mapping[str, Any]) -> str | None:
    """What makes a results document unusable.

    Args:
        document: with its ``results``.

    Returns:
        One sentence without its subject, None if all is well.

    >>> wrong_with({"results": {"t": {"group_match,none": 1.5}}})
    "has 1.5 for 'group_match,none' of task 't', which is no fraction"
    """
    for key in _MAPPINGS:
        if not isinstance(document.get(key, {}), dict):
            return f"has a '{key}' that is no object"
    for task, numbers in document["results"].items():
        if not isinstance(numbers, dict):
            return f"has results of task {task!r:.80} that are no object"
        for key, value in numbers.items():
            wrong = _wrong_number(key, value)
            if wrong:
                return f"has {value!r:.40} for {key!r:.80} of task {task!r:.80}, {wrong}"
    for task, tracks in document.get("tracks", {}).items():
        if not isinstance(tracks, dict) or not all(track in TRACK_ORDER for track in tracks.values()):
            return f"has tracks of task {task!r:.80} that are unknown; known: {', '.join(TRACK_ORDER)}"
    name = document.get("model_name", "")
    return None if isinstance(name, str) else "has a model_name that is no text"


def _wrong_number(key: str, value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return "which is no finite number"
    metric = key.partition(",")[0]  # a key without a filter is a sample's
    is_spread = base_metric(metric) != metric
    if base_metric(metric) in FRACTIONS and not 0 <= value <= 1:
        return "which is no fraction"
    return "which is a negative spread" if is_spread and value < 0 else None


def sample_value(metrics: Any) -> dict[str, float] | None:
    """The defined numbers of a samples line; None if they are no such thing."""
    if not isinstance(metrics, Mapping):
        return None
    if any(_wrong_number(str(key), value) for key, value in metrics.items()):
        return None
    return {str(key): float(value) for key, value in metrics.items() if value is not None}
