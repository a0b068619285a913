"""The files of an analysis: its document and its figure; and the style of all figures.

Matplotlib draws every chart, those of the HTML report included: one style, and no second stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ttmbench._util.files import safe_name, to_json, write_atomically, write_text
from ttmbench.report.table import signed_interval

Analysis = Mapping[str, Any]
"""The document of an analysis."""
COUNT, ACCURACY, BAND, GREY = "#2166ac", "#d9700e", "#cfe0ee", "#666666"
# Distinguished by colour and by marker, also in grey print and by colour-blind readers.
LINES = ("#2166ac", "#d9700e", "#1b7837", "#762a83", "#8c510a", "#c51b7d")
MARKERS = "osD^vP"
WIDTH, HEIGHT = 5.6, 4.0
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "svg.hashsalt": "ttmbench",
}


def write_analysis(output: Path, document: Analysis, started: datetime) -> list[Path]:
    """Write an analysis into the folder of its model.

    Args:
        output: folder with one folder per model.
        document: from `ttmbench.evaluator.analyze.analyze_tasks`.
        started: time in the file names.

    Returns:
        The files: JSON, PNG and SVG.

    Raises:
        UsageError: the folder cannot be written to.
    """
    folder = output / safe_name(document["model_name"])
    what = document.get("task") or f"{len(document['tasks'])}_tasks"
    stem = f"{document['analysis']}_{what}_{started.strftime('%Y-%m-%dT%H-%M-%S.%f')}"
    files = [folder / f"{stem}.{kind}" for kind in ("json", "png", "svg")]
    write_text(files[0], to_json(document))
    for file in files[1:]:
        write_atomically(file, lambda path, kind=file.suffix[1:]: save(document, path, kind))  # type: ignore[misc]
    return files


def save(document: Analysis, path: Path, kind: str) -> None:
    """Draw an analysis into a ``png`` or ``svg`` file; OSError if it cannot be written."""
    save_figure(lambda: draw(document), path, kind, dpi=160)


def save_figure(
    draw: Callable[[], Figure], target: Path | IO[bytes], kind: str, dpi: int | None = None, transparent: bool = False
) -> None:
    """Draw a figure in the style of the package; the same figure has the same bytes."""
    metadata = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context(STYLE):
        draw().savefig(target, dpi=dpi or "figure", format=kind, transparent=transparent, metadata=metadata)


def draw(document: Analysis) -> Figure:
    """The figure of an analysis, to be saved with `STYLE`."""
    figure = Figure(figsize=_size(document), layout="constrained")
    axes = figure.add_subplot()
    _DRAW[document["analysis"]](axes, document)
    what = f" on {document['task']}" if "task" in document else ": gained by adaptation, points"
    axes.set_title(f"{document['model_name']}{what}", fontsize=11, parse_math=False)
    return figure


def _thresholds(axes: Axes, document: Analysis) -> None:
    data = document["data"]
    threshold = np.array(data["threshold"])
    ends = sorted(data["band"].values())
    axes.axvspan(ends[0], ends[-1], color=BAND, lw=0)
    axes.plot(threshold, data["selected"], color=COUNT, lw=2)
    unit = "pairs" if document["matching"] == "global" else "groups"
    axes.set_xlabel("threshold (logits)")
    axes.set_ylabel(f"number of matched {unit}", color=COUNT)
    axes.set_ylim(0, data["candidates"] * 1.02)
    axes.set_xlim(threshold[0], threshold[-1])
    axes.annotate("15 - 30 %\nkept", (np.mean(ends), 0.6), xycoords=("data", "axes fraction"), ha="center", color=GREY)
    right = axes.twinx()
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    accuracy = [np.nan if value is None else 100 * value for value in data["accuracy"]]
    right.plot(threshold, accuracy, color=ACCURACY, lw=2, ls="--")
    right.set_ylabel("accuracy among matched (%)", color=ACCURACY)
    right.set_ylim(0, 102)


def _curves(axes: Axes, document: Analysis) -> None:
    """The metric after every iteration (0: raw model): the mean over seeds and one standard deviation."""
    data = document["data"]
    axes.axhline(100 * data["baseline"], color=GREY, ls="--", lw=1.5, label="no adaptation")
    for index, (name, curve) in enumerate(data["curves"].items()):
        values = 100 * np.array([[data["baseline"], *row] for row in curve["metric"]], dtype=np.float64)
        iteration = np.arange(values.shape[1])
        color = LINES[index % len(LINES)]
        label = _label(document["analysis"], name, curve)
        axes.plot(iteration, values.mean(axis=0), color=color, marker=MARKERS[index % len(MARKERS)], ms=4, label=label)
        if len(values) > 1:
            mean, std = values.mean(axis=0), values.std(axis=0, ddof=1)
            axes.fill_between(iteration, mean - std, mean + std, color=color, alpha=0.15, lw=0)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(f"{document['metric'].replace('_', ' ')} (%)")
    legend_below(axes, 2 if document["analysis"] == "tau" else 3)


def legend_below(axes: Axes, columns: int, handles: Sequence[Line2D] | None = None) -> None:
    """Put a legend below a figure, by default of everything that the axes show."""
    figure = axes.get_figure()
    assert figure is not None, "axes belong to a figure"
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    figure.legend(handles=shown, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _label(analysis: str, name: str, curve: Analysis) -> str:
    if analysis == "tau":
        return rf"$\tau_1$ = {name} ({100 * np.mean([row[0] for row in curve['coverage']]):.0f} % kept)"
    return {"ttm": "TTM", "oracle": "oracle (uses labels)"}.get(name, name)


def _supervision(axes: Axes, document: Analysis) -> None:
    bars = {name: bar for name, bar in document["data"]["metrics"].items() if bar["value"] is not None}
    xs = np.arange(len(bars))
    values = np.array([100 * bar["value"] for bar in bars.values()])
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.bar(xs, values, width=0.6, color=[LINES[index % len(LINES)] for index in xs])
    for x, bar, value in zip(xs, bars.values(), values, strict=True):
        if bar["ci"] is not None:
            low, high = (100 * end for end in bar["ci"])
            axes.errorbar(x, value, [[max(0.0, value - low)], [max(0.0, high - value)]], color="black", capsize=3, lw=1)
        if bar["chance"] is not None:
            axes.hlines(100 * bar["chance"], x - 0.38, x + 0.38, color=GREY, ls="--", lw=1.5)
        top = value if bar["ci"] is None else 100 * bar["ci"][1]
        axes.annotate(f"{value:.1f}", (x, top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
    axes.set_xticks(xs, [name.replace("_accuracy", "").replace("_", "\n") for name in bars])
    axes.set_ylabel("raw performance (%)")
    axes.set_ylim(0, 106)
    axes.plot([], [], color=GREY, ls="--", lw=1.5, label="chance")
    legend_below(axes, 1)


def _alpha(axes: Axes, document: Analysis) -> None:
    """Metrics over alpha, with a point for each half's alpha tuned on the other half."""
    data = document["data"]
    for index, (name, curve) in enumerate(data["metrics"].items()):
        color, every = LINES[index % len(LINES)], max(1, len(data["alpha"]) // 8)
        label, marker = name.replace("_", " "), MARKERS[index % len(MARKERS)]
        values = 100 * np.array(curve["values"])
        axes.plot(data["alpha"], values, color=color, marker=marker, markevery=every, ms=4, label=label)
    held = data["held_out"]
    if held is not None:
        label = f"{data['tuned_for'].replace('_', ' ')}, tuned on the other half"
        value = [100 * held["value"]] * len(held["alphas"])
        axes.plot(held["alphas"], value, color="black", marker="*", ms=11, ls=":", lw=1, label=label)
    axes.set_xlabel(r"$\alpha$")
    axes.set_ylabel("metric (%)")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    legend_below(axes, 2)


def _rates(axes: Axes, document: Analysis) -> None:
    """The metric of every seed, their agreement and the loss over learning rates; diverged ones at the bottom."""
    data = document["data"]
    rates = [rate for rate in data["rates"] if not any(rate["diverged"])]
    broken = [rate["lr"] for rate in data["rates"] if any(rate["diverged"])]
    xs = [rate["lr"] for rate in rates]
    axes.set_xscale("log")
    axes.axvline(data["default"], color=BAND, lw=6, zorder=0, label="would be used")
    for rate in rates:
        seeds = [100 * value for value in rate["metric"]]
        axes.plot([rate["lr"]] * len(seeds), seeds, color=COUNT, marker="o", ms=3, ls="", alpha=0.4)
    final = [100 * rate["final"] for rate in rates]
    name = f"{document['metric'].replace('_', ' ')} (uses labels)"
    axes.plot(xs, final, color=COUNT, marker="o", ms=5, lw=2, label=name)
    axes.axhline(100 * data["baseline"], color=GREY, ls="--", lw=1.5, label="no adaptation")
    selected = [100 * np.mean(rate["selected"]) / data["candidates"] for rate in rates]
    axes.plot(xs, selected, color=LINES[2], marker="D", ms=4, ls=":", label="selected, mean of iterations")
    if any(rate["agreement"] is not None for rate in rates):
        agree = [100 * rate["agreement"] for rate in rates]
        axes.plot(xs, agree, color=LINES[3], marker="v", ms=4, ls=":", label="seeds agree")
    if broken:
        axes.plot(broken, [2] * len(broken), color=GREY, marker="X", ms=6, ls="", label="diverged")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("share (%)")
    axes.set_ylim(0, 103)
    right = axes.twinx()
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    loss = [np.mean([np.nan if value is None else value for value in rate["final_loss"]]) for rate in rates]
    right.plot(xs, loss, color=ACCURACY, marker="s", ms=4, ls="--")
    right.set_ylabel("last loss", color=ACCURACY)
    right.set_ylim(bottom=0)
    legend_below(axes, 2)


def _matrix(axes: Axes, document: Analysis) -> None:
    """The gain in each cell with its interval over groups."""
    data = document["data"]
    values = np.array([[cell["difference"] for cell in row] for row in data["cells"]], dtype=np.float64)  # None: NaN
    most = max(0.01, float(np.nanmax(np.abs(values)))) if np.isfinite(values).any() else 0.01
    axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for row, cells in enumerate(data["cells"]):
        for column, cell in enumerate(cells):
            if cell["difference"] is None:
                axes.text(column, row, "-", ha="center", va="center")
                continue
            ink = "white" if abs(cell["difference"]) > 0.65 * most else "black"
            ends = "" if cell["ci"] is None else f"\n{signed_interval(cell['ci'])}"
            text = f"{100 * cell['difference']:+.1f}{ends}"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8, linespacing=1.4)
    columns = [f"{task}\n{data['metrics'][task].replace('_', ' ')}" for task in data["measured_on"]]
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(data["adapted_on"])), data["adapted_on"], fontsize=8)
    axes.set_xlabel("measured on")
    axes.set_ylabel("adapted to")
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _methods(axes: Axes, document: Analysis) -> None:
    """Gain in group match against cost, one point a method, with its interval over groups."""
    about = document["data"]["methods"]
    rows = [row for row in document["data"]["rows"] if row["metric"] == "group_match" and "gain" in row]
    axes.axhline(0, color=GREY, ls="--", lw=1.5)
    for index, row in enumerate(row for row in rows if about[row["method"]]["tower_passes"] is not None):
        gain, ends = 100 * row["gain"], row["ci"]
        error = None if ends is None else [[gain - 100 * ends[0]], [100 * ends[1] - gain]]
        color, marker = LINES[index % len(LINES)], MARKERS[index // len(LINES) % len(MARKERS)]
        passes = about[row["method"]]["tower_passes"] * 1.03 ** (
            index % 5 - 2
        )  # methods of one cost stand side by side
        axes.errorbar(passes, gain, error, fmt=marker, color=color, capsize=2, lw=1, ms=6, label=row["method"])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("cost (passes through both towers; scoring the task once is 2)")
    axes.set_ylabel("group match, gain over SimpleMatch (points)")
    legend_below(axes, 4)


def _size(document: Analysis) -> tuple[float, float]:
    """The size in inches; a matrix grows with its tasks."""
    if "tasks" not in document:
        return WIDTH, HEIGHT
    count = len(document["tasks"])
    return max(WIDTH, 2.2 + 1.15 * count), max(HEIGHT, 1.8 + 0.6 * count)


_DRAW: Mapping[str, Callable[[Axes, Analysis], None]] = {
    "thresholds": _thresholds,
    "schedules": _curves,
    "supervision": _supervision,
    "oracle": _curves,
    "tau": _curves,
    "lr": _rates,
    "alpha": _alpha,
    "transfer": _matrix,
    "methods": _methods,
}
