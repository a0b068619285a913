"""The charts of a report: TTM's iterations on the page, and all tables for ``--figures``."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ttmbench._util.files import safe_name
from ttmbench.errors import UsageError
from ttmbench.report.load import ReportedRun
from ttmbench.report.plots import COUNT, GREY, LINES, MARKERS, legend_below, save_figure
from ttmbench.report.summary_table import AnswerRow
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import RAW, TTM, chance_in, key_of, name_of, numbers_in
from ttmbench.results.method_record import Iteration

HEADLINE = "group_match"
LEAST_SPAN = 10.0  # percent: a shorter axis would exaggerate noise
_CHARTS_IN_A_ROW = 3
_VARIANTS = {"ttm": "TTM", "holdout": "TTM on the groups that are not held out", "oracle": "oracle (uses labels)"}
_ANSWER: dict[str, dict[str, Any]] = {
    "SimpleMatch": {"marker": "D", "ms": 5, "color": LINES[1]},
    "TTM": {"marker": "o", "ms": 6, "color": COUNT},
    "raw": {"marker": "o", "ms": 8, "markerfacecolor": "none", "color": COUNT},
}

Line = tuple[list[float], list[float]]
"""Iterations, 0 for the raw model, and their values, NaN where undefined."""


@dataclass(frozen=True)
class Chart:
    """A quantity over the iterations.

    Attributes:
        title: the quantity; ``(%)`` at its end for percent.
        lines: seed -> its line.
        chance: the chance level in the same unit.
    """

    title: str
    lines: Mapping[str, Line]
    chance: float | None = None


@dataclass(frozen=True)
class Course:
    """The iterations of one task for one variant of TTM.

    Attributes:
        task: its name.
        variant: ``ttm``, a control, ``holdout`` or ``oracle``.
        rows: the iterations.
        charts: of threshold, coverage, accuracy, loss, then the metrics.
        settings: of TTM.
        notes: of the record.
    """

    task: str
    variant: str
    rows: Sequence[Iteration]
    charts: Sequence[Chart]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The variant in words."""
        return _VARIANTS.get(self.variant, f"control: {self.variant}")


def courses_of(document: ResultsDocument) -> Iterator[Course]:
    """Every course of a results document by task: TTM, its controls and its held-out part; then the oracle."""
    for task, record in document.ttm.items():
        variants = {"ttm": record.iterations}
        variants |= {name: control.iterations for name, control in record.controls.items()}
        variants |= {} if record.holdout is None else {"holdout": record.holdout.iterations}
        for variant, rows in variants.items():
            if rows:
                notes = record.notes if variant == "ttm" else []
                yield Course(task, variant, rows, _charts(document, task, variant, rows), record.hyperparameters, notes)
    for task, oracle in document.oracle.items():
        if oracle.iterations:
            yield Course(task, "oracle", oracle.iterations, _charts(document, task, "oracle", oracle.iterations), {})


def _charts(document: ResultsDocument, task: str, variant: str, rows: Sequence[Iteration]) -> list[Chart]:
    seeds: dict[str, list[Iteration]] = {}
    for row in rows:
        seeds.setdefault(f"seed {row.seed}", []).append(row)

    def lines(value: Callable[[Iteration], float | None]) -> dict[str, Line]:
        return {
            name: ([float(row.iteration) for row in course], [_defined(value(row)) for row in course])
            for name, course in seeds.items()
        }

    charts = [
        Chart("threshold", lines(lambda row: row.threshold)),
        Chart("coverage (%)", lines(lambda row: 100 * row.coverage)),
        Chart("pseudo-label accuracy (%)", lines(lambda row: _percent(row.pseudo_label_accuracy))),
        Chart("training loss", {name: _losses(course) for name, course in seeds.items()}),
    ]
    # No number of the document is the raw one of the adapted groups where these are a part of all.
    raw = {} if variant == "holdout" else document.results.get(task, {})
    for metric in rows[0].metrics:
        drawn = lines(lambda row, metric=metric: _percent(row.metrics.get(metric)))  # type: ignore[misc]
        start = _percent(raw.get(key_of(metric, RAW)))
        if start is not None:
            drawn = {name: ([0.0, *x], [start, *y]) for name, (x, y) in drawn.items()}
        chance = _percent(document.chance.get(task, {}).get(metric))
        charts.append(Chart(f"{metric.replace('_', ' ')} (%)", drawn, chance))
    return charts


def _losses(rows: Sequence[Iteration]) -> Line:
    """The loss of every epoch, at fractions of iterations; a gap where nothing was selected."""
    points = [
        (row.iteration - 1 + epoch / max(1, len(row.loss)), float(loss))
        for row in rows
        for epoch, loss in enumerate(row.loss or [math.nan], start=1)
    ]
    return [x for x, _ in points], [y for _, y in points]


@dataclass(frozen=True)
class TagTable:
    """A task's numbers, as fractions, by the values of one tag.

    Attributes:
        task: its name.
        tag: its name.
        keys: ``(metric, filter)`` of the columns, the headline metric first.
        names: of the columns.
        rows: value of the tag -> number of groups, and the numbers of the columns.
        chance: level of the first column's metric.
    """

    task: str
    tag: str
    keys: list[tuple[str, str]]
    names: list[str]
    rows: dict[str, tuple[int, list[float | None]]]
    chance: float | None

    @property
    def drawn(self) -> list[int]:
        """The columns in the chart: the first metric, raw and after TTM (or another adaptation)."""
        filters = {name: at for at, (metric, name) in enumerate(self.keys) if metric == self.keys[0][0]}
        before = RAW if RAW in filters else next(iter(filters), None)
        after = next((name for name in (TTM, *filters) if name in filters and name != before), None)
        return [filters[name] for name in (before, after) if name is not None]


def tag_tables_of(document: ResultsDocument) -> Iterator[TagTable]:
    """One table per task and tag."""
    for task, tags in document.breakdowns.items():
        tracks = document.tracks.get(task, {})
        for tag, values in tags.items():
            numbers = {value: row.model_extra or {} for value, row in values.items()}
            keys = list(dict.fromkeys(pair for row in numbers.values() for pair in numbers_in(row)))
            keys.sort(key=lambda pair: pair[0] != HEADLINE)
            yield TagTable(
                task,
                tag,
                keys,
                [name_of(name, tracks.get(key_of(metric, name)), metric) for metric, name in keys],
                {
                    value: (int(values[value].groups or 0), [row.get(key_of(*pair)) for pair in keys])
                    for value, row in numbers.items()
                },
                chance_in(document.chance.get(task, {}), *keys[0]) if keys else None,
            )


def draw_answer(rows: Sequence[AnswerRow]) -> Figure:
    """Raw, SimpleMatch and TTM, one line per task and model."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    heights = [-(at + 1.2 * tasks.index(row.task)) for at, row in enumerate(rows)]
    figure = Figure(figsize=(6.4, 0.24 * (len(rows) + 1.2 * len(tasks)) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    for y, row in zip(heights, rows, strict=True):
        for chance in {number.chance for number in row.numbers if number.chance is not None}:
            axes.plot([100 * chance] * 2, [y - 0.35, y + 0.35], color=GREY, ls="--", lw=1)
        faint = 0.55 if row.limited or row.source else 1.0
        marks = [_percent(None if number is None else number.value) for number in (row.matched, row.ttm, row.raw)]
        if row.gain is not None:
            axes.plot([_defined(mark) for mark in marks[:2]], [y, y], color=COUNT, lw=2, alpha=0.5 * faint)
        for x, style in zip(marks, _ANSWER.values(), strict=True):
            if x is not None:
                axes.plot(x, y, ls="", alpha=faint, **style)
    for task in tasks:
        top = next(y for y, row in zip(heights, rows, strict=True) if row.task == task) + 1
        axes.text(0, top, task, fontsize=9, fontweight="bold", va="center", parse_math=False)
    names = [row.model if len(row.model) <= 52 else f"{row.model[:51]}…" for row in rows]
    details = [" (published)" if row.source else f" ({row.extents})" if row.limited else "" for row in rows]
    _by_row(axes, heights, [name + detail for name, detail in zip(names, details, strict=True)], "percent")
    axes.set_ylim(min(heights) - 0.7, 1.7)
    handles = [Line2D([], [], ls="", label=name, **_ANSWER[name]) for name in ("raw", "SimpleMatch", "TTM")]
    handles.append(Line2D([], [], color=GREY, ls="--", label="chance"))
    legend_below(axes, 4, handles)
    return figure


def draw_course(course: Course, model: str) -> Figure:
    """All charts of a course; with several seeds, their mean and range."""
    lines = math.ceil(len(course.charts) / _CHARTS_IN_A_ROW)
    height = 2.1 * lines + 0.6
    figure = Figure(figsize=(2.9 * _CHARTS_IN_A_ROW, height))  # a layout engine would take as long again as drawing
    axes = figure.subplots(lines, _CHARTS_IN_A_ROW, squeeze=False).ravel()
    margins = {"top": 1 - 0.6 / height, "bottom": 0.75 / height}
    figure.subplots_adjust(left=0.055, right=0.985, hspace=0.6, wspace=0.22, **margins)
    for panel, chart in zip(axes, course.charts, strict=False):
        draw_chart(panel, chart)
    for unused in axes[len(course.charts) :]:
        unused.set_axis_off()
    figure.suptitle(f"{model} on {course.task}: {course.title}", fontsize=11, parse_math=False)
    seeds = list(course.charts[0].lines)
    shown = [f"mean of {len(seeds)} seeds; the band is their range"] if len(seeds) > 1 else seeds
    handles = [Line2D([], [], color=LINES[0], marker=MARKERS[0], ms=4, label=label) for label in shown]
    legend_below(axes[0], 6, [*handles, Line2D([], [], color=GREY, ls="--", label="chance")])
    return figure


def draw_chart(axes: Axes, chart: Chart) -> None:
    """Draw one chart: the mean over seeds, with a band from the lowest to the highest; markers with few points."""
    x, mean, lowest, highest = mean_and_range(chart.lines.values())
    axes.plot(x, mean, color=LINES[0], marker=MARKERS[0] if len(x) <= 12 else "", ms=3.5, lw=1.5)
    if len(chart.lines) > 1:
        axes.fill_between(x, lowest, highest, color=LINES[0], alpha=0.2, lw=0)
    if chart.chance is not None:
        axes.axhline(chart.chance, color=GREY, ls="--", lw=1)
    values = [value for _, y in chart.lines.values() for value in y if not math.isnan(value)]
    if not values:
        axes.text(0.5, 0.5, "undefined: nothing was selected", ha="center", fontsize=8, transform=axes.transAxes)
    elif chart.title.endswith("(%)"):
        low, high = percent_limits([*values, *([] if chart.chance is None else [chart.chance])])
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_title(chart.title, fontsize=9, loc="left", parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("iteration", fontsize=8)


def mean_and_range(lines: Iterable[Line]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Points, mean, minimum and maximum over lines; at each point, of those that have a value there.

    >>> mean_and_range([([0.0, 1.0], [2.0, math.nan]), ([0.0], [4.0])])
    ([0.0, 1.0], [3.0, nan], [2.0, nan], [4.0, nan])
    """
    values: dict[float, list[float]] = {}
    for points, numbers in lines:
        for at, value in zip(points, numbers, strict=True):
            values.setdefault(at, []).extend([] if math.isnan(value) else [value])
    points = sorted(values)
    each = [values[at] or [math.nan] for at in points]
    return points, [fmean(numbers) for numbers in each], [min(numbers) for numbers in each], [max(n) for n in each]


def percent_limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis in percent: at least ten points apart, within 0 to 100 if possible.

    >>> percent_limits([99.0]), percent_limits([20.0, 70.0])
    ((90.0, 100.0), (20.0, 70.0))
    """
    low, high = min(values), max(values)
    short = max(0.0, LEAST_SPAN - (high - low)) / 2
    low, high = low - short, high + short
    shift = max(0.0, -low) - max(0.0, high - 100) if short else 0.0
    return low + shift, high + shift


def draw_tags(table: TagTable, model: str) -> Figure:
    """One row per value of a tag, with an open mark before and a full one after adaptation."""
    rows = list(reversed(table.rows.items()))
    names = [f"{value if len(value) <= 30 else value[:29] + '…'} ({groups})" for value, (groups, _) in rows]
    figure = Figure(figsize=(5.4, 0.27 * len(rows) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    heights = range(len(rows))
    points = [[_defined(_percent(numbers[at])) for _, (_, numbers) in rows] for at in table.drawn]
    if len(points) == 2:
        for y, before, after in zip(heights, *points, strict=True):
            color = COUNT if after >= before else LINES[1]
            axes.plot([before, after], [y, y], color=color, lw=2.5, alpha=0.5, zorder=2)
    for at, values, face in zip(table.drawn, points, ("white", COUNT), strict=False):
        axes.scatter(values, heights, facecolor=face, edgecolor=COUNT, zorder=3, label=table.names[at])
    if table.chance is not None:
        axes.axvline(100 * table.chance, color=GREY, ls="--", lw=1, label="chance")
    metric = table.keys[0][0].replace("_", " ")
    _by_row(axes, heights, names, f"{metric} (%)")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_title(f"{model}, {table.task}: {metric} by {table.tag}", fontsize=10, parse_math=False)
    legend_below(axes, 3)
    return figure


def _by_row(axes: Axes, heights: Sequence[float], names: Sequence[str], label: str) -> None:
    """Label the rows of a chart from 0 to 100 percent."""
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.set_yticks(heights, names)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.set_xlim(-2, 102)
    axes.set_xlabel(label)


def as_image(draw: Callable[[], Figure], alt: str) -> Markup:
    """A figure as an ``img`` element with an embedded SVG and an alternative text."""
    content = io.BytesIO()
    save_figure(draw, content, "svg", transparent=True)
    data = base64.b64encode(content.getvalue()).decode()
    return Markup(f'<img class="chart" alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">')


def save_figures(runs: Sequence[ReportedRun], rows: Sequence[AnswerRow], folder: Path) -> list[Path]:
    """Draw every chart of a report as SVG and PNG.

    Args:
        runs: of the report.
        rows: of its first table.
        folder: for the files; created if needed.

    Returns:
        The files: for each run ``ttm_<task>`` (and controls) and ``tags_<task>_<tag>``, and ``answer`` for all runs.

    Raises:
        UsageError: the folder cannot be written to.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in _figures(runs, rows):
            for kind in ("svg", "png"):
                written.append(folder / f"{safe_name(name)}.{kind}")
                save_figure(draw, written[-1], kind, dpi=200)
    except OSError as error:
        raise UsageError(f"--figures {folder} cannot be written to: {error.strerror or error}") from None
    return written


def _figures(runs: Sequence[ReportedRun], rows: Sequence[AnswerRow]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    for run in runs:
        about = f"run{run.index}_{run.model}"
        for course in courses_of(run.document):
            yield f"{about}_{course.variant}_{course.task}", partial(draw_course, course, run.model)
        for table in tag_tables_of(run.document):
            if table.drawn:
                yield f"{about}_tags_{table.task}_{table.tag}", partial(draw_tags, table, run.model)
    if rows:
        yield "answer", partial(draw_answer, rows)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _defined(value: float | None) -> float:
    return math.nan if value is None else float(value)
