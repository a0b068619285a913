"""Metrics by tag, and the mean over the subsets of a dataset, if all of them were run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ttmbench.results.labels import key_of, split_key
from ttmbench.results.summary import group_rows
from ttmbench.results.tag_means import TagMean
from ttmbench.types import Group, MetricSpec, Scores

MOST_VALUES = 24  # a tag with more is a name, not a kind
NO_VALUE = "(none)"
SEPARATOR = ", "  # a group may have several values of a tag


def breakdowns(
    groups: Sequence[Group],
    scores: Mapping[str, Sequence[Scores]],
    metrics: Sequence[MetricSpec],
    subsets: Mapping[str, Sequence[int]],
    means: Mapping[str, TagMean] = MappingProxyType({}),
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Every metric inside groups, for the groups of each value of each tag.

    ``scores`` are filter -> score arrays, one per seed; ``subsets`` filter -> positions of its groups, where these are
    not all. Metrics without a value for every group are skipped.

    Returns:
        tag -> value -> ``groups`` (how many) and ``metric,filter`` -> mean over groups and seeds; None where no group
        of this value was scored. Tags with one value, or with more than 24, are left out, but for values that a named
        mean goes by.
    """
    members = {**_members(groups), **_members_of_means(groups, means)}
    numbers: dict[str, dict[str, dict[str, float | None]]] = {
        tag: {value: {"groups": len(places)} for value, places in values.items()} for tag, values in members.items()
    }
    for key, rows in group_rows(len(groups), scores, metrics, subsets).items() if numbers else ():
        row = np.mean(rows, axis=0)
        for tag, places_of in members.items():
            for value, places in places_of.items():
                known = row[places][~np.isnan(row[places])]
                numbers[tag][value][key_of(*key)] = float(known.mean()) if len(known) else None
    return numbers


def mean_of_tasks(results: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The unweighted mean of tasks, for every number (``metric,filter``) that all of them have.

    Standard errors add up as those of independent tasks.

    >>> mean_of_tasks([{"m,none": 0.5, "m_stderr,none": 0.03}, {"m,none": 1.0, "m_stderr,none": 0.04}])
    {'m,none': 0.75, 'm_stderr,none': 0.025}
    """
    means: dict[str, float | None] = {}
    for key in results[0]:
        values = [result.get(key) for result in results]
        known = [value for value in values if value is not None]
        metric, _ = split_key(key)
        if len(known) < len(values) or metric.endswith("_seed_std"):
            continue
        if metric.endswith("_stderr"):
            means[key] = math.sqrt(sum(value**2 for value in known)) / len(known)
        else:
            means[key] = math.fsum(known) / len(known)
    return means


def shared_images_note(configs: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """A note for a mean over tasks of which some may show the same images, by their resolved task files.

    Such are of one image collection, or read images from one path.
    """
    seen: dict[str, str] = {}
    alike: dict[str, None] = {}
    for task in tasks:
        config = configs.get(task) or {}
        source = config.get("source") or {}
        places = source.get("images") or source.get("path")
        at = [f"at {place}" for place in (places if isinstance(places, list) else [places]) if place]
        for shared in dict.fromkeys([*(config.get("images_from") or ()), *at]):
            if shared in seen:
                alike |= {seen[shared]: None, task: None}
            seen.setdefault(shared, task)
    if not alike:
        return []
    return [
        f"the standard error of the mean assumes independent tasks, and {len(alike)} of {len(tasks)} may share "
        "images (one image collection or place), so it may be too small"
    ]


def _members(groups: Sequence[Group]) -> dict[str, dict[str, np.ndarray]]:
    """Tag -> value -> positions of its groups."""
    places: dict[str, dict[str, list[int]]] = {}
    for position, group in enumerate(groups):
        for tag, text in group.tags.items():
            for value in str(text).split(SEPARATOR) if text else [NO_VALUE]:
                places.setdefault(tag, {}).setdefault(value, []).append(position)
    return {
        tag: {value: np.array(positions) for value, positions in sorted(values.items())}
        for tag, values in places.items()
        if 1 < len(values) <= MOST_VALUES
    }


def _members_of_means(groups: Sequence[Group], means: Mapping[str, TagMean]) -> dict[str, dict[str, np.ndarray]]:
    """As `_members`, for tags with many values of which a named mean says which count."""
    members: dict[str, dict[str, list[int]]] = {}
    for mean in means.values():
        for cell, places in mean.members(groups).items():
            for tag, value in zip(mean.by, cell, strict=True):
                members.setdefault(tag, {}).setdefault(value or NO_VALUE, []).extend(places)
    return {
        tag: {value: np.array(sorted({*places})) for value, places in sorted(values.items())}
        for tag, values in members.items()
        if len(values) > 1 and len({group.tags.get(tag) for group in groups}) > MOST_VALUES
    }


def aggregates(
    results: Mapping[str, Mapping[str, float | None]], members: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float | None]]:
    """The mean of each dataset (dataset -> its tasks) whose subsets were all run: dataset -> numbers."""
    return {
        name: mean_of_tasks([results[task] for task in tasks])
        for name, tasks in members.items()
        if tasks and all(task in results for task in tasks)
    }
