"""Rows of a leaderboard as lines of a page: which are compared and ranked, and which are only listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ttmbench.report.leaderboard import extent_of_line
from ttmbench.report.terminal import headline
from ttmbench.results.labels import BUILT_IN_FILTERS, CHOICE, CHOICE_COLUMN, FROM_FILE, RAW_COLUMN
from ttmbench.results.numbers import Number

RUN, PUBLISHED, PART, OTHER = "run", "published", "part of the groups", "other data or version"
STORED = FROM_FILE  # beside runs, since it is unknown whether the images are the same


@dataclass(frozen=True)
class TaskFacts:
    """The version and data of a task that rank on its page.

    Attributes:
        version: the newest one.
        data: the most frequent fingerprint of whole runs; None if all rows are published.
        metrics: the headline metrics of the raw model, and of matching and adaptation.
        config: its task file, from the newest document.
        groups: number of groups.
        from_runs: whether the data are those of a run, not of scores from files.
    """

    version: int | None
    data: str | None
    metrics: tuple[str, str]
    config: Mapping[str, object]
    groups: int | None
    from_runs: bool

    @classmethod
    def of(cls, rows: Sequence[Number], config: Mapping[str, object]) -> TaskFacts:
        """The facts of a task from its rows and task file; scores from files rank only where no run has the data."""
        whole = [row for row in rows if not row.published and not row.limited]
        version = max((row.version for row in whole if row.version is not None), default=None)
        newest = [row for row in whole if row.version == version]
        seen = [row for row in newest if not row.from_file]
        files = Counter(data for data, _ in {(row.data, row.file) for row in seen or newest})
        data = max(files, key=lambda digest: (files[digest], str(digest)), default=None)
        metrics = {row.metric for row in rows}
        first = next(iter(_stated_metrics(config)), min(metrics, default=""))
        compared = headline(metrics, config.get("matching") == "global")
        raw, match = (name if name in metrics else first for name in compared)
        groups = next((row.groups_of_task for row in whole if row.groups_of_task), None)
        return cls(version, data, (raw, match), config, groups, bool(seen))

    def headline(self, row: Number) -> bool:
        """Whether a number is the headline of its line."""
        return row.metric == self.metrics[0 if is_raw(row) else 1]

    def columns(self, rows: Sequence[Number]) -> list[str]:
        """The metrics of a track, the headline first."""
        metrics = {row.metric for row in rows}
        ordered = [name for name in _stated_metrics(self.config) if name in metrics]
        raw, match = self.metrics
        first = match if match in metrics and (raw not in metrics or not all(map(is_raw, rows))) else raw
        return sorted([*ordered, *sorted(metrics - set(ordered))], key=lambda name: name != first)

    def standing(self, row: Number) -> str:
        """Why a row ranks (`RUN`) or does not."""
        if row.published:
            return PUBLISHED
        if row.limited:
            return PART
        if (row.version, row.data) == (self.version, self.data):
            return RUN
        return STORED if row.from_file and self.from_runs and row.version == self.version else OTHER


def is_raw(row: Number) -> bool:
    """Whether a number is of the model without matching or adaptation."""
    return row.method in (RAW_COLUMN.name, CHOICE_COLUMN.name) or row.filter == CHOICE


def _stated_metrics(config: Mapping[str, object]) -> list[str]:
    metrics = config.get("metrics")
    return [str(metric) for metric in metrics] if isinstance(metrics, list) else []


@dataclass(frozen=True)
class BoardLine:
    """A model and a method in the table of a track.

    Attributes:
        model: its name.
        method: of the column.
        standing: `RUN` if it ranks, else why not.
        cells: column -> number.
        rank: from 1, shared by equal numbers; None if it does not rank.
    """

    model: str
    method: str
    standing: str
    cells: Mapping[str, Number]
    rank: int | None = None

    @property
    def any(self) -> Number:
        """One of its numbers; on a task's page all are of one document."""
        return next(iter(self.cells.values()))

    @property
    def groups(self) -> str:
        """The numbers of scored groups and of all groups."""
        return extent_of_line({row.task: row for row in self.cells.values()}).words


def lines_of(
    rows: Iterable[Number], facts: Mapping[str, TaskFacts], column: str, first: str | None = None
) -> list[BoardLine]:
    """The lines of a track: those that rank and published ones by value, then the others.

    Args:
        rows: of a track.
        facts: of their tasks.
        column: what the columns hold, ``metric`` or ``task``.
        first: the column by which lines are ordered and ranked; None orders them by name, without ranks.
    """
    cells: dict[tuple[str, str, str, str], dict[str, Number]] = {}
    for row in rows:
        standing = facts[row.task].standing(row)
        # Two papers may use one name for two models, so their numbers never share a line.
        line = cells.setdefault((row.model, row.method, standing, row.file if standing == PUBLISHED else ""), {})
        before = line.get(getattr(row, column))
        if before is None or (row.version or 0, row.date or "") > (before.version or 0, before.date or ""):
            line[getattr(row, column)] = row
    lines = [BoardLine(model, method, standing, line) for (model, method, standing, _), line in cells.items()]
    if first is None:
        return sorted(lines, key=lambda line: (line.standing in (PART, OTHER), line.model.lower(), line.method))
    up = all(line.cells[first].higher_is_better for line in lines if first in line.cells)

    def value(line: BoardLine) -> float | None:
        return line.cells[first].value if first in line.cells else None

    def order(line: BoardLine) -> tuple[object, ...]:
        number = value(line)
        signed = 0.0 if number is None else -number if up else number
        return (line.standing in (PART, OTHER), number is None, signed, line.model.lower(), line.method)

    lines.sort(key=order)
    values = [value(line) for line in lines if line.standing == RUN]
    return [
        replace(line, rank=values.index(value(line)) + 1) if line.standing == RUN and value(line) is not None else line
        for line in lines
    ]


def chance_levels(rows: Iterable[Number]) -> dict[str, float]:
    """The chance level of each metric: that of random scores, else the most frequent one of test-time methods."""
    levels: dict[str, Counter[tuple[bool, float]]] = {}
    for row in rows:
        if row.chance is not None:
            levels.setdefault(row.metric, Counter())[row.filter in BUILT_IN_FILTERS, row.chance] += 1
    return {metric: max(counts, key=lambda level: (level[0], counts[level]))[1] for metric, counts in levels.items()}


def best_of(lines: Sequence[BoardLine]) -> dict[str, float]:
    """The best value of each column with several ranked lines."""
    columns: dict[str, list[Number]] = {}
    for line in lines:
        for name, row in line.cells.items() if line.standing == RUN else ():
            columns.setdefault(name, []).append(row)
    return {
        name: (max if rows[0].higher_is_better else min)(row.value or 0.0 for row in rows)
        for name, rows in columns.items()
        if len(rows) > 1
    }
