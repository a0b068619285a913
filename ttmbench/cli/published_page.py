"""What ``ttmbench show`` says of published numbers: three lines, or all as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby, islice

from ttmbench._util.console import echo, one_line
from ttmbench.plugins.registry import Registry
from ttmbench.report.table import TableColumn, percent, print_table, spread
from ttmbench.reproduce.lookup import PublishedRow, chance, most_measured
from ttmbench.types import Record


def in_brief(rows: Sequence[PublishedRow], name: str, registry: Registry, *, is_task: bool) -> Record:
    """How many numbers are published, and the ranges of those three models or tasks that most sources measured."""
    if not rows:
        return {"numbers": 0}
    subject = _model if is_task else _task
    exactly = [row for row in rows if row.task == name] if is_task else []
    cells = []
    for key, same in islice(groupby(most_measured(exactly or rows, subject, one_metric=is_task), subject), 3):
        found = list(same)
        ends = dict.fromkeys(percent(row.number.measured.value) for row in (found[0], found[-1]))
        where = {source(row) for row in found}
        by = f", {where.pop()}" if len(where) == 1 else ""
        cells.append(("-".join(ends), percent(chance(found[0], registry)), found[0].label, f"{key}{by}"))
    width = max(len(value) for value, *_ in cells)
    sources = len({row.number.source for row in rows})
    return {
        "numbers": len(rows),
        "about": f"{len(rows)} numbers of {sources} source{'s' * (sources > 1)}",
        "lines": [f"{value:>{width}}  chance {by_chance:>5}  {label}  {by}" for value, by_chance, label, by in cells],
        "all": f"ttmbench show {name} --published",
    }


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
