"""A leaderboard in the terminal: each track's models, ranked on the main metric of every task."""

from __future__ import annotations

from ttmbench.report.leaderboard import COST_COLUMNS, Leaderboard, cost_text, legends
from ttmbench.report.ranking import TaskFacts
from ttmbench.report.table import NOTHING, TableColumn, marks, number_text, percent, print_line, print_table
from ttmbench.results.labels import FROM_FILE, TRACK_TITLES
from ttmbench.results.numbers import Number

_COLUMNS = [
    *(TableColumn(name, "key") for name in ("model", "method")),
    TableColumn("value", "number", 4),
    TableColumn("95% interval", "number", 2),
    TableColumn("chance", "number", 3),
    TableColumn("groups", "number", 1),
    TableColumn("source"),
]
_SOURCE = len(_COLUMNS) - 1


def print_board(board: Leaderboard, cost: bool = False, width: int | None = None) -> None:
    """Print one table per track, with a row for each model, method and task; with ``cost`` also what each cost.

    ``width`` as for `print_table`.
    """
    costs = [column for column in COST_COLUMNS if cost and any(board.cost(row)[column[1]] for row in board.rows)]
    heads = [*_COLUMNS, *(TableColumn(name, "number", 2 if name == "seconds" else 0) for name, _, _ in costs)]
    configs = {task: config for run in board.runs for task, config in run.document.configs.items()}
    tasks = {
        task: [row for row in board.rows if row.task == task] for task in dict.fromkeys(r.task for r in board.rows)
    }
    facts = {task: TaskFacts.of(rows, configs.get(task, {})) for task, rows in tasks.items()}
    for track, title in TRACK_TITLES.items():
        rows: list[list[str]] = []
        for task, of_task in tasks.items():
            of_track = [row for row in of_task if row.track == track]
            metric = facts[task].first_metric(of_track) if of_track else ""
            shown = [row for row in of_track if row.metric == metric]
            rows += [[], [f"{task}: {metric}"]] if shown else []
            for row, cost_of_row in ((row, board.cost(row)) for row in shown):
                rows.append([*_cells(row), *(cost_text(cost_of_row[key], unit) for _, key, unit in costs)])
        if rows:
            used = [at for at in range(len(heads)) if at != _SOURCE or any(row[at] for row in rows if len(row) > 1)]
            cells = [row if len(row) < 2 else [row[at] for at in used] for row in rows[1:]]
            print_table([heads[at] for at in used], cells, title=title, width=width)
            print_line(width=width)
    print_line("All values are in percent. Intervals are over groups.", width)
    if any(row.seed_std is not None for row in board.rows):
        print_line("± is the standard deviation over seeds.", width)
    for line in legends(board.rows):
        print_line(line, width)


def _cells(row: Number) -> list[str]:
    interval = NOTHING if row.interval is None else f"{percent(row.ci_low, 1)} .. {percent(row.ci_high, 1)}"
    source = row.file if row.published else FROM_FILE if row.from_file else ""
    value = number_text(row) + marks(row)
    groups = row.extent.words if row.limited else NOTHING if row.groups is None else str(row.groups)
    return [row.model, row.method, value, interval, percent(row.chance), groups, source]
