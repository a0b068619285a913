"""The page's charts as SVG and PNG for papers, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ttmbench._util.files import safe_name
from ttmbench.errors import UsageError
from ttmbench.report.curves import Chart, Panel
from ttmbench.report.load import ReportedRun
from ttmbench.report.plots import COUNT, GREY, LINES, MARKERS, STYLE
from ttmbench.report.summary_table import AnswerRow, answer_of
from ttmbench.report.svg import limits
from ttmbench.report.tagcharts import TagChart, tag_chart_of
from ttmbench.results.numbers import Number

COLUMNS, SIDE = 3, (2.9, 2.1)
_ANSWER: dict[str, dict[str, Any]] = {
    "SimpleMatch": {"marker": "D", "ms": 5, "color": LINES[1]},
    "TTM": {"marker": "o", "ms": 6, "color": COUNT},
    "raw": {"marker": "o", "ms": 8, "markerfacecolor": "none", "color": COUNT},
}


def save_figures(runs: Sequence[ReportedRun], folder: Path, published: Sequence[Number] = ()) -> list[Path]:
    """Draws every chart of a report.

    Args:
        runs: what was gathered.
        folder: where the files go; it is made if need be.
        published: numbers from papers, to stand beside those of runs.

    Returns:
        The files: for each run ``ttm_<task>`` (and its controls) and ``tags_<task>_<tag>``, and ``answer`` of all,
        each as SVG and PNG.

    Raises:
        UsageError: the folder cannot be written to.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for run in runs:
            for name, figure in _figures(run):
                written += _save(figure, folder / safe_name(f"run{run.index}_{run.model}_{name}"))
        rows = answer_of(runs, published)
        if rows:
            with mpl.rc_context(STYLE):
                figure = _answer(rows)
            written += _save(figure, folder / "answer")
    except OSError as error:
        raise UsageError(f"--figures {folder} cannot be written to: {error.strerror or error}") from None
    return written


def _save(figure: Figure, stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
    for path, about in zip(paths, ({"Date": None}, {}), strict=True):
        with mpl.rc_context(STYLE):
            figure.savefig(path, dpi=200, format=path.suffix[1:], metadata=about)
    return paths


def _answer(rows: Sequence[AnswerRow]) -> Figure:
    """Raw, SimpleMatch and TTM of every task and model: a line each, tasks apart."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    place = [-(at + 1.2 * tasks.index(row.task)) for at, row in enumerate(rows)]
    figure = Figure(figsize=(6.4, 0.24 * (len(rows) + 1.2 * len(tasks)) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False, axis="y")
    for at, row in zip(place, rows, strict=True):
        for chance in {one.chance for one in row.numbers if one.chance is not None}:
            axes.plot([100 * chance] * 2, [at - 0.35, at + 0.35], color=GREY, ls="--", lw=1)
        faint = 0.55 if row.limited or row.source else 1.0
        if row.gain is not None and row.matched is not None and row.ttm is not None:
            ends = _values(None if one.value is None else 100 * one.value for one in (row.matched, row.ttm))
            axes.plot(ends, [at, at], color=COUNT, lw=2, alpha=0.5 * faint)
        for one, style in zip((row.matched, row.ttm, row.raw), _ANSWER.values(), strict=True):
            if one is not None and one.value is not None:
                axes.plot(100 * one.value, at, ls="", alpha=faint, **style)
    heads = [place[next(at for at, row in enumerate(rows) if row.task == task)] + 1 for task in tasks]
    for at, task in zip(heads, tasks, strict=True):
        axes.text(0, at, task, fontsize=9, fontweight="bold", va="center", parse_math=False)
    axes.set_yticks(place, [_called(row) for row in rows])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.set_xlim(-2, 102)
    axes.set_ylim(min(place) - 0.7, 1.7)
    axes.set_xlabel("percent")
    handles = [Line2D([], [], ls="", label=name, **_ANSWER[name]) for name in ("raw", "SimpleMatch", "TTM")]
    handles.append(Line2D([], [], color=GREY, ls="--", label="chance"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _called(row: AnswerRow) -> str:
    return f"{row.model} (published)" if row.source else f"{row.model} ({row.extents})" if row.limited else row.model


def _figures(run: ReportedRun) -> Iterator[tuple[str, Figure]]:
    with mpl.rc_context(STYLE):
        for panel in run.panels:
            yield f"{panel.variant}_{panel.task}", _panel(run, panel)
        for table in run.tag_tables:
            chart = tag_chart_of(table)
            if chart is not None:
                yield f"tags_{table.task}_{table.tag}", _by_tag(run, chart)


def _panel(run: ReportedRun, panel: Panel) -> Figure:
    rows = math.ceil(len(panel.charts) / COLUMNS)
    figure = Figure(figsize=(SIDE[0] * COLUMNS, SIDE[1] * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for at, chart in enumerate(panel.charts):
        draw_chart(axes[at], chart)
    for unused in axes[len(panel.charts) :]:
        unused.set_axis_off()
    figure.suptitle(f"{run.model} on {panel.task}: {panel.title}", fontsize=11, parse_math=False)
    handles = [
        Line2D([], [], color=LINES[at % len(LINES)], marker=MARKERS[at % len(MARKERS)], ms=4, label=line.name)
        for at, line in enumerate(panel.charts[0].lines)
    ]
    handles.append(Line2D([], [], color=GREY, ls="--", label="chance"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def draw_chart(axes: Axes, chart: Chart) -> None:
    """Draws one chart with its title.

    Args:
        axes: where.
        chart: lines over iterations; each has a colour and, if it has few points, a marker of its own.
    """
    for at, line in enumerate(chart.lines):
        marker = MARKERS[at % len(MARKERS)] if len(line.x) <= 12 else ""
        axes.plot(line.x, _values(line.y), color=LINES[at % len(LINES)], marker=marker, ms=3.5, lw=1.5)
    if chart.level is not None:
        axes.axhline(chart.level, color=GREY, ls="--", lw=1)
    ends = limits(chart)
    if ends is not None and chart.unit == "%":
        low, high = ends
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_title(chart.title + (" (%)" if chart.unit == "%" else ""), fontsize=9, loc="left", parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("iteration", fontsize=8)


def _by_tag(run: ReportedRun, chart: TagChart) -> Figure:
    rows = list(reversed(chart.rows))
    figure = Figure(figsize=(6.4, 0.27 * len(rows) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    for at, row in enumerate(rows):
        if row.before is not None and row.after is not None:
            color = COUNT if row.after >= row.before else LINES[1]
            axes.plot([row.before, row.after], [at, at], color=color, lw=2.5, alpha=0.5, zorder=2)
    place = np.arange(len(rows))
    axes.scatter(
        _values(row.before for row in rows), place, facecolor="white", edgecolor=COUNT, zorder=3, label=chart.before
    )
    if chart.after is not None:
        axes.scatter(_values(row.after for row in rows), place, color=COUNT, zorder=4, label=chart.after)
    if chart.level is not None:
        axes.axvline(chart.level, color=GREY, ls="--", lw=1, label="chance")
    axes.set_yticks(place, [f"{row.value} ({row.groups})" for row in rows])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.set_xlim(-2, 102)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(f"{chart.metric.replace('_', ' ')} (%)")
    axes.set_title(f"{run.model}: {chart.title}", fontsize=10, parse_math=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _values(values: Iterable[float | None]) -> np.ndarray:
    """As an array; what is undefined is not drawn."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
