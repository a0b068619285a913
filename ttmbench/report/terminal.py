"""What a person reads after a run: percent, with chance, ties and spread beside every number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from ttmbench import stats
from ttmbench._util import console as terminal
from ttmbench._util.console import printable
from ttmbench.results.summary import HOLDOUT, HOLDOUT_RAW, ORACLE, TTM

NOTHING = "-"
_ADAPTED = (
    ("TTM", TTM),
    ("placebo", "placebo"),
    ("shuffle", "shuffle"),
    ("held out, raw", HOLDOUT_RAW),
    ("held out, adapted", HOLDOUT),
    ("oracle (reads labels)", ORACLE),
)
_GAINING = (TTM, "placebo", "shuffle", HOLDOUT, ORACLE)
MIN_WIDTH = 124
BASELINE_WIDTH = 38  # of the columns that a baseline adds


def print_results(document: Mapping[str, Any], width: int | None = None) -> None:
    """Prints the summary table (if something was adapted), every metric, and the notes.

    Args:
        document: a results document.
        width: in characters; by default the terminal's. Never so narrow that a number would be cut.
    """
    document = printable(document)
    console = terminal.console(MIN_WIDTH + (BASELINE_WIDTH if document.get("baseline") else 0), width)
    if any(document.get(stage) for stage in ("ttm", "simple_match", "oracle")):
        console.print(_summary_table(document))
    console.print(_metric_table(document))
    for name, numbers in document.get("groups", {}).items():
        shown = ", ".join(f"{_key(key)} {_percent(value)}" for key, value in numbers.items() if "_stderr," not in key)
        console.print(f"{name}, mean of {len(document['group_subtasks'][name])} tasks: {shown}")
    for task, record in document["ttm"].items():
        for note in record["notes"]:
            console.print(f"{task}: {note}")
    for task, notes in document["notes"].items():
        for note in notes:
            console.print(f"{task}: {note}")
    for error in document["errors"]:
        console.print(f"failed: {error['task']}: {error['message']}")


def headline(numbers: Mapping[str, float | None], is_global: bool) -> tuple[str, str]:
    """The metrics that a summary compares: of the raw model, and of matching and adaptation."""
    if is_global:
        return "group_score", "global_assignment_accuracy"
    return ("group_score" if "group_score,none" in numbers else "text_score"), "group_match"


def _summary_table(document: Mapping[str, Any]) -> Table:
    """Three rows a task: what the model scores as it is, by matching, and after adaptation."""
    table = _table(f"{document['model_name']}: percent")
    table.add_column("task")
    table.add_column("", no_wrap=True)
    for name in ("value", "gain", "relative", "error red.", "chance", "ties"):
        table.add_column(name, justify="right")
    for task, numbers in document["results"].items():
        is_global = document["configs"][task]["matching"] == "global"
        raw_metric, match_metric = headline(numbers, is_global)
        groups = document["n-samples"][task]["effective"]
        shape = "x".join(map(str, document["datasets"][task]["shape"]))
        about = [task, f"{groups} groups, {shape}", "matched globally" if is_global else "", ""]
        baseline = numbers.get(f"{match_metric},none")
        rows = [("raw", raw_metric, "none"), ("SimpleMatch", match_metric, "none")]
        rows += [("overfitted", raw_metric, "simple_match")] if f"{raw_metric},simple_match" in numbers else []
        rows += [(name, match_metric, kind) for name, kind in _ADAPTED if f"{match_metric},{kind}" in numbers]
        labels = about + [""] * len(rows)
        for label, (name, metric, kind) in zip(labels, rows, strict=False):
            key = f"{metric},{kind}"
            over = numbers.get(f"{match_metric},{HOLDOUT_RAW}") if kind == HOLDOUT else baseline
            table.add_row(
                label,
                f"{name}: {_words(metric)}",
                _percent(numbers.get(key), numbers.get(f"{metric}_seed_std,{kind}")),
                *(_gains(over, numbers.get(key)) if kind in _GAINING else ("", "", "")),
                _percent(document["chance"][task].get(metric)),
                _count(document["ties"][task].get(key)),
            )
        table.add_row()
    stages = [document.get(stage, {}) for stage in ("ttm", "simple_match", "oracle")]
    seeds = max(len(record["seeds"]) for stage in stages for record in stage.values())
    table.caption = (
        f"± is the standard deviation over {seeds} seeds. " if seeds > 1 else "One seed, so no spread. "
    ) + "Gains are over SimpleMatch."
    if any(f",{HOLDOUT}" in key for numbers in document["results"].values() for key in numbers):
        table.caption += " Held out: over the raw matching of the same groups."
    return table


def _metric_table(document: Mapping[str, Any]) -> Table:
    table = _table(f"{document['model_name']}: every metric, percent")
    baseline = document.get("baseline") or {"rows": []}
    compared = {(row["task"], f"{row['metric']},{row['filter']}"): row for row in baseline["rows"]}
    for name in ("task", "metric", ""):
        table.add_column(name)
    for name in ("value", "± stderr", "95% interval", "chance", "ties"):
        table.add_column(name, justify="right")
    for name in ("difference", "95% interval", "p") if compared else ():
        table.add_column(name, justify="right", no_wrap=True)
    for task, numbers in document["results"].items():
        shown = task
        for key, interval in document["ci"][task].items():
            metric, name = key.split(",")
            table.add_row(
                shown,
                metric,
                "raw" if name == "none" else name,
                _percent(numbers[key]),
                _percent(numbers.get(f"{metric}_stderr,{name}")),
                _interval(interval),
                _percent(document["chance"][task].get(metric)),
                _count(document["ties"][task].get(key)),
                *(_difference(compared.get((task, key))) if compared else ()),
            )
            shown = ""
    if compared:
        table.caption = _about_baseline(baseline)
    return table


def p_value(value: float) -> str:
    """A p-value as tables have it."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _difference(row: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Difference to the baseline, its interval and p."""
    if row is None:
        return NOTHING, NOTHING, NOTHING
    difference = f"{100 * row['difference']:+.2f}"
    if not row["paired"]:
        return difference, "unpaired", NOTHING
    interval = NOTHING if row["ci"] is None else f"{100 * row['ci'][0]:+.1f} .. {100 * row['ci'][1]:+.1f}"
    return difference, interval, p_value(row["p"])


def _about_baseline(baseline: Mapping[str, Any]) -> str:
    text = f"Difference to {baseline['model_name']} in {baseline['file']}"
    if any(row["paired"] for row in baseline["rows"]):
        text += ", paired group by group; p is of one test, not adjusted for several tasks"
    if not all(row["paired"] for row in baseline["rows"]):
        text += ". Unpaired: no values of single groups in the baseline (it needs --log_samples) or in the metric"
    return text + "."


def _key(key: str) -> str:
    metric, name = key.split(",")
    return metric if name == "none" else f"{metric} ({name})"


def _words(metric: str) -> str:
    return metric.replace("_accuracy", "").replace("_", " ")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _gains(baseline: float | None, value: float | None) -> tuple[str, str, str]:
    if baseline is None or value is None:
        return NOTHING, NOTHING, NOTHING
    relative, reduction = stats.relative_gain(baseline, value), stats.error_reduction(baseline, value)
    return f"{100 * (value - baseline):+.2f}", _percent(relative, sign=True), _percent(reduction, sign=True)


def _percent(value: float | None, spread: float | None = None, sign: bool = False) -> str:
    if value is None:
        return NOTHING
    text = f"{100 * value:+.1f}%" if sign else f"{100 * value:.2f}"
    return text if spread is None else f"{text} ± {100 * spread:.2f}"


def _interval(ends: list[float] | None) -> str:
    return NOTHING if ends is None else f"{100 * ends[0]:.1f} .. {100 * ends[1]:.1f}"


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"
