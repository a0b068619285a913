"""Samples lines -> the data of the groups browser, in a compact form: lists by position instead of keyed objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench._util.text import read_json_lines
from ttmbench.errors import DataError
from ttmbench.report.load import ReportedRun
from ttmbench.report.tagcharts import HEADLINE
from ttmbench.results.labels import RAW, TTM, name_of

DIGITS = 5  # of scores and margins on the page


@dataclass(frozen=True)
class GroupSet:
    """The groups of one task of one run.

    Attributes:
        run: whose.
        task: name.
        data: what the page gets: ``metrics``, ``filters`` (name, words, seeds), ``tags``, and ``groups``, each
            ``[id, captions, images, tags, filters]``; a filter is null or a list over seeds of
            ``[scores, matching, tie, margin, metrics, answers]``.
    """

    run: ReportedRun
    task: str
    data: dict[str, Any]

    @property
    def images_of(self) -> tuple[str, str]:
        """What tells whose images these are: runs on the same data share them."""
        return self.task, str(self.run.of_task("task_hashes", self.task))

    def by_interest(self) -> list[list[Any]]:
        """Groups in the order in which images are taken, if there is no room for all: changed, wrong, others."""
        return sorted(self.data["groups"], key=self._interest)

    def _interest(self, group: list[Any]) -> int:
        names = [one["name"] for one in self.data["filters"]]
        at = self.data["metrics"].index(HEADLINE) if HEADLINE in self.data["metrics"] else 0
        before, after = (_mean(group[4][names.index(name)], at) if name in names else None for name in (RAW, TTM))
        if before is None or after is None or before == after:
            return 2 if (before if after is None else after) == 1 else 1
        return 0


def read_groups(run: ReportedRun, task: str, path: Path) -> GroupSet:
    """Reads the samples of a task.

    Args:
        run: whose.
        task: name.
        path: the file.

    Returns:
        The groups in the file's order.

    Raises:
        DataError: a line is no samples line; file and line are named.
    """
    return group_set(run, task, read_json_lines(path), path)


def group_set(run: ReportedRun, task: str, lines: Iterable[tuple[int, Mapping[str, Any]]], path: Path) -> GroupSet:
    """Groups from numbered lines; arguments and errors as for `read_groups`."""
    filters: dict[str, dict[int, Any]] = {}
    metrics: list[str] = []
    tags: list[str] = []
    groups: dict[str, dict[str, Any]] = {}
    for place, line in lines:
        try:
            name, seed = str(line["filter"]), int(line.get("seed_index", 0))
            filters.setdefault(name, {})[seed] = line.get("seed")
            metrics += [metric for metric in line["metrics"] if metric not in metrics]
            tags += [tag for tag in line.get("tags", {}) if tag not in tags]
            group = groups.setdefault(str(line["group_id"]), {"line": line, "results": {}})
            group["results"].setdefault(name, {})[seed] = _result(line, metrics)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: line {place} is no samples line of ttmbench") from None
    laid_out = [_group(group_id, group, filters, metrics, tags) for group_id, group in groups.items()]
    described = [
        {"name": name, "words": name_of(name), "seeds": [seeds[index] for index in sorted(seeds)]}
        for name, seeds in filters.items()
    ]
    return GroupSet(run, task, {"metrics": metrics, "filters": described, "tags": tags, "groups": laid_out})


def _group(
    group_id: str, group: Mapping[str, Any], filters: Mapping[str, Any], metrics: list[str], tags: list[str]
) -> list[Any]:
    line, results = group["line"], group["results"]
    own = line.get("tags", {})
    per_filter = []
    for name, seeds in filters.items():
        found = results.get(name)
        # Held-out groups are a part of all: the others have nothing under that filter.
        rows = None if found is None else [found.get(seed) for seed in sorted(seeds)]
        if rows is not None:
            for row in rows:
                if row is not None:
                    row[4] += [None] * (len(metrics) - len(row[4]))
        per_filter.append(rows)
    return [
        group_id,
        [str(caption) for caption in line.get("captions", [])],
        [str(image) for image in line.get("images", [])],
        [None if tag not in own else str(own[tag]) for tag in tags],
        per_filter,
    ]


def _result(line: Mapping[str, Any], metrics: Iterable[str]) -> list[Any]:
    scores = [[_short(score) for score in row] for row in line["scores"]] if "scores" in line else None
    answers = None
    if "answers" in line:
        answers = [
            [str(one["question"]), str(one["prompt"]), one["answer"], one["order"], one["chosen"], bool(one["right"])]
            for one in line["answers"]
        ]
    return [
        scores,
        [_given(one) for one in line["matching"]] if "matching" in line else None,
        1 if line.get("tie") else 0,
        _short(line.get("margin")),
        [_short(line["metrics"].get(metric)) for metric in metrics],
        *([answers] if answers is not None else []),
    ]


def _given(captions: Any) -> int | list[int] | None:
    """What a matching gives an image: a caption, or as many as are true for it; none where there are fewer."""
    if captions is None:
        return None
    return [int(one) for one in captions] if isinstance(captions, list) else int(captions)


def _short(value: Any) -> float | int | None:
    """A number of few digits, a whole one without a point."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    if value - value != 0:
        raise ValueError(f"{value} is not a number of a results document")
    short = float(f"{value + 0:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


def _mean(rows: list[Any] | None, metric: int) -> float | None:
    values = [row[4][metric] for row in rows or () if row is not None and row[4] and row[4][metric] is not None]
    return sum(values) / len(values) if values else None
