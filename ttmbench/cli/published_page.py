"""What ``ttmbench show`` says of published numbers: three lines, a few in a JSON document, or all as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby, islice

from ttmbench._util.console import echo, one_line
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.lookup import PublishedRow, chance, most_measured
from ttmbench.types import Record

LINES = 12
_WIDTH = 72  # of a line in a JSON document, which adds 8 characters


def in_few(rows: Sequence[PublishedRow], name: str, registry: Registry, *, is_task: bool) -> Record:
    """How many numbers are published, and the range of numbers of the three models or tasks that most measured."""
    if not rows:
        return {"numbers": 0}
    chosen, other = _chosen(rows, name, is_task)
    cells = []
    for subject, same in islice(groupby(chosen, other), 3):
        found = list(same)
        ends = dict.fromkeys(_percent(row.number.measured.value) for row in (found[0], found[-1]))
        where = {source(row) for row in found}
        by = f", {where.pop()}" if len(where) == 1 else ""
        by_chance = _percent(chance(found[0], registry))
        cells.append(("-".join(ends), f"chance {by_chance:>5}  {found[0].label}  {subject}{by}"))
    width = max(len(value) for value, _ in cells)
    return {
        "numbers": len(rows),
        "about": _about(rows),
        "lines": [f"{value:>{width}}  {rest}" for value, rest in cells],
    }


def in_brief(rows: Sequence[PublishedRow], name: str, registry: Registry, *, is_task: bool) -> Record:
    """How many numbers are published, the most measured ones as lines of text, and the command that lists all."""
    if not rows:
        return {"numbers": 0}
    chosen, other = _chosen(rows, name, is_task)
    chosen = chosen[:LINES]
    cells = [
        ("percent", "chance", "metric", "model" if is_task else "task", "source"),
        *(
            (_percent(row.number.measured.value), _percent(chance(row, registry)), row.label, other(row), source(row))
            for row in chosen
        ),
    ]
    shown = f"; those of the {'models' if is_task else 'tasks'} that most sources measured" * (len(chosen) < len(rows))
    command = f"ttmbench show {name} --published"
    return {"numbers": len(rows), "about": _about(rows) + shown, "lines": _aligned(cells), "all": command}


def _chosen(
    rows: Sequence[PublishedRow], name: str, is_task: bool
) -> tuple[list[PublishedRow], Callable[[PublishedRow], str]]:
    """The most measured numbers, and the model of a row, or its task."""
    other: Callable[[PublishedRow], str] = (lambda row: row.model) if is_task else (lambda row: row.task)
    exactly = [row for row in rows if row.task == name] if is_task else rows
    return most_measured(exactly or rows, other, one_metric=is_task), other


def _about(rows: Sequence[PublishedRow]) -> str:
    sources = len({row.number.source for row in rows})
    return f"{len(rows)} numbers of {sources} source{'s' * (sources > 1)}"


def _aligned(cells: Sequence[tuple[str, str, str, str, str]]) -> list[str]:
    """Lines of equal columns; where they would be too long, without ``arXiv:``, and then with shorter names."""
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    room = _WIDTH - sum(widths) + widths[3] - 8
    if room < widths[3]:
        cells = [(*row[:4], row[4].removeprefix("arXiv:")) for row in cells]
        room += widths[4] - max(len(row[4]) for row in cells)
    width = max(12, min(widths[3], room))
    return [
        f"{value:>{widths[0]}}  {by_chance:>{widths[1]}}  {metric:{widths[2]}}  "
        f"{name if len(name) <= width else name[: width - 2] + '..':{width}}  {where}"
        for value, by_chance, metric, name, where in cells
    ]


def print_all(rows: Sequence[PublishedRow], registry: Registry, *, as_json: bool) -> None:
    """Every number as a table, by task, model and metric; or as JSON."""
    rows = sorted(rows, key=lambda row: (row.task, row.model, row.label, row.number.source, row.number.table))
    if as_json:
        echo(json.dumps([_as_json(row, registry) for row in rows], indent=2, ensure_ascii=False))
        return
    from ttmbench.report.table import TableColumn, percent, print_table, spread  # rich is not needed for JSON

    columns = [TableColumn("task", "heading"), TableColumn("model", "key"), TableColumn("metric", "key")]
    columns += [TableColumn("percent", "number"), TableColumn("chance", "number"), TableColumn("source")]
    cells, above = [], ""
    for row in rows:
        task, measured = one_line(row.task, 200), row.number.measured
        numbers = (spread(measured.value, measured.std), percent(chance(row, registry)))
        cells.append(["" if task == above else task, row.model, row.label, *numbers, row.number.as_number().file])
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
