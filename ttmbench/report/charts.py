"""Every chart: of reports, ``--figures``, leaderboards, analyses and the documentation. Matplotlib draws them all."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ttmbench._util.file_io import safe_name, to_json, write_atomically, write_text
from ttmbench.errors import UsageError
from ttmbench.report.board import NOT_RANKED, AnswerRow
from ttmbench.report.load import HEADLINE
from ttmbench.report.terminal import interval_text
from ttmbench.results.document import Iteration, ResultsDocument
from ttmbench.results.numbers import RAW, name_of
from ttmbench.results.reader import ResultsFile

Analysis = Mapping[str, Any]
"""The document of an analysis."""
Line = tuple[list[float], list[float]]
"""Iterations, 0 for the raw model, and their values, NaN where undefined."""

COUNT, ACCURACY, BAND, GREY = "#2166ac", "#d9700e", "#cfe0ee", "#666666"
# Distinguished by colour and by marker, also in grey print and by colour-blind readers.
LINES = ("#2166ac", "#d9700e", "#1b7837", "#762a83", "#8c510a", "#c51b7d")
MARKERS = "osD^vP"
_STYLE: dict[Any, Any] = {
    **{"font.size": 10, "axes.spines.top": False, "axes.grid": True, "grid.color": "#e8e8e8"},
    **{"svg.hashsalt": "ttmbench", "svg.fonttype": "none"},  # text stays text, and the same figure has the same bytes
}
_DOTS: dict[str, dict[str, Any]] = {
    "raw": {"marker": "o", "ms": 8, "markerfacecolor": "none", "color": COUNT},
    "SimpleMatch": {"marker": "D", "ms": 5, "color": ACCURACY},
    "TTM": {"marker": "o", "ms": 6, "color": COUNT},
}
_IN_A_ROW = 3  # panels
_LEAST_SPAN = 10.0  # percent: a shorter axis would exaggerate noise


def save_figure(draw: Callable[[], Figure], target: Path | IO[bytes], kind: str, transparent: bool = False) -> None:
    """Draw a figure in the style of the package, as ``svg`` or ``png``; OSError if it cannot be written."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {}
    with mpl.rc_context(_STYLE):
        draw().savefig(target, dpi=160, format=kind, transparent=transparent, metadata=metadata)


def as_image(draw: Callable[[], Figure], alt: str) -> Markup:
    """A figure as an ``img`` element with an embedded SVG and an alternative text."""
    content = io.BytesIO()
    save_figure(draw, content, "svg", transparent=True)
    data = base64.b64encode(content.getvalue()).decode()
    return Markup(f'<img class="chart" alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">')


def save_figures(runs: Sequence[ResultsFile], rows: Sequence[AnswerRow], folder: Path) -> list[Path]:
    """Draw every chart of a report as SVG and PNG, and return the files; UsageError if they cannot be written.

    For each run these are ``ttm_<task>`` (and controls); ``answer`` is of all runs.
    """
    drawn = {
        f"run{run.index}_{run.model}_{method}_{task}": partial(draw_course, run, task, method)
        for run in runs
        for task, method in courses_of(run.document)
    }
    drawn |= {"answer": partial(draw_answer, rows)} if rows else {}
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in drawn.items():
            for kind in ("svg", "png"):
                written.append(folder / f"{safe_name(name)}.{kind}")
                save_figure(draw, written[-1], kind)
    except OSError as error:
        raise UsageError(f"--figures {folder} cannot be written to: {error.strerror or error}") from None
    return written


def _legend_below(axes: Axes, columns: int, handles: Sequence[Line2D] | None = None) -> None:
    """Put a legend below a figure, by default of everything that the axes show."""
    figure = axes.get_figure()
    assert figure is not None, "axes belong to a figure"
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    figure.legend(handles=shown, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _percent(value: float | None) -> float:
    return math.nan if value is None else 100 * value


# ---- TTM, iteration by iteration


def courses_of(document: ResultsDocument) -> list[tuple[str, str]]:
    """Every task and method with iterations."""
    return [(task, name) for task, of in document.methods.items() for name, record in of.items() if record.iterations]


def title_of(method: str) -> str:
    """A method with a remark why it does not rank."""
    return name_of(method) + (f" ({NOT_RANKED[method]})" if method in NOT_RANKED else "")


def curves_of(document: ResultsDocument, task: str, method: str) -> dict[str, tuple[list[Line], float]]:
    """Quantities of a method over its iterations: a line for each seed, and the chance level or NaN.

    They are threshold, coverage, accuracy, loss, then the metrics, those with ``(%)`` at their end in percent.
    """
    rows, seeds = document.methods[task][method].iterations or [], dict[int | None, list[Iteration]]()
    for row in rows:
        seeds.setdefault(row.seed, []).append(row)

    def lines(value: Callable[[Iteration], float | None], scale: float = 100, start: float | None = None) -> list[Line]:
        drawn = list[Line]()
        for of in seeds.values():
            points = [*([] if start is None else [(0.0, start)]), *((row.iteration, value(row)) for row in of)]
            drawn.append(([x for x, _ in points], [math.nan if y is None else scale * y for _, y in points]))
        return drawn

    curves = {
        "threshold": (lines(attrgetter("threshold"), 1), math.nan),
        "coverage (%)": (lines(attrgetter("coverage")), math.nan),
        "pseudo-label accuracy (%)": (lines(attrgetter("pseudo_label_accuracy")), math.nan),
        "training loss": ([_losses(of) for of in seeds.values()], math.nan),
    }
    # No number of the document is the raw one of the adapted groups where these are a part of all.
    raw = {row.metric: row.value for row in document.numbers if (row.task, row.method) == (task, RAW)}
    for metric in rows[0].metrics:
        drawn = lines(lambda row, metric=metric: row.metrics.get(metric), start=raw.get(metric))  # type: ignore[misc]
        curves[f"{metric.replace('_', ' ')} (%)"] = drawn, _percent(document.chance.get(task, {}).get(metric))
    return curves


def _losses(rows: Sequence[Iteration]) -> Line:
    """The loss of every epoch, at fractions of iterations; a gap where nothing was selected."""
    points = [
        (row.iteration - 1 + epoch / max(1, len(row.loss)), float(loss))
        for row in rows
        for epoch, loss in enumerate(row.loss or [math.nan], start=1)
    ]
    return [x for x, _ in points], [y for _, y in points]


def draw_course(run: ResultsFile, task: str, method: str) -> Figure:
    """All curves of a method; with several seeds, their mean and range."""
    curves = curves_of(run.document, task, method)
    seeds = list(dict.fromkeys(row.seed for row in run.document.methods[task][method].iterations or []))
    lines = math.ceil(len(curves) / _IN_A_ROW)
    height = 2.1 * lines + 0.6
    figure = Figure(figsize=(2.9 * _IN_A_ROW, height))  # a layout engine would take as long again as drawing
    axes = figure.subplots(lines, _IN_A_ROW, squeeze=False).ravel()
    margins = {"top": 1 - 0.6 / height, "bottom": 0.75 / height}
    figure.subplots_adjust(left=0.055, right=0.985, hspace=0.6, wspace=0.22, **margins)
    for panel, (title, curve) in zip(axes, curves.items(), strict=False):
        draw_curve(panel, title, *curve)
    for unused in axes[len(curves) :]:
        unused.set_axis_off()
    figure.suptitle(f"{run.model} on {task}: {title_of(method)}", fontsize=11, parse_math=False)
    shown = f"mean of {len(seeds)} seeds; the band is their range" if len(seeds) > 1 else f"seed {seeds[0]}"
    handle = Line2D([], [], color=LINES[0], marker=MARKERS[0], ms=4, label=shown)
    _legend_below(axes[0], 6, [handle, Line2D([], [], color=GREY, ls="--", label="chance")])
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
        low, high = min(values), max(values)
        short = max(0.0, _LEAST_SPAN - (high - low)) / 2
        shift = max(0.0, short - low) - max(0.0, high + short - 100) if short else 0.0  # within 0 to 100 if possible
        low, high = low - short + shift, high + short + shift
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_title(title, fontsize=9, loc="left", parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("iteration", fontsize=8)


def _line(axes: Axes, lines: Iterable[Line], index: int, label: str | None = None) -> None:
    """The mean of some lines and their range; at each point, of those that have a value there."""
    values: dict[float, list[float]] = {}
    for points, numbers in lines:
        for at, value in zip(points, numbers, strict=True):
            values.setdefault(at, []).extend([] if math.isnan(value) else [value])
    x = sorted(values)
    each = [values[at] or [math.nan] for at in x]
    color, marker = LINES[index % len(LINES)], MARKERS[index % len(MARKERS)] if len(x) <= 12 else ""
    axes.plot(x, [fmean(numbers) for numbers in each], color=color, marker=marker, ms=3.5, lw=1.5, label=label)
    if max(map(len, each)) > 1:
        axes.fill_between(x, [*map(min, each)], [*map(max, each)], color=color, alpha=0.2, lw=0)


# ---- the first table of a report


def draw_answer(rows: Sequence[AnswerRow]) -> Figure:
    """Raw, SimpleMatch and TTM, one line per task and model; a task is a line above its models."""
    lines: list[tuple[str, AnswerRow | None]] = []
    for at, row in enumerate(rows):
        if at == 0 or row.task != rows[at - 1].task:
            lines.append((row.task, None))
        name = row.model if len(row.model) <= 52 else f"{row.model[:51]}…"
        lines.append((name + (" (published)" if row.source else f" ({row.extents})" if row.limited else ""), row))
    figure = Figure(figsize=(6.4, 0.25 * len(lines) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    for y, (_, answer) in enumerate(lines):
        numbers = () if answer is None else (answer.raw, answer.matched, answer.ttm)
        for level in {number.chance for number in numbers if number is not None and number.chance is not None}:
            axes.plot([100 * level] * 2, [y - 0.35, y + 0.35], color=GREY, ls="--", lw=1)
        points = [_percent(None if number is None else number.value) for number in numbers]
        axes.plot(points[1:], [y] * len(points[1:]), color=COUNT, lw=2.5, alpha=0.5)
        for x, style in zip(points, _DOTS.values(), strict=False):
            axes.plot(x, y, ls="", **style)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    for text, (_, answer) in zip(axes.get_yticklabels(), lines, strict=True):
        text.set_parse_math(False)
        text.set_fontweight("normal" if answer else "bold")
    axes.set(xlim=(-2, 102), ylim=(len(lines) - 0.4, -0.6), xlabel="percent")
    handles = [Line2D([], [], ls="", label=name, **style) for name, style in _DOTS.items()]
    _legend_below(axes, 4, [*handles, Line2D([], [], color=GREY, ls="--", label="chance")])
    return figure


# ---- gain against cost


def draw_methods(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Gain in group match, with its interval over groups, against cost: ``method, passes, gain, interval``.

    Labels are at the methods that no cheaper one surpasses.
    """
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", xlabel="passes through both towers (scoring the task once is 2), log scale")
    axes.set_ylabel("group match, gain over SimpleMatch (points)")
    axes.axhline(0, color=GREY, ls="--", lw=1)
    axes.text(1, 0, "no gain", ha="right", va="bottom", color=GREY, transform=axes.get_yaxis_transform())
    best, front = -math.inf, list[tuple[float, float, str]]()
    for row in sorted(rows, key=lambda row: (row["passes"], -row["gain"])):
        x, y = row["passes"], 100 * row["gain"]
        low, high = (100 * end for end in row["interval"] or (row["gain"], row["gain"]))
        ends = [[max(0, y - low)], [max(0, high - y)]]
        axes.errorbar(x, y, ends, fmt="o", color=COUNT, mfc=COUNT, ms=6, lw=1, ecolor="#9fbcd8", zorder=2)
        if y >= best:
            best = y
            front.append((x, y, row["method"][:30]))
    named = math.inf
    for x, y, name in reversed(front):  # the best first; no label lies over another
        if named - y > 0.06 * _LEAST_SPAN:
            named = y
            label = axes.annotate(name, (x, y), (5, 4), textcoords="offset points", fontsize=8, zorder=3)
            label.set_parse_math(False)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_locator(NullLocator())
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
    if document["analysis"] == "methods":
        rows = [row | {"method": row["name"], "interval": row["ci"]} for row in document["rows"] if "gain" in row]
        return draw_methods([row for row in rows if row["metric"] == HEADLINE and row["passes"]])
    count = len(document.get("tasks", ()))
    figure = Figure(figsize=(max(5.6, 2.2 + 1.15 * count), max(4.0, 1.8 + 0.6 * count)), layout="constrained")
    axes = figure.add_subplot()
    _DRAW[document["analysis"]](axes, document)
    what = f" on {document['task']}" if "task" in document else ": gained by adaptation, points"
    axes.set_title(f"{document['model_name']}{what}", fontsize=11, parse_math=False)
    return figure


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
            label = label.replace("tau_1", r"$\tau_1$") + f" ({kept:.0f} % kept)"
        _line(axes, [([*map(float, range(len(of)))], of) for of in values], index, label)
    axes.set(xlabel="iteration", ylabel=f"{document['metric'].replace('_', ' ')} (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_below(axes, 2 if document["analysis"] == "tau" else 3)


def _supervision(axes: Axes, document: Analysis) -> None:
    bars = [bar for bar in document["rows"] if bar["value"] is not None]
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    for x, bar in enumerate(bars):
        value, ends = 100 * bar["value"], [100 * end for end in bar["ci"] or (bar["value"], bar["value"])]
        errors = [[max(0.0, value - ends[0])], [max(0.0, ends[1] - value)]]
        axes.bar(x, value, 0.6, color=LINES[x % len(LINES)], yerr=errors if bar["ci"] else None, capsize=3)
        axes.hlines(_percent(bar["chance"]), x - 0.38, x + 0.38, color=GREY, ls="--", lw=1.5)
        axes.annotate(f"{value:.1f}", (x, ends[1]), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
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
    axes.set(xlabel=r"$\alpha$", ylabel="metric (%)", xlim=(0, 1), ylim=(0, None))
    _legend_below(axes, 2)


def _rates(axes: Axes, document: Analysis) -> None:
    """The metric of every seed, their agreement and the loss over learning rates; diverged ones at the bottom."""
    baseline, *rows = document["rows"]
    rates = [row for row in rows if not row["diverged"]]
    broken = [row["lr"] for row in rows if row["diverged"]]
    xs = [rate["lr"] for rate in rates]
    axes.set(xscale="log", xlabel="learning rate", ylabel="share (%)", ylim=(0, 103))
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
    **{"tau": _curves, "lr": _rates, "alpha": _alpha, "transfer": _matrix},
}
