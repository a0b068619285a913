"""The plots of a leaderboard's site: score against model size, and gain against cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from ttmbench.report.compared_methods import NOT_RANKED, ComparedMethod
from ttmbench.report.html.scatter import Point, scatter, short
from ttmbench.report.html.site_rows import CHANCE, RANKED, REFERENCE, BoardLine, interval_of
from ttmbench.report.table import percent
from ttmbench.results.labels import TTM_COLUMN
from ttmbench.results.numbers import Number

_LEAST = 5  # rows of a plot


def size_plot(
    task: str, metric: str, lines: Sequence[BoardLine], column: str, size: Callable[[Number], float | None]
) -> Markup | None:
    """The score of the lines of a table against the number of parameters; None for too few known sizes."""
    points = []
    for line in lines:
        row = line.cells.get(column)
        parameters = None if row is None else size(row)
        if row is None or row.value is None or not parameters or line.standing not in RANKED:
            continue
        ends = interval_of(row)
        about = f"{line.model}, {short(parameters)} parameters: {percent(row.value)} ({row.file})"
        interval = None if ends is None else (100 * ends[0], 100 * ends[1])
        points.append(
            Point(parameters, 100 * row.value, line.model, about, interval, "open" if row.published else "full")
        )
    if len(points) < _LEAST or len({point.x for point in points}) < 2:
        return None
    values = [point.y for point in points]
    levels: dict[str, float] = {}
    for line in lines:
        value = line.cells[column].value if line.standing == REFERENCE and column in line.cells else None
        # A chance level far below all would leave no room for the differences.
        if value is not None and (line.model != CHANCE or 100 * value >= 2 * min(values) - max(values)):
            levels.setdefault(line.model, 100 * value)
    words = metric.replace("_", " ")
    levels = dict(sorted(levels.items(), key=lambda level: level[1])[:2])
    alt = f"{words} of {len(points)} models on {task} against their number of parameters; the table has the numbers"
    return scatter(points, "parameters", f"{words}, %", levels, alt)


def method_plots(rows: Sequence[ComparedMethod]) -> Mapping[tuple[str, str], Markup]:
    """For each task and model the gain of its methods against their cost, where it is known of enough of them."""
    together: dict[tuple[str, str], list[ComparedMethod]] = {}
    for row in rows:
        if row.passes and row.method not in NOT_RANKED:
            together.setdefault((row.task, row.model), []).append(row)
    plots = {}
    for (task, model), same in together.items():
        if len(same) >= _LEAST:
            points = [_point(row) for row in same]
            alt = f"gain of {len(points)} methods on {task} with {model} against their cost; the table has the numbers"
            plots[task, model] = scatter(points, "passes through the towers", "gain, points", {"no gain": 0.0}, alt)
    return plots


def _point(row: ComparedMethod) -> Point:
    ends = None if row.interval is None else (100 * row.interval[0], 100 * row.interval[1])
    about = f"{row.method}: {100 * row.gain:+z.2f} points for {row.passes:.1f} passes"
    return Point(row.passes or 1.0, 100 * row.gain, row.method, about, ends, named=row.method == TTM_COLUMN.name)
