"""Compares the test-time methods that ship on the built-in group tasks, with both built-in models and four seeds.

    python scripts/docs/methods_study.py    # results/reference/study_methods_<model>_<task>.json; an hour on a core

What is there is kept, so a stopped study goes on where it was; remove the files to begin again. ``reference.py`` beside
it writes the tables and the chart of docs/methods-compared.md from them. Settings are those of the papers and were not
tuned on these tasks; four seeds were fixed before any of these numbers was seen.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import page_parts
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ttmbench.report.plots import GREY, LINES, MARKERS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "reference"
MODELS = ("tiny-clip", "tiny-clip-seed1")
TASKS = ("shapes_color", "shapes_place", "shapes_spatial", "shapes_replace")
PAIRED = ("shapes_color", "shapes_place")  # 2x2: group score and group match differ; with one image they are the same
METHODS = (
    *("ttm", "simple_match", "oracle", "placebo", "shuffle", "selftrain", "dn", "nnn", "dis", "dual_softmax"),
    *("sinkhorn", "vte", "mta", "zero", "tps", "tpt", "c_tpt", "tent", "cliptta", "rlcf"),
)
LEVEL = 0.05


def study_file(model: str, task: str) -> Path:
    """Where the comparison of a model on a task is."""
    return FOLDER / f"study_methods_{model}_{task}.json"


def command(model: str, task: str) -> str:
    """What makes it."""
    methods = ",".join(METHODS)
    return f"ttmbench analyze methods --model {model} --tasks {task} --methods {methods} --seeds 0,1,2,3"


def run(model: str, task: str) -> None:
    """Makes a comparison with a cache of its own, so that nothing is reused and costs are whole."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "ttmbench", *shlex.split(command(model, task))[1:]]
        variables = {**os.environ, "TTMBENCH_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run(words, cwd=folder, env=variables, check=True)
        (made,) = Path(folder).glob("analysis/*/methods_*.json")
        shutil.move(made, study_file(model, task))


def documents() -> dict[tuple[str, str], dict]:
    """The comparisons: model and task -> document."""
    return {
        (model, task): json.loads(study_file(model, task).read_text(encoding="utf-8"))
        for task in TASKS
        for model in MODELS
    }


def table(model: str) -> str:
    """The Markdown table of a model: gain of each method over the model as it is, in points of percent."""
    head = ["method", "passes"]
    for task in TASKS:
        head += [f"{task} score", f"{task} match"] if task in PAIRED else [task]
    found = {task: document for (of, task), document in documents().items() if of == model}
    raw = ["raw, percent", "2"]
    for task, document in found.items():
        raw += [f"{100 * _row(document, 'none', metric)['value']:.1f}" for metric in _metrics(task)]
    lines = [raw]
    for method in METHODS:
        cells = [_gain(document, method, metric) for task, document in found.items() for metric in _metrics(task)]
        lines.append([f"`{method}`", _passes(found, method), *cells])
    return page_parts.table(head, lines, len(head) - 1)


def chart_data() -> dict[str, dict[str, dict[str, list[float]]]]:
    """Task -> model -> method -> gain in the match over the model as it is, and the ends of its interval; fractions."""
    data: dict[str, dict[str, dict[str, list[float]]]] = {task: {} for task in TASKS}
    for (model, task), document in documents().items():
        rows = {method: _row(document, method, "group_match") for method in METHODS}
        data[task][model] = {method: [row["gain"], *row["ci"]] for method, row in rows.items() if row}
    return data


def draw(data: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Figure:
    """A panel a task, a row a method, a mark a model with its interval over groups."""
    figure = Figure(figsize=(8.7, 6.4), layout="constrained")
    panels = figure.subplots(1, len(data), sharey=True)
    for panel, (task, by_model) in zip(panels, data.items(), strict=True):
        panel.axvline(0, color=GREY, lw=1)
        for at, rows in enumerate(by_model.values()):
            for place, method in enumerate(METHODS):
                if method in rows:
                    gain, low, high = (100 * value for value in rows[method])
                    ends = [[max(0.0, gain - low)], [max(0.0, high - gain)]]
                    style = {"fmt": MARKERS[at], "color": LINES[at], "ms": 4, "lw": 1}
                    panel.errorbar(gain, place + 0.2 * (2 * at - 1), xerr=ends, **style)
        panel.set_title(task, fontsize=9)
        panel.tick_params(axis="y", length=0)
        panel.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(METHODS)), METHODS, fontsize=8)
    panels[0].set_ylim(len(METHODS) - 0.4, -0.6)
    figure.supxlabel(
        "group match, gain over SimpleMatch (points of percent); bars: 95 % intervals over groups", fontsize=9
    )
    models = next(iter(data.values()))
    handles = [Line2D([], [], color=LINES[at], marker=MARKERS[at], ms=4, label=name) for at, name in enumerate(models)]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _metrics(task: str) -> tuple[str, ...]:
    return ("group_score", "group_match") if task in PAIRED else ("group_match",)


def _row(document: Mapping[str, Any], method: str, metric: str) -> dict[str, Any] | None:
    rows = document["data"]["rows"]
    return next((row for row in rows if (row["method"], row["metric"]) == (method, metric)), None)


def _gain(document: Mapping[str, Any], method: str, metric: str) -> str:
    """Gain in points, in bold where the test says that there is one after Holm's correction over the methods."""
    row = _row(document, method, metric)
    if row is None:
        return "-"
    text = f"{100 * row['gain']:+.1f}"
    return f"**{text}**" if row["p_holm"] < LEVEL else text


def _passes(found: Mapping[str, Mapping[str, Any]], method: str) -> str:
    """Cost over the tasks, least to most."""
    about = [
        document["data"]["methods"][method] for document in found.values() if method in document["data"]["methods"]
    ]
    passes = sorted(round(of_task["tower_passes"]) for of_task in about if of_task["tower_passes"] is not None)
    return "-" if not passes else str(passes[0]) if passes[0] == passes[-1] else f"{passes[0]} to {passes[-1]}"


def main() -> None:
    """Makes what is missing."""
    for task in TASKS:
        for model in MODELS:
            if not study_file(model, task).exists():
                print(command(model, task), flush=True)
                run(model, task)


if __name__ == "__main__":
    main()
