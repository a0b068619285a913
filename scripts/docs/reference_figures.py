"""The figures of the reference results: what each shows as plain data, and how it is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ttmbench.report.charts import Chart, courses_of, draw_chart
from ttmbench.report.plots import GREY, LINES, MARKERS, STYLE
from ttmbench.report.terminal import headline
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import OVERFITTED_COLUMN, RAW, RAW_COLUMN, SIMPLE_MATCH_COLUMN, TTM_COLUMN
from ttmbench.results.numbers import numbers_of

# With which of the two headline metrics, and its name in the legend.
COLUMNS = ((RAW_COLUMN, 0), (SIMPLE_MATCH_COLUMN, 1), (OVERFITTED_COLUMN, 0), (TTM_COLUMN, 1))
METRICS = ("group score", "group match")


def columns(document: ResultsDocument) -> dict[str, dict]:
    """The columns of the result table, as the document has them.

    Args:
        document: a results document of a run with ``--simple_match`` and ``--ttm``.

    Returns:
        Task -> the two headline ``metrics`` and their ``chance``; ``values`` and ``stds`` in the order of `COLUMNS`.
        Fractions.
    """
    by_task = {}
    numbers = {(number.task, number.metric, number.filter): number for number in numbers_of(document)}
    for task in document.results:
        metrics = _headline(document, task, numbers)
        shown = [numbers[task, metrics[which], column.filter] for column, which in COLUMNS]
        by_task[task] = {
            "metrics": list(metrics),
            "values": [number.value for number in shown],
            "stds": [number.seed_std for number in shown],
            "chance": [numbers[task, metric, RAW].chance for metric in metrics],
        }
    return by_task


def _headline(document: ResultsDocument, task: str, keys: Iterable[tuple[str, str, str]]) -> tuple[str, str]:
    """The two metrics of a task, of the document's numbers' (task, metric, filter)."""
    metrics = {metric for of, metric, filter_ in keys if (of, filter_) == (task, RAW)}
    return headline(metrics, document.configs[task]["matching"] == "global")


def curves(document: ResultsDocument) -> dict[str, dict]:
    """The match metric over the iterations of TTM: task -> title, level and a line a seed, in percent."""
    by_task = {}
    keys = [(number.task, number.metric, number.filter) for number in numbers_of(document)]
    for course in courses_of(document):
        _, metric = _headline(document, course.task, keys)
        title = metric.replace("_", " ")
        chart = next(chart for chart in course.charts if chart.title == f"{title} (%)")
        lines = {name: {"x": x, "y": y} for name, (x, y) in chart.lines.items()}
        by_task[course.task] = {"title": title, "level": chart.chance, "lines": lines}
    return by_task


def draw_columns(data: Mapping[str, Mapping], model: str) -> Figure:
    """A row a task, a mark a column; the standard deviation over seeds as a bar."""
    figure = Figure(figsize=(7.6, 0.62 * len(data) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    positions = np.arange(len(data))[::-1]
    for at, (column, which) in enumerate(COLUMNS):
        x = np.array([100 * row["values"][at] for row in data.values()])
        # One below the other, so that equal numbers do not hide each other.
        y = positions + 0.19 * (1.5 - at)
        style = {"markerfacecolor": "white"} if at == 0 else {}
        axes.plot(
            x, y, ls="", marker=MARKERS[at], color=LINES[at], ms=6, label=f"{column.name}: {METRICS[which]}", **style
        )
        std = [row["stds"][at] for row in data.values()]
        if None not in std:
            axes.errorbar(x, y, xerr=100 * np.array(std), fmt="none", color=LINES[at], lw=1.5, capsize=2)
    chance = np.array([100 * row["chance"][1] for row in data.values()])
    axes.plot(chance, positions, ls="", marker="|", ms=26, color=GREY, label="chance of the match")
    axes.hlines(positions[:-1] - 0.5, -2, 102, color=GREY, lw=0.4)
    axes.set_yticks(positions, [_label(task, row) for task, row in data.items()])
    axes.set_xlim(-2, 102)
    axes.set_ylim(-0.55, len(data) - 0.45)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("percent")
    axes.set_title(f"{model}; bars: standard deviation over seeds", fontsize=10, loc="left")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_curves(data: Mapping[str, Mapping], model: str) -> Figure:
    """A small chart a task, a line a seed."""
    figure = Figure(figsize=(8.7, 4.4), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for panel, (task, course) in zip(axes, data.items(), strict=False):
        lines = {name: (line["x"], line["y"]) for name, line in course["lines"].items()}
        draw_chart(panel, Chart(f"{task}\n{course['title']} (%)", lines, course["level"]))
    for unused in axes[len(data) :]:
        unused.set_axis_off()
    names = list(next(iter(data.values()))["lines"])
    handles = [Line2D([], [], color=LINES[at], marker=MARKERS[at], ms=4, label=name) for at, name in enumerate(names)]
    handles.append(Line2D([], [], color=GREY, ls="--", label="chance"))
    axes[len(data)].legend(handles=handles, loc="center", frameon=False, title=f"{model}\niteration 0: raw")
    return figure


def save(figure: Figure, path: Path) -> None:
    """As SVG, without date or version, so that the same figure is the same file."""
    with mpl.rc_context(STYLE):
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})


def _label(task: str, row: Mapping) -> str:
    return task if row["metrics"][1] == "group_match" else f"{task}\n(match: all pairs)"
