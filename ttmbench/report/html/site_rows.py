"""Rows of a leaderboard as lines of a page: what is compared, what is ranked, and what only stands beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttmbench.report.table import NOTHING
from ttmbench.report.terminal import headline
from ttmbench.results.coverage import together
from ttmbench.results.labels import CHOICE, DISAGREES_MARK, FROM_FILE, SEEN_MARK
from ttmbench.results.numbers import Number

RUN, PUBLISHED, PART, OTHER = "run", "published", "part of the groups", "other data or version"
STORED = FROM_FILE  # beside runs: whether it is of the same images is not known


@dataclass(frozen=True)
class TaskFacts:
    """What a page says of a task.

    Attributes:
        name: of the task.
        version: the newest that a row is of.
        data: fingerprint that most whole runs of it have; None if only published rows are there.
        metrics: that are compared first: of the raw model, and of matching and adaptation.
        about: its task file, as the newest document has it.
        groups: how many it has.
        from_runs: the data are those of a run; else of scores from files.
    """

    name: str
    version: int | None
    data: str | None
    metrics: tuple[str, str]
    about: Mapping[str, Any]
    groups: int | None
    from_runs: bool = True

    def headline(self, row: Number) -> bool:
        """Whether a number is the one of its line that is compared first."""
        is_raw = row.method in ("raw", "forced choice") or row.filter == CHOICE
        return row.metric == self.metrics[0 if is_raw else 1]

    def standing(self, row: Number) -> str:
        """Why a row ranks (`RUN`) or does not."""
        if row.published:
            return PUBLISHED
        if row.limited:
            return PART
        if (row.version, row.data) == (self.version, self.data):
            return RUN
        return STORED if row.from_file and self.from_runs and row.version == self.version else OTHER


def facts_of(task: str, rows: Sequence[Number], about: Mapping[str, Any]) -> TaskFacts:
    """What is known of a task.

    Args:
        task: name.
        rows: of it.
        about: its task file, as a document has it.

    Returns:
        The facts. Rows of an older version, or of data that fewer runs have, do not rank beside the others. Scores from
        files rank among each other where no run has seen the data.
    """
    whole = [row for row in rows if not row.published and not row.limited]
    versions = [row.version for row in whole if row.version is not None]
    version = max(versions, default=None)
    newest = [row for row in whole if row.version == version]
    seen = [row for row in newest if not row.from_file]
    of_version = Counter((row.data, row.file) for row in seen or newest)
    files = Counter(data for data, _ in of_version)
    data = max(files, key=lambda one: (files[one], str(one)), default=None)
    metrics = {row.metric for row in rows}
    raw, match = headline(metrics, about.get("matching") == "global")
    first = _first_metric(about, rows)
    groups = next((row.groups_of_task for row in whole if row.groups_of_task), None)
    return TaskFacts(
        task,
        version,
        data,
        (raw if raw in metrics else first, match if match in metrics else first),
        about,
        groups,
        bool(seen),
    )


def _first_metric(about: Mapping[str, Any], rows: Sequence[Number]) -> str:
    stated = about.get("metrics")
    return str(stated[0]) if isinstance(stated, list) and stated else min((row.metric for row in rows), default="")


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
    def ranks(self) -> bool:
        """Whether it may rank."""
        return self.standing == RUN

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
    found: dict[tuple[str, str, str, str], dict[str, Number]] = {}
    for row in rows:
        standing = facts[row.task].standing(row)
        # One name of two papers may stand for two models, so published numbers of two sources never share a line.
        key = (row.model, row.method, standing, row.file if standing == PUBLISHED else "")
        cell = getattr(row, column)
        before = found.setdefault(key, {}).get(cell)
        if before is None or (row.version or 0, row.date or "") > (before.version or 0, before.date or ""):
            found[key][cell] = row
    lines = [BoardLine(model, method, standing, cells) for (model, method, standing, _), cells in found.items()]
    if first is None:
        return sorted(lines, key=lambda one: (one.standing in (PART, OTHER), one.model.lower(), one.method))
    up = all(row.higher_is_better for line in lines for name, row in line.cells.items() if name == first)

    def order(line: BoardLine) -> tuple[Any, ...]:
        value = line.cells[first].value if first in line.cells else None
        signed = 0.0 if value is None else -value if up else value
        return (line.standing in (PART, OTHER), value is None, signed, line.model.lower(), line.method)

    return list(_ranked(sorted(lines, key=order), first))


def _ranked(lines: Sequence[BoardLine], first: str) -> Iterable[BoardLine]:
    place, last, rank = 0, None, None
    for line in lines:
        value = line.cells[first].value if first in line.cells else None
        if not line.ranks or value is None:
            yield line
            continue
        place += 1
        rank, last = (rank if value == last else place), value
        yield BoardLine(line.model, line.method, line.standing, line.cells, rank)


def best_of(lines: Sequence[BoardLine]) -> dict[str, float]:
    """The best value of each column among lines that rank, where there are several."""
    found: dict[str, list[Number]] = {}
    for line in lines:
        for name, row in line.cells.items() if line.ranks else ():
            found.setdefault(name, []).append(row)
    return {
        name: (max if rows[0].higher_is_better else min)(row.value or 0.0 for row in rows)
        for name, rows in found.items()
        if len(rows) > 1
    }


def cell_of(row: Number | None, best: float | None = None, ranks: bool = False) -> dict[str, Any]:
    """A number as a cell of a page."""
    if row is None or row.value is None:
        return {"value": "", "text": NOTHING, "spread": "", "about": "", "best": False}
    interval = "" if row.interval is None else f", 95 % {100 * row.interval[0]:.1f} to {100 * row.interval[1]:.1f}"
    return {
        "value": row.value,
        "text": f"{100 * row.value:.2f}{SEEN_MARK if row.seen else ''}{DISAGREES_MARK if row.disagrees else ''}",
        "spread": "" if row.seed_std is None else f"± {100 * row.seed_std:.2f}",
        "about": f"{row.metric.replace('_', ' ')}, {row.method}{interval}; {row.extent.words} groups; {row.file}"
        + (f"; but {row.disagrees}" if row.disagrees else ""),
        "best": ranks and best is not None and row.value == best,
    }
