"""The numbers of a results document, checked as they are taken out: every metric of every filter, and those by tag."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ttmbench.report.leaderboard import METHOD_OF_FILTER
from ttmbench.results.summary import HOLDOUT, HOLDOUT_RAW, ORACLE, SIMPLE_MATCH, TTM

HEADLINE = "group_match"
SEED_RECORDS = {TTM: "ttm", SIMPLE_MATCH: "simple_match", ORACLE: "oracle"}
METHODS = {
    **METHOD_OF_FILTER,
    "holdout_raw": "held out, raw",
    "holdout": "held out, adapted",
    "choice": "forced choice",
}


@dataclass(frozen=True)
class Number:
    """One metric of one filter on one task. Rates are fractions; what is undefined or unknown is None.

    Attributes:
        task: name, or name of a dataset for the mean over its tasks.
        metric: name.
        filter: as in results documents.
        track: None for controls and held-out groups, which explain a number and rank nowhere.
        value: mean over groups and seeds.
        stderr: over groups.
        interval: 95 %, over groups.
        chance: of random scores.
        ties: groups in which the metric met an equality.
        seed_std: over seeds.
        seeds: how many; None for raw numbers.
        groups: how many were scored.
        of_tasks: number of tasks that this is the mean of; None for a single task.
    """

    task: str
    metric: str
    filter: str
    track: str | None
    value: float | None
    stderr: float | None = None
    interval: tuple[float, float] | None = None
    chance: float | None = None
    ties: float | None = None
    seed_std: float | None = None
    seeds: int | None = None
    groups: int | None = None
    of_tasks: int | None = None

    @property
    def method(self) -> str:
        """The filter in words."""
        return METHODS.get(self.filter, self.filter)


@dataclass(frozen=True)
class TagTable:
    """A task's numbers by the values of one tag.

    Attributes:
        task: name.
        tag: name.
        keys: ``(metric, filter)`` of the columns.
        rows: value of the tag -> number of groups, and the numbers of the columns.
        chance: metric -> of random scores.
    """

    task: str
    tag: str
    keys: tuple[tuple[str, str], ...]
    rows: dict[str, tuple[int, tuple[float | None, ...]]]
    chance: dict[str, float | None]


def numbers_of(document: Mapping[str, Any]) -> Iterator[Number]:
    """Every number of a results document.

    Args:
        document: the document.

    Yields:
        Tasks in their order, then means over datasets.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the document is not as its schema says.
    """
    for task, values in document["results"].items():
        tracks, intervals = _of(document, "tracks", task), _of(document, "ci", task)
        ties, chance = _of(document, "ties", task), _of(document, "chance", task)
        effective = _of(document, "n-samples", task).get("effective")
        held_out = (_of(document, "ttm", task).get("holdout") or {}).get("scored_groups")
        for metric, name in _keys(values):
            key = f"{metric},{name}"
            record = record_of(document, task, name)
            groups = effective if name not in (HOLDOUT, HOLDOUT_RAW) or held_out is None else len(held_out)
            ends = intervals.get(key)
            yield Number(
                task=str(task),
                metric=metric,
                filter=name,
                track=tracks.get(key),
                value=number(values[key]),
                stderr=number(values.get(f"{metric}_stderr,{name}")),
                interval=None if ends is None else (float(ends[0]), float(ends[1])),
                chance=number(chance.get(metric)),
                ties=number(ties.get(key)),
                seed_std=number(values.get(f"{metric}_seed_std,{name}")),
                seeds=len(record["seeds"]) if "seeds" in record else None,
                groups=None if groups is None else int(groups),
            )
    for dataset, values in document.get("groups", {}).items():
        tasks = document["group_subtasks"][dataset]
        tracks = _of(document, "tracks", tasks[0])
        for metric, name in _keys(values):
            key = f"{metric},{name}"
            yield Number(
                task=str(dataset),
                metric=metric,
                filter=name,
                track=tracks.get(key),
                value=number(values[key]),
                stderr=number(values.get(f"{metric}_stderr,{name}")),
                of_tasks=len(tasks),
            )


def tag_tables_of(document: Mapping[str, Any]) -> Iterator[TagTable]:
    """A table for each task and tag of a document's breakdowns; errors as for `numbers_of`."""
    for task, tags in document.get("breakdowns", {}).items():
        chance = {str(metric): number(value) for metric, value in _of(document, "chance", task).items()}
        for tag, values in tags.items():
            keys = list(dict.fromkeys(pair for row in values.values() for pair in _keys(row)))
            keys.sort(key=lambda pair: pair[0] != HEADLINE)
            rows = {
                str(value): (int(row["groups"]), tuple(number(row.get(f"{m},{f}")) for m, f in keys))
                for value, row in values.items()
            }
            yield TagTable(str(task), str(tag), tuple(keys), rows, chance)


def number(value: Any) -> float | None:
    """A finite number or None; anything else is an error."""
    if value is None:
        return None
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{value} is no number of a results document")
    return found


def record_of(document: Mapping[str, Any], task: str, name: str) -> Mapping[str, Any]:
    """What a document records of the training for a filter, its seeds among it; empty for raw numbers."""
    if name in SEED_RECORDS:
        return _of(document, SEED_RECORDS[name], task)
    of_ttm = _of(document, "ttm", task)
    found: Mapping[str, Any] = of_ttm.get("controls", {}).get(name) or (name == HOLDOUT and of_ttm.get(name)) or {}
    return found


def _of(document: Mapping[str, Any], key: str, task: str) -> Mapping[str, Any]:
    """What a document says of a task under a key; nothing if it says nothing."""
    found: Mapping[str, Any] = (document.get(key) or {}).get(task) or {}
    return found


def _keys(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(metric, filter) of the values, without their errors and spreads."""
    pairs = [(metric, name) for metric, _, name in (key.partition(",") for key in values) if name]
    return [(metric, name) for metric, name in pairs if not metric.endswith(("_stderr", "_seed_std"))]
