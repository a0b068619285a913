"""What ``ttmbench show`` says of published numbers: three lines, a few in a JSON document, or all as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby, islice

from ttmbench._util.console import echo, one_line
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.lookup import PublishedRow, chance, most_measured
from ttmbench.types import Record

LINES = 12
_WIDTH = 72  # of a line in a JSON document, which adds 8 characters


def in_brief(rows: Sequence[PublishedRow], name: str, registry: Registry, *, is_task: bool, in_full: bool) -> Record:
    """How many numbers are published, and those of the models or tasks that most sources measured, as lines of text.

    In full `LINES` numbers with their sources, and the command that lists all; else the range of numbers of three.
    """
    if not rows:
        return {"numbers": 0}
    exactly = [row for row in rows if row.task == name] if is_task else []
    chosen = most_measured(exactly or rows, _model if is_task else _task, one_metric=is_task)
    sources = len({row.number.source for row in rows})
    about = f"{len(rows)} numbers of {sources} source{'s' * (sources > 1)}"
    if not in_full:
        return {"numbers": len(rows), "about": about, "lines": _ranges(chosen, registry, is_task=is_task)}
    if len(chosen) > LINES:
        about += f"; those of the {'models' if is_task else 'tasks'} that most sources measured"
    head = ("percent", "chance", "metric", "model" if is_task else "task", "source")
    cells = [head, *(_cells(row, registry, _model(row) if is_task else row.task) for row in chosen[:LINES])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    width = max(12, min(widths[3], _WIDTH - sum(widths) + widths[3] - 8))
    lines = [
        f"{value:>{widths[0]}}  {by_chance:>{widths[1]}}  {metric:{widths[2]}}  "
        f"{name if len(name) <= width else name[: width - 2] + '..':{width}}  {where}"
        for value, by_chance, metric, name, where in cells
    ]
    return {"numbers": len(rows), "about": about, "lines": lines, "all": f"ttmbench show {name} --published"}


def _ranges(chosen: Sequence[PublishedRow], registry: Registry, *, is_task: bool) -> list[str]:
    cells = []
    for subject, same in islice(groupby(chosen, _model if is_task else _task), 3):
        found = list(same)
        ends = dict.fromkeys(_percent(row.number.measured.value) for row in (found[0], found[-1]))
        where = {source(row) for row in found}
        by = f", {where.pop()}" if len(where) == 1 else ""
        cells.append(("-".join(ends), _percent(chance(found[0], registry)), found[0].label, f"{subject}{by}"))
    width = max(len(value) for value, *_ in cells)
    return [f"{value:>{width}}  chance {by_chance:>5}  {label}  {by}" for value, by_chance, label, by in cells]


def _cells(row: PublishedRow, registry: Registry, name: str) -> tuple[str, str, str, str, str]:
    by_chance, where = _percent(chance(row, registry)), source(row).removeprefix("arXiv:")
    return _percent(row.number.measured.value), by_chance, row.label, name, where


def _model(row: PublishedRow) -> str:
    return row.model


def _task(row: PublishedRow) -> str:
    return row.task


def print_all(rows: Sequence[PublishedRow], registry: Registry, *, as_json: bool) -> None:
    """Every number as a table, by task, model and metric; or as JSON."""
    rows = sorted(rows, key=lambda row: (row.task, row.model, row.label, row.number.source, row.number.table))
    if as_json:
        echo(json.dumps([_as_json(row, registry) for row in rows], indent=2, ensure_ascii=False))
        return
    from ttmbench.report.table import TableColumn, percent, print_table, spread  # rich is not needed for JSON

    columns = [TableColumn("model", "key"), TableColumn("metric", "key")]
    columns += [TableColumn("percent", "number"), TableColumn("chance", "number"), TableColumn("source")]
    cells, above = list[list[str]](), ""
    for row in rows:
        task, measured = one_line(row.task, 200), row.number.measured
        numbers = (spread(measured.value, measured.std), percent(chance(row, registry)))
        cells += [] if task == above else [[task]]
        cells.append([row.model, row.label, *numbers, row.number.place])
        above = task
    print_table(columns, cells)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def source(row: PublishedRow) -> str:
    """Where a number was published, without its table; the name of a repository without its owner."""
    return one_line(row.number.source.partition(",")[0].rpartition("/")[2], 20)


def _as_json(row: PublishedRow, registry: Registry) -> Record:
    number = row.number
    return {
        "source": number.source,
        "table": number.table,
        "reproduce": row.table,
        "task": number.task,
        "model": number.model,
        "model_here": row.model if row.model != number.model else None,
        "method": number.column.name,
        "metric": row.label.partition(" (")[0],
        "value": number.measured.value,
        "std": number.measured.std,
        "of": number.of,
        "chance": chance(row, registry),
    }
