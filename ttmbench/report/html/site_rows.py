"""Rows of a leaderboard as lines of a page: what is compared, what is ranked, and what only stands beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ttmbench.report.terminal import headline
from ttmbench.results.coverage import together
from ttmbench.results.labels import CHOICE, CHOICE_COLUMN, FROM_FILE, RAW_COLUMN
from ttmbench.results.numbers import Number

RUN, PUBLISHED, PART, OTHER = "run", "published", "part of the groups", "other data or version"
STORED = FROM_FILE  # beside runs: whether it is of the same images is not known


@dataclass(frozen=True)
class TaskFacts:
    """What a page says of a task.

    Attributes:
        version: the newest that a row is of.
        data: fingerprint that most whole runs of it have; None if only published rows are there.
        metrics: that are compared first: of the raw model, and of matching and adaptation.
        config: its task file, as the newest document has it.
        groups: how many it has.
        from_runs: the data are those of a run; else of scores from files.
    """

    version: int | None
    data: str | None
    metrics: tuple[str, str]
    config: Mapping[str, object]
    groups: int | None
    from_runs: bool

    @classmethod
    def of(cls, rows: Sequence[Number], config: Mapping[str, object]) -> TaskFacts:
        """What is known of a task.

        Args:
            rows: of it.
            config: its task file, as a document has it.

        Returns:
            The facts. Rows of an older version, or of data that fewer runs have, do not rank beside the others. Scores
            from files rank among each other where no run has seen the data.
        """
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
        """Whether a number is the one of its line that is compared first."""
        return row.metric == self.metrics[0 if is_raw(row) else 1]

    def columns(self, rows: Sequence[Number]) -> list[str]:
        """The metrics of a track, the one that is compared first in front."""
        metrics = {row.metric for row in rows}
        names = [name for name in _stated_metrics(self.config) if name in metrics]
        raw, match = self.metrics
        first = match if match in metrics and (raw not in metrics or not all(map(is_raw, rows))) else raw
        return sorted([*names, *sorted(metrics - set(names))], key=lambda name: name != first)

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
    """Whether a number is of the model as it is."""
    return row.method in (RAW_COLUMN.name, CHOICE_COLUMN.name) or row.filter == CHOICE


def _stated_metrics(config: Mapping[str, object]) -> list[str]:
    metrics = config.get("metrics")
    return [str(metric) for metric in metrics] if isinstance(metrics, list) else []


@dataclass(frozen=True)
class BoardLine:
    """A model and a method in the table of a track.

    Attributes:
        model: name.
        method: column name.
        standing: whether it ranks, else why not.
        cells: column -> number.
        rank: from 1; equal numbers share one; None if it does not rank.
    """

    model: str
    method: str
    standing: str
    cells: Mapping[str, Number]
    rank: int | None = None

    @property
    def any(self) -> Number:
        """One of its numbers: they are of one document where they are of one task."""
        return next(iter(self.cells.values()))

    @property
    def groups(self) -> str:
        """How many groups of how many it is of."""
        return together({row.task: row.extent for row in self.cells.values()}.values()).words


def lines_of(
    rows: Iterable[Number], facts: Mapping[str, TaskFacts], column: str, first: str | None = None
) -> list[BoardLine]:
    """Lays rows of one track out as lines.

    Args:
        rows: of a track.
        facts: of their tasks.
        column: ``metric`` or ``task``: what the columns of the table are.
        first: the column that lines are ordered and ranked by; None leaves them by name, without ranks.

    Returns:
        The lines: those that rank and published ones by value, then the others.
    """
    cells: dict[tuple[str, str, str, str], dict[str, Number]] = {}
    for row in rows:
        standing = facts[row.task].standing(row)
        # One name of two papers may stand for two models, so published numbers of two sources never share a line.
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

    def order(line: BoardLine) -> tuple[Any, ...]:
        number = value(line)
        signed = 0.0 if number is None else -number if up else number
        return (line.standing in (PART, OTHER), number is None, signed, line.model.lower(), line.method)

    lines.sort(key=order)
    values = [value(line) for line in lines if line.standing == RUN]
    return [
        replace(line, rank=values.index(value(line)) + 1) if line.standing == RUN and value(line) is not None else line
        for line in lines
    ]


def best_of(lines: Sequence[BoardLine]) -> dict[str, float]:
    """The best value of each column among lines that rank, where there are several."""
    columns: dict[str, list[Number]] = {}
    for line in lines:
        for name, row in line.cells.items() if line.standing == RUN else ():
            columns.setdefault(name, []).append(row)
    return {
        name: (max if rows[0].higher_is_better else min)(row.value or 0.0 for row in rows)
        for name, rows in columns.items()
        if len(rows) > 1
    }
