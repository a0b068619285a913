"""What a person reads after a run: percent, with chance, ties and spread beside every number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ttmbench import stats

NOTHING = "-"


def print_results(document: Mapping[str, Any], console: Console) -> None:
    """Prints the summary table (if something was adapted), every metric, and the notes.

    Args:
        document: a results document.
        console: where to.
    """
    if document["ttm"] or any("group_match,simple_match" in numbers for numbers in document["results"].values()):
        console.print(_summary_table(document))
    console.print(_metric_table(document))
    for task, record in document["ttm"].items():
        for note in record["notes"]:
            console.print(f"{task}: {note}", highlight=False)
    for task, notes in document["notes"].items():
        for note in notes:
            console.print(f"{task}: {note}", highlight=False)
    for error in document["errors"]:
        console.print(f"failed: {error['task']}: {error['message']}", highlight=False)


def headline(numbers: Mapping[str, float | None], is_global: bool) -> tuple[str, str]:
    """The metrics that a summary compares: of the raw model, and of matching and adaptation."""
    if is_global:
        return "group_score", "global_assignment_accuracy"
    return ("group_score" if "group_score,none" in numbers else "text_score"), "group_match"


def _summary_table(document: Mapping[str, Any]) -> Table:
    table = Table(title=f"{document['model_name']}: percent", title_justify="left")
    for name in ("task", "shape", "groups", "raw", "SimpleMatch", "TTM", "gain", "rel. gain", "error red.", "chance"):
        table.add_column(name, justify="left" if name == "task" else "right")
    table.add_column("ties", justify="right")
    for task, numbers in document["results"].items():
        is_global = document["configs"][task]["matching"] == "global"
        raw_metric, match_metric = headline(numbers, is_global)
        shape = document["datasets"][task]["shape"]
        raw = numbers.get(f"{raw_metric},none")
        simple = numbers.get(f"{match_metric},none")
        adapted = numbers.get(f"{match_metric},ttm")
        table.add_row(
            task,
            "global" if is_global else "x".join(map(str, shape)),
            str(document["n-samples"][task]["effective"]),
            _percent(raw),
            _percent(simple),
            _percent(adapted, numbers.get(f"{match_metric}_seed_std,ttm")),
            *_gains(simple, adapted),
            f"{_percent(document['chance'][task].get(raw_metric))} / "
            f"{_percent(document['chance'][task].get(match_metric))}",
            _count(document["ties"][task].get(f"{match_metric},none")),
        )
    names = "raw: group score; SimpleMatch, TTM: group match (global: assignment accuracy)"
    seeds = {len(record["seeds"]) for record in document["ttm"].values()}
    spread = "± is the standard deviation over seeds" if seeds and max(seeds) > 1 else "one seed"
    table.caption = f"{names}. {spread}. Gains are over SimpleMatch. chance: of raw / of matching."
    table.caption_justify = "left"
    return table


def _metric_table(document: Mapping[str, Any]) -> Table:
    table = Table(title=f"{document['model_name']}: every metric, percent", title_justify="left")
    for name in ("task", "metric", "filter", "value", "± stderr", "95 % interval", "chance", "ties"):
        table.add_column(name, justify="left" if name in ("task", "metric", "filter") else "right")
    for task, numbers in document["results"].items():
        shown = task
        for key in document["ci"][task]:
            metric, name = key.split(",")
            table.add_row(
                shown,
                metric,
                "raw" if name == "none" else name,
                _percent(numbers[key]),
                _percent(numbers.get(f"{metric}_stderr,{name}")),
                _interval(document["ci"][task][key]),
                _percent(document["chance"][task].get(metric)),
                _count(document["ties"][task].get(key)),
            )
            shown = ""
        table.add_section()
    return table


def _gains(baseline: float | None, value: float | None) -> tuple[str, str, str]:
    if baseline is None or value is None:
        return NOTHING, NOTHING, NOTHING
    relative, reduction = stats.relative_gain(baseline, value), stats.error_reduction(baseline, value)
    return f"{100 * (value - baseline):+.2f}", _percent(relative, sign=True), _percent(reduction, sign=True)


def _percent(value: float | None, spread: float | None = None, sign: bool = False) -> str:
    if value is None:
        return NOTHING
    text = f"{100 * value:+.1f} %" if sign else f"{100 * value:.2f}"
    return text if spread is None else f"{text} ± {100 * spread:.2f}"


def _interval(ends: list[float] | None) -> str:
    return NOTHING if ends is None else f"{100 * ends[0]:.1f} .. {100 * ends[1]:.1f}"


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"
