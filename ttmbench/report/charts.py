"""Every chart: of reports, ``--figures``, leaderboards, analyses and the documentation. Matplotlib draws them all."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ttmbench._util.file_io import safe_name, to_json, write_atomically, write_text
from ttmbench.errors import DataError, UsageError
from ttmbench.report.board import NOT_RANKED, AnswerRow
from ttmbench.report.load import HEADLINE
from ttmbench.report.terminal import interval_text, percent
from ttmbench.results.document import IterationRecord, ResultsDocument
from ttmbench.results.numbers import RAW, TTM, Number, column_of
from ttmbench.results.reader import ResultsFile
from ttmbench.results.summary import cluster_numbers, number_of

Analysis = Mapping[str, Any]
"""The document of an analysis."""
Line = tuple[list[float], list[float]]
"""Iterations, 0 for the raw model, and their values, NaN where undefined."""

COUNT, ACCURACY, BAND, GREY = "#08306b", "#d9700e", "#cfe0ee", "#666666"
# Each lighter than the one before, so that they are distinguished in grey print; lines also by markers.
LINES = (COUNT, "#a6194d", "#2a7f62", ACCURACY, "#7fb3e6", "#e6c84b")
MARKERS = "osD^vPX"
_STYLE: dict[Any, Any] = {
    **{"font.size": 10, "axes.spines.top": False, "axes.grid": True, "grid.color": "#e8e8e8"},
    # text stays text, and the same figure has the same bytes
    **{"svg.hashsalt": "ttmbench", "svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False},
}
_DOTS: dict[str, dict[str, Any]] = {
    "raw": {"marker": "o", "markerfacecolor": "white", "color": GREY},
    "SimpleMatch": {"marker": "D", "color": ACCURACY},
    "TTM": {"marker": "o", "color": COUNT},
}
_LEAST_SPAN = 10.0  # percent: a shorter axis would exaggerate noise


def save_figure(
    draw: Callable[[], Figure], target: Path | IO[bytes], kind: str, transparent: bool = False, points: int = 10
) -> None:
    """Draw a figure in the style of the package, as ``svg``, ``pdf`` or ``png``; OSError if it cannot be written."""
    metadata = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with mpl.rc_context({**_STYLE, "font.size": points}):
        draw().savefig(target, dpi=160, format=kind, transparent=transparent, metadata=metadata)


def as_image(draw: Callable[[], Figure], alt: str) -> Markup:
    """A figure as an ``img`` element with an embedded SVG and an alternative text."""
    content = io.BytesIO()
    save_figure(draw, content, "svg", transparent=True)
    data = base64.b64encode(content.getvalue()).decode()
    return Markup(f'<img class="chart" alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">')


def save_figures(runs: Sequence[ResultsFile], rows: Sequence[AnswerRow], folder: Path) -> list[Path]:
    """Draw figures for a column of a paper (PDF, SVG) and return the files; UsageError if they cannot be written."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in _figures(runs, rows):
            for kind in ("pdf", "svg"):
                written.append(folder / f"{safe_name(name)}.{kind}")
                save_figure(draw, written[-1], kind, points=8)
    except OSError as error:
        raise UsageError(f"--figures {folder} cannot be written to: {error.strerror or error}") from None
    return written


def _errors(value: float, ends: Sequence[float] | None) -> list[list[float]] | None:
    """Error bars of a fraction, in percent; None without an interval."""
    return None if ends is None else [[100 * max(0.0, value - ends[0])], [100 * max(0.0, ends[1] - value)]]


def _legend_below(axes: Axes, columns: int, handles: Sequence[Any] | None = None) -> None:
    """Put a legend below a figure, by default of everything that the axes show; the figure grows by its rows."""
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    figure = axes.figure
    assert isinstance(figure, Figure), "no figure has parts"
    width, height = figure.get_size_inches()
    longest = max((len(str(handle.get_label())) for handle in shown), default=0)
    room = 136 * width / mpl.rcParams["font.size"] + 1  # in letters, of which a handle and its gaps take 8
    columns = max(1, min(columns, int(room / (longest + 8))))
    figure.set_size_inches(width, height + 0.17 * max(0, math.ceil(len(shown) / columns) - 1))
    figure.legend(handles=shown, loc="outside lower center", ncols=columns, frameon=False)


def _percent(value: float | None) -> float:
    return math.nan if value is None else 100 * value


# ---- TTM, iteration by iteration


def courses_of(document: ResultsDocument) -> list[tuple[str, str]]:
    """Every task and method with iterations."""
    return [(task, name) for task, of in document.methods.items() for name, record in of.items() if record.iterations]


def title_of(method: str) -> str:
    """A method with a remark why it does not rank."""
    return column_of(method).name + (f" ({NOT_RANKED[method]})" if method in NOT_RANKED else "")


def curves_of(document: ResultsDocument, task: str, method: str) -> dict[str, tuple[list[Line], float]]:
    """Quantities of a method over its iterations: a line for each seed, and the chance level or NaN.

    They are threshold, coverage, accuracy, loss, then the metrics, those with ``(%)`` at their end in percent.
    """
    rows = document.methods[task][method].iterations or []

    def lines(
        value: Callable[[IterationRecord], float | None], scale: float = 100, start: float | None = None
    ) -> list[Line]:
        drawn = list[Line]()
        for seed in dict.fromkeys(row.seed for row in rows):
            points: dict[float, float | None] = {} if start is None else {0.0: start}
            points |= {float(row.iteration): value(row) for row in rows if row.seed == seed}
            drawn.append(([*points], [math.nan if y is None else scale * y for y in points.values()]))
        return drawn

    curves = {
        "threshold": (lines(attrgetter("threshold"), 1), math.nan),
        "coverage (%)": (lines(attrgetter("coverage")), math.nan),
        "pseudo-label accuracy (%)": (lines(attrgetter("pseudo_label_accuracy")), math.nan),
        "training loss": (lines(lambda row: row.loss[-1] if row.loss else None, 1), math.nan),
    }
    # No number of the document is the raw one of the adapted groups where these are a part of all.
    raw = {row.metric: row.value for row in document.numbers if (row.task, row.method) == (task, RAW)}
    for metric in rows[0].metrics:
        drawn = lines(lambda row, metric=metric: row.metrics.get(metric), start=raw.get(metric))  # type: ignore[misc]
        curves[f"{metric.replace('_', ' ')} (%)"] = drawn, _percent(document.chance.get(task, {}).get(metric))
    return curves


def draw_course(run: ResultsFile, task: str, method: str) -> Figure:
    """All curves of a method; with several seeds, their mean and range."""
    curves = curves_of(run.document, task, method)
    seeds = list(dict.fromkeys(row.seed for row in run.document.methods[task][method].iterations or ()))
    rows = math.ceil(len(curves) / 3)
    height = 2.1 * rows + 0.6
    figure = Figure(figsize=(8.7, height))  # a layout engine would take as long again as drawing
    margins = {"top": 1 - 0.6 / height, "bottom": 0.75 / height}
    figure.subplots_adjust(left=0.055, right=0.985, hspace=0.6, wspace=0.22, **margins)
    for place, (title, curve) in enumerate(curves.items(), start=1):
        draw_curve(figure.add_subplot(rows, 3, place), title, *curve)
    figure.suptitle(f"{run.model} on {task}: {title_of(method)}", fontsize=11)
    shown = f"mean of {len(seeds)} seeds; the band is their range" if len(seeds) > 1 else f"seed {seeds[0]}"
    handle = Line2D([], [], color=LINES[0], marker=MARKERS[0], ms=4, label=shown)
    _legend_below(figure.axes[0], 6, [handle, Line2D([], [], color=GREY, ls="--", label="chance")])
    return figure


def draw_curve(axes: Axes, title: str, lines: Sequence[Line], chance: float) -> None:
    """Draw the mean over seeds, with a band from the lowest to the highest; percent over at least ten points."""
    _line(axes, lines, 0)
    axes.axhline(chance, color=GREY, ls="--", lw=1)
    values = [value for _, y in lines for value in y if not math.isnan(value)]
    if not values:
        axes.text(0.5, 0.5, "undefined: nothing was selected", ha="center", fontsize=8, transform=axes.transAxes)
    elif title.endswith("(%)"):
        values += [] if math.isnan(chance) else [chance]
        half = max(max(values) - min(values), _LEAST_SPAN) / 2
        middle = max(half, min(100 - half, (min(values) + max(values)) / 2))  # within 0 to 100
        axes.set_ylim(middle - 1.12 * half, middle + 1.12 * half)
    axes.set_title(title, fontsize=9, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("iteration", fontsize=8)


def _line(axes: Axes, lines: Iterable[Line], index: int, label: str | None = None, style: str = "-") -> None:
    """The mean of some lines and their range; at each point, of those that have a value there."""
    values: dict[float, list[float]] = {}
    for points, numbers in lines:
        for at, value in zip(points, numbers, strict=True):
            values.setdefault(at, []).extend([] if math.isnan(value) else [value])
    x = sorted(values)
    each = [values[at] or [math.nan] for at in x]
    color, marker = LINES[index % len(LINES)], MARKERS[index % len(MARKERS)] if len(x) <= 12 else ""
    axes.plot(x, [fmean(row) for row in each], ls=style, color=color, marker=marker, ms=3.5, lw=1.5, label=label)
    if max(map(len, each)) > 1:
        axes.fill_between(x, [*map(min, each)], [*map(max, each)], color=color, alpha=0.2, lw=0)


# ---- figures of a paper: one column wide, with all models of a task


def _figures(runs: Sequence[ResultsFile], rows: Sequence[AnswerRow]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Names, and what draws them: for each task its iterations, categories and gains, from each model's newest run."""
    ordered = sorted(runs, key=lambda run: (run.model, run.document.date))
    for task in dict.fromkeys(task for run in runs for task in run.document.results):
        newest = list({run.model: run for run in ordered if task in run.document.results}.values())
        if iterated := [run for run in newest if (task, TTM) in courses_of(run.document)]:
            yield f"iterations_{task}", partial(draw_iterations, iterated, task)
        for tag in dict.fromkeys(tag for run in newest for tag in run.document.breakdowns.get(task, ())):
            if parts := sorted((row for run in newest for row in _categories(run, task, tag)), key=attrgetter("task")):
                yield f"categories_{task}_{tag}", partial(draw_answer, parts, f"{task} by {tag}")
        if paired := [row for row in rows if row.task == task and row.gain is not None and not row.source]:
            yield f"paired_{task}", partial(draw_paired, paired)


def _categories(run: ResultsFile, task: str, tag: str) -> Iterator[AnswerRow]:
    """SimpleMatch and TTM of the groups with each value of a tag; none without values of single groups."""
    try:
        groups = run.groups[task]
    except (DataError, KeyError):  # damaged files are named beside the figures
        return
    level = run.document.chance.get(task, {}).get(HEADLINE)
    for value in run.document.breakdowns.get(task, {}).get(tag, ()):
        numbers = dict[str, Number]()
        for method in (RAW, TTM):
            of = groups.values.get(method, {}).get(HEADLINE, {})
            if ids := groups.with_value(of, tag, value):
                given, clusters = np.array([of[group] for group in ids]), cluster_numbers(ids, [groups.clusters])
                numbers[method] = number_of(task, HEADLINE, method, given, (1, 0, "wilson"), clusters, chance=level)
        if numbers:
            yield AnswerRow(value, run.model, None, numbers.get(RAW), numbers.get(TTM))


def _figure(height: float, width: float = 3.25, **about: str) -> tuple[Figure, Axes]:
    """A figure as wide as a column of a paper, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot(**about)


def draw_iterations(models: Sequence[ResultsFile], task: str) -> Figure:
    """Group match and group score after every iteration of TTM, with SimpleMatch and chance; bands are over seeds."""
    figure, axes = _figure(2.5, xlabel="TTM iteration", ylabel="groups correct (%)")
    axes.set_title(f"{models[0].model}\n{task}" if len(models) == 1 else task)
    each = [curves_of(run.document, task, TTM) for run in models]
    metrics = [name for name in ("group match (%)", "group score (%)") if name in each[0]] or [*each[0]][4:5]
    styles = {**dict(zip(metrics, "-:", strict=False)), "SimpleMatch": "--", "chance": "-."}
    handles = [Line2D([], [], color=GREY, ls=ls, label=name.removesuffix(" (%)")) for name, ls in styles.items()]
    for index, (run, curves) in enumerate(zip(models, each, strict=True)):
        for metric in (metric for metric in metrics if metric in curves):
            lines, chance = curves[metric]
            _line(axes, lines, index, style=styles[metric])
            axes.axhline(chance, color=GREY, ls="-.", lw=0.8)
        color, ((x, *_), (y, *_)) = LINES[index % len(LINES)], curves[metrics[0]][0][0]
        axes.axhline(math.nan if x else y, color=color, ls="--", lw=0.8)  # known unless only a part was adapted
        if len(models) > 1:
            handles.append(Line2D([], [], color=color, marker=MARKERS[index % len(MARKERS)], ms=4, label=run.model))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _legend_below(axes, 2, handles)
    return figure


def draw_paired(rows: Sequence[AnswerRow]) -> Figure:
    """TTM against SimpleMatch: a point with intervals for each model."""
    figure, axes = _figure(3.0, title=rows[0].task, xlabel="SimpleMatch (%)", ylabel="TTM (%)")
    for index, row in enumerate(rows):
        style: dict[str, Any] = {"color": LINES[index % len(LINES)], "marker": MARKERS[index % len(MARKERS)], "ls": ""}
        if row.before is not None and row.ttm is not None:
            x, y = _percent(row.before.value), _percent(row.ttm.value)
            errors = _errors(y / 100, row.ttm.interval), _errors(x / 100, row.before.interval)
            axes.errorbar(x, y, *errors, ms=5, elinewidth=0.8, label=row.model, **style)
    low, high = min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=GREY, ls="--", lw=0.8, zorder=0, label="no change")
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.locator_params(nbins=5)
    _legend_below(axes, 2)
    return figure


# ---- the first table of a report, and categories


def draw_answer(rows: Sequence[AnswerRow], title: str = "") -> Figure:
    """Raw, SimpleMatch and TTM, one line per task and model; with a title of a task's categories, a column wide."""
    lines: list[tuple[str, AnswerRow | None]] = []
    most, height, width, unit = (22, 0.16, 3.25, "group match (%)") if title else (52, 0.25, 6.4, "percent")
    for at, row in enumerate(rows):
        if at == 0 or row.task != rows[at - 1].task:
            lines.append((row.task, None))
        name = row.model if len(row.model) <= most else f"…{row.model[1 - most :]}"  # names differ at their end
        lines.append((name + (" (published)" if row.source else f" ({row.extents})" if row.limited else ""), row))
    figure, axes = _figure(height * len(lines) + 1.0, width, title=title, xlabel=unit)
    shown: dict[str, Any] = {}
    for y, answer in ((y, row) for y, (_, row) in enumerate(lines) if row is not None):
        for (name, style), number in zip(_DOTS.items(), (answer.raw, answer.matched, answer.ttm), strict=True):
            if number is not None and number.value is not None:
                shown[name] = axes.plot(100 * number.value, y, ls="", label=name, **style)[0]
                axes.plot([_percent(number.chance)] * 2, [y - 0.4, y + 0.4], color=GREY, ls="--", lw=1)
        last = answer.numbers[-1]
        errors = _errors(last.value or 0.0, last.interval)
        axes.barh(y, _percent(last.value), 0.7, color=BAND, xerr=errors, ecolor=COUNT, capsize=2, zorder=1)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    for text, line in zip(axes.get_yticklabels(), lines, strict=True):
        text.set_fontweight("normal" if line[1] else "bold")
    axes.set(xlim=(0, 102), ylim=(len(lines) - 0.4, -0.6))
    _legend_below(axes, 3 if title else 4, [*shown.values(), Line2D([], [], color=GREY, ls="--", label="chance")])
    return figure


def short(number: float) -> str:
    """A number in thousands, millions or billions, to two digits.

    >>> short(151_280_000.0), short(2_539_570_000.0), short(243_393.0), short(20.0)
    ('150M', '2.5B', '240k', '20')
    """
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{float(f'{number / unit:.2g}'):g}{letter}"
    return f"{float(f'{number:.2g}'):g}"


# ---- analyses


def write_analysis(output: Path, document: Analysis) -> list[Path]:
    """Write an analysis as JSON, PNG and SVG into a folder of its model; UsageError if that cannot be written to."""
    folder = output / safe_name(document["model_name"])
    what = document.get("task") or f"{len(document['tasks'])}_tasks"
    date = datetime.fromtimestamp(document["date"]).strftime("%Y-%m-%dT%H-%M-%S.%f")
    files = [folder / f"{document['analysis']}_{what}_{date}.{kind}" for kind in ("json", "png", "svg")]
    write_text(files[0], to_json(document))
    for file in files[1:]:
        write_atomically(file, partial(save_figure, partial(draw_analysis, document), kind=file.suffix[1:]))
    return files


def draw_analysis(document: Analysis) -> Figure:
    """The figure of an analysis; that of a matrix grows with its tasks."""
    count = len(document.get("tasks", ()))
    figure, axes = _figure(max(4.0, 1.8 + 0.6 * count), max(5.6, 2.2 + 1.15 * count))
    _DRAW[document["analysis"]](axes, document)
    what = f" on {document['task']}" if "task" in document else ": gained by adaptation, points"
    axes.set_title(f"{document['model_name']}{what}", fontsize=11)
    return figure


def _methods(axes: Axes, document: Analysis) -> None:
    """Gain in group match, with its interval over groups, against cost."""
    rows = [row for row in document["rows"] if "gain" in row and row["metric"] == HEADLINE and row["passes"]]
    for index, row in enumerate(rows):
        color, marker = LINES[index % len(LINES)], MARKERS[index % len(MARKERS)]
        errors = _errors(row["gain"], row["ci"])
        axes.errorbar(row["passes"], 100 * row["gain"], errors, fmt=marker, color=color, lw=1, label=row["name"])
    axes.axhline(0, color=GREY, ls="--", lw=1)
    axes.set(xscale="log", xlabel="passes through both encoders (scoring the task once is 2), log scale")
    axes.xaxis.set(major_formatter="{x:g}", minor_formatter="")
    axes.set_ylabel("gain in group match (points)")
    _legend_below(axes, 4)


def _calibration(axes: Axes, document: Analysis) -> None:
    """Accuracy over confidence, a point for each bin with an area of its share; image sides are dotted."""
    axes.plot([0, 100], [0, 100], color=GREY, ls="--", lw=1, label="perfectly calibrated")
    names = list(dict.fromkeys(row["name"] for row in document["rows"]))
    for row in document["rows"]:
        share, y, x = (100 * np.array(of) for of in row["bins"].values())
        color, label = LINES[names.index(row["name"]) % len(LINES)], f"{row['name']}, {row['metric']}"
        label += f" {percent(row['value'], 1)}"
        axes.plot(x, y, color=color, ls="-" if "text_ece" in label else ":", label=label)
        axes.scatter(x, y, 3 * share, color=color, alpha=0.5, lw=0)
    axes.set(xlabel="confidence (%)", ylabel="accuracy (%)", xlim=(0, 102), ylim=(0, 102))
    _legend_below(axes, 3)


def _second_axis(axes: Axes, label: str) -> Axes:
    right = axes.twinx()
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    right.set_ylabel(label, color=ACCURACY)
    return right


def _thresholds(axes: Axes, document: Analysis) -> None:
    levels, ends = document["levels"], sorted(row["band"] for row in document["rows"] if "band" in row)
    threshold = [level["threshold"] for level in levels]
    axes.axvspan(ends[0], ends[-1], color=BAND, lw=0)
    axes.plot(threshold, [level["selected"] for level in levels], color=COUNT, lw=2)
    unit = "pairs" if document["matching"] == "global" else "groups"
    axes.set(xlabel="threshold (logits)", xlim=(threshold[0], threshold[-1]), ylim=(0, document["candidates"] * 1.02))
    axes.set_ylabel(f"number of matched {unit}", color=COUNT)
    axes.annotate("15 - 30 %\nkept", (np.mean(ends), 0.6), xycoords=("data", "axes fraction"), ha="center", color=GREY)
    right = _second_axis(axes, "accuracy among matched (%)")
    right.plot(threshold, [_percent(level["value"]) for level in levels], color=ACCURACY, lw=2, ls="--")
    right.set_ylim(0, 102)


def _curves(axes: Axes, document: Analysis) -> None:
    """The metric after every iteration (0: raw model): the mean over seeds and their range."""
    baseline, *rows = document["rows"]
    axes.axhline(100 * baseline["value"], color=GREY, ls="--", lw=1.5, label="no adaptation")
    for index, row in enumerate(row for row in rows if not row["diverged"]):
        values = [
            [_percent(value) for value in (baseline["value"], *(step["metrics"][document["metric"]] for step in of))]
            for of in row["iterations"]
        ]
        label = row["name"]
        if document["analysis"] == "tau":
            kept = 100 * row["first_selected"]
            label = label.replace("tau_1", "τ₁") + f" ({kept:.0f} % kept)"
        _line(axes, [([*map(float, range(len(of)))], of) for of in values], index, label)
    axes.set(xlabel="iteration", ylabel=f"{document['metric'].replace('_', ' ')} (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_below(axes, 2 if document["analysis"] == "tau" else 3)


def _supervision(axes: Axes, document: Analysis) -> None:
    bars = [bar for bar in document["rows"] if bar["value"] is not None]
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    for x, bar in enumerate(bars):
        value, top = 100 * bar["value"], 100 * (bar["ci"] or [bar["value"]])[-1]
        axes.bar(x, value, 0.6, color=LINES[x % len(LINES)], yerr=_errors(bar["value"], bar["ci"]), capsize=3)
        axes.hlines(_percent(bar["chance"]), x - 0.38, x + 0.38, color=GREY, ls="--", lw=1.5)
        axes.annotate(f"{value:.1f}", (x, top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
    axes.set_xticks(range(len(bars)), [bar["name"].replace("_accuracy", "").replace("_", "\n") for bar in bars])
    axes.set(ylabel="raw performance (%)", ylim=(0, 106))
    _legend_below(axes, 1, [Line2D([], [], color=GREY, ls="--", lw=1.5, label="chance")])


def _alpha(axes: Axes, document: Analysis) -> None:
    """Metrics over alpha, with a point for each half's alpha tuned on the other half."""
    for index, row in enumerate(document["rows"]):
        color, every = LINES[index % len(LINES)], max(1, len(document["alpha"]) // 8)
        label, marker = row["name"].replace("_", " "), MARKERS[index % len(MARKERS)]
        values = 100 * np.array(row["values"])
        axes.plot(document["alpha"], values, color=color, marker=marker, markevery=every, ms=4, label=label)
    held = document["held_out"]
    if held is not None:
        label = f"{document['tuned_for'].replace('_', ' ')}, tuned on the other half"
        value = [100 * held["value"]] * len(held["alphas"])
        axes.plot(held["alphas"], value, color="black", marker="*", ms=11, ls=":", lw=1, label=label)
    axes.set(xlabel="α", ylabel="metric (%)", xlim=(0, 1), ylim=(0, None))
    _legend_below(axes, 2)


def _rates(axes: Axes, document: Analysis) -> None:
    """The metric of every seed, their agreement and the loss over learning rates; diverged ones at the bottom."""
    baseline, *rows = document["rows"]
    rates = [row for row in rows if not row["diverged"]]
    broken = [row["lr"] for row in rows if row["diverged"]]
    xs = [rate["lr"] for rate in rates]
    axes.set(xscale="log", xlabel="learning rate", ylabel="percent", ylim=(0, 103))
    axes.xaxis.set(major_formatter="{x:g}", minor_formatter="")
    axes.axvline(document["default"], color=BAND, lw=6, zorder=0, label="would be used")
    for rate in rates:
        seeds = [100 * of[-1]["metrics"][document["metric"]] for of in rate["iterations"]]
        axes.plot([rate["lr"]] * len(seeds), seeds, color=COUNT, marker="o", ms=3, ls="", alpha=0.4)
    name = f"{document['metric'].replace('_', ' ')} (uses labels)"
    axes.plot(xs, [100 * rate["value"] for rate in rates], color=COUNT, marker="o", ms=5, lw=2, label=name)
    axes.axhline(100 * baseline["value"], color=GREY, ls="--", lw=1.5, label="no adaptation")
    steps = [[step["selected"] for of in rate["iterations"] for step in of] for rate in rates]
    selected = [100 * np.mean(of_rate) / document["candidates"] for of_rate in steps]
    axes.plot(xs, selected, color=LINES[2], marker="D", ms=4, ls=":", label="selected, mean of iterations")
    if any(rate["agreement"] is not None for rate in rates):
        agree = [_percent(rate["agreement"]) for rate in rates]
        axes.plot(xs, agree, color=LINES[3], marker="v", ms=4, ls=":", label="seeds agree")
    if broken:
        axes.plot(broken, [2] * len(broken), color=GREY, marker="X", ms=6, ls="", label="diverged")
    right = _second_axis(axes, "last loss")
    loss = [np.mean([np.nan if value is None else value for value in rate["final_loss"]]) for rate in rates]
    right.plot(xs, loss, color=ACCURACY, marker="s", ms=4, ls="--")
    right.set_ylim(bottom=0)
    _legend_below(axes, 2)


def _matrix(axes: Axes, document: Analysis) -> None:
    """The gain in each cell with its interval over groups."""
    rows, tasks = document["rows"], [task["task"] for task in document["tasks"]]
    gains = np.array([row["gain"] for row in rows], dtype=np.float64).reshape(len(tasks), -1)  # None: NaN
    most = max(0.01, float(np.nanmax(np.abs(gains)))) if np.isfinite(gains).any() else 0.01
    axes.imshow(gains, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for place, row in enumerate(rows):
        gain, ends = row["gain"], "" if row["ci"] is None else f"\n{interval_text(row['ci'], signed=True)}"
        ink = "white" if abs(gain or 0) > 0.65 * most else "black"
        text, (y, x) = "-" if gain is None else f"{100 * gain:+.1f}{ends}", divmod(place, len(tasks))
        axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=8, linespacing=1.4)
    columns = [f"{row['name']}\n{row['metric'].replace('_', ' ')}" for row in rows[: len(tasks)]]
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=8)
    axes.set(xlabel="measured on", ylabel="adapted to")
    axes.grid(visible=False)
    axes.tick_params(length=0)


_DRAW: Mapping[str, Callable[[Axes, Analysis], None]] = {
    **{"thresholds": _thresholds, "schedules": _curves, "supervision": _supervision, "oracle": _curves},
    **{"methods": _methods, "tau": _curves, "lr": _rates, "alpha": _alpha, "transfer": _matrix},
    "calibration": _calibration,
}
