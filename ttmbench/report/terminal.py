"""What a person reads after a run: percent, with chance, ties and spread beside every number."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from ttmbench import stats
from ttmbench._util import console as terminal
from ttmbench._util.console import printable
from ttmbench.report.table import NOTHING, TableColumn, print_table
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import (
    CHOICE,
    COLUMNS,
    HOLDOUT,
    HOLDOUT_RAW,
    ORACLE,
    OVERFITTED_COLUMN,
    PLACEBO,
    RAW,
    RAW_COLUMN,
    SHUFFLE,
    SIMPLE_MATCH,
    SIMPLE_MATCH_COLUMN,
    TTM,
    Column,
    key_of,
)
from ttmbench.results.numbers import Number, means_of, numbers_of
from ttmbench.results.transfer_deltas import transfers_of

_GAINING = (TTM, PLACEBO, SHUFFLE, HOLDOUT, ORACLE)
_STAGES = (TTM, SIMPLE_MATCH, ORACLE)


def print_results(document: Mapping[str, Any], width: int | None = None) -> None:
    """Prints the summary table (if something was adapted), every metric, and the notes.

    Args:
        document: a results document.
        width: in characters; by default that of the terminal, and in a file or a pipe as wide as need be.
    """
    document = printable(document)
    console = terminal.console(width)

    def say(text: str) -> None:
        console.print(terminal.encodable(text, console.encoding))

    if any(document.get(stage) for stage in _STAGES):
        _print_summary(document, width)
        console.print()
    _print_metrics(document, width)
    console.print()
    if document.get("ttm_also"):
        _print_transfers(document, width)
        console.print()
    typed = ResultsDocument.of(document)
    means = means_of(typed)
    for name in dict.fromkeys(one.task for one in means):
        mine = [one for one in means if one.task == name]
        shown = ", ".join(f"{_named(one)} {_percent(one.value)}" for one in mine)
        say(f"{name}, mean of {mine[0].of_tasks} tasks: {shown}")
    for task, found in document.get("tag_means", {}).items():
        for mean, about in found.items():
            groups = f"{about['groups']} groups"
            say(f"{task}/{mean}: mean over {about['cells']} of {', '.join(about['by'])} ({groups})")
    for note, tasks in _notes(document).items():
        say(f"{', '.join(tasks)}: {note}")
    for task, why in typed.undecided_tasks().items():
        say(f"undecided: {task}: {why}")
    for error in document["errors"]:
        say(f"failed: {error['task']}: {error['message']}")


def headline(metrics: Container[str], is_global: bool) -> tuple[str, str]:
    """The metrics that a summary compares: of the raw model, and of matching and adaptation.

    Args:
        metrics: that the task has.
        is_global: the task is matched globally.

    Returns:
        Their names.
    """
    if is_global:
        return "group_score", "global_assignment_accuracy"
    return ("group_score" if "group_score" in metrics else "text_score"), "group_match"


def _notes(document: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """Each note once, with the tasks that it is about."""
    found: dict[str, dict[str, None]] = {}
    stages = [(task, record["notes"]) for task, record in document["ttm"].items()]
    for task, notes in [*stages, *document["notes"].items(), *document.get("group_notes", {}).items()]:
        for note in notes:
            found.setdefault(note, {})[task] = None
    return found


def _print_summary(document: Mapping[str, Any], width: int | None) -> None:
    """Three rows a task: what the model scores as it is, by matching, and after adaptation."""
    columns = [TableColumn("task", "key"), TableColumn("", "key")]
    columns += [TableColumn(name, "number") for name in ("value", "gain", "relative", "error red.", "chance", "ties")]
    table: list[list[str]] = []
    numbers = {(one.task, one.metric, one.filter): one for one in numbers_of(ResultsDocument.of(document))}
    for task in document["results"]:
        is_global = document["configs"][task]["matching"] == "global"
        mine = {(metric, name): one for (of, metric, name), one in numbers.items() if of == task}
        raw_metric, match_metric = headline({metric for metric, name in mine if name == RAW}, is_global)
        counts = document["n-samples"][task]
        covered = document["datasets"][task].get("coverage")
        groups = counts["effective"] if covered is None else f"{counts['effective']} of {counts['original']}"
        shape = "x".join(map(str, document["datasets"][task]["shape"]))
        about = [task, f"{groups} groups, {shape}", "matched globally" if is_global else "", ""]
        rows = list(_summary_rows(mine, raw_metric, match_metric))
        labels = about + [""] * len(rows)
        for label, (column, metric) in zip(labels, rows, strict=False):
            one = mine.get((metric, column.filter))
            over = mine.get((match_metric, HOLDOUT_RAW if column.filter == HOLDOUT else RAW))
            gains = _gains(_value(over), _value(one)) if column.filter in _GAINING else ("", "", "")
            table.append(
                [
                    label,
                    f"{column.long_name}: {_words(metric)}",
                    _percent(_value(one), None if one is None else one.seed_std),
                    *gains,
                    _percent(document["chance"][task].get(metric)),
                    _count(None if one is None else one.ties),
                ]
            )
        table.append([])
    stages = [document.get(stage, {}) for stage in _STAGES]
    seeds = max(len(record["seeds"]) for stage in stages for record in stage.values())
    caption = (
        f"± is the standard deviation over {seeds} seeds. " if seeds > 1 else "One seed, so no spread. "
    ) + "Gains are over SimpleMatch."
    if any(name == HOLDOUT for _, _, name in numbers):
        caption += " Held out: over the raw matching of the same groups."
    print_table(columns, table[:-1], title=f"{document['model_name']}: percent", caption=caption, width=width)


def _summary_rows(
    numbers: Mapping[tuple[str, str], Number], raw_metric: str, match_metric: str
) -> Iterator[tuple[Column, str]]:
    """The columns that a task has in the summary, each with its metric."""
    for column in COLUMNS:
        metric = raw_metric if column in (RAW_COLUMN, OVERFITTED_COLUMN) else match_metric
        always = column in (RAW_COLUMN, SIMPLE_MATCH_COLUMN)
        if column.filter != CHOICE and (always or (metric, column.filter) in numbers):
            yield column, metric


def _print_metrics(document: Mapping[str, Any], width: int | None) -> None:
    baseline = document.get("baseline") or {"rows": []}
    compared = {(row["task"], key_of(row["metric"], row["filter"])): row for row in baseline["rows"]}
    columns = [TableColumn("task", "heading"), TableColumn("metric", "key"), TableColumn("", "key")]
    columns += [TableColumn(name, "number") for name in ("value", "± stderr", "95% interval", "chance", "ties")]
    columns += [TableColumn(name, "number") for name in ("difference", "95% interval", "p")] if compared else []
    table: list[list[str]] = []
    shown, typed = None, ResultsDocument.of(document)
    open_tasks = typed.undecided_tasks()
    for one in numbers_of(typed):
        marked = f"{one.task} (undecided)" if one.task in open_tasks else one.task
        if (document["datasets"].get(one.task) or {}).get("coverage"):
            marked += f" ({one.extent.words} groups)"
        table.append(
            [
                "" if one.task == shown else marked,
                one.metric,
                one.method,
                _percent(one.value),
                _percent(one.stderr),
                _interval(one.interval),
                _percent(one.chance),
                _count(one.ties),
                *(_difference(compared.get((one.task, one.key))) if compared else ()),
            ]
        )
        shown = one.task
    caption = _about_baseline(baseline) if compared else ""
    title = f"{document['model_name']}: every metric, percent"
    print_table(columns, table, title=title, caption=caption, width=width)


def _print_transfers(document: Mapping[str, Any], width: int | None) -> None:
    """A block of its own: what adapting to each task does to the others."""
    columns = [TableColumn("adapted to", "heading"), TableColumn("measured on", "key"), TableColumn("metric", "key")]
    columns += [TableColumn(name, "number") for name in ("raw", "adapted", "difference", "95% interval", "over seeds")]
    shown, table = None, []
    for one in (row for row in transfers_of(ResultsDocument.of(document)) if row.shown):
        ends = None if one.seed_ci_low is None or one.seed_ci_high is None else (one.seed_ci_low, one.seed_ci_high)
        table.append(
            [
                "" if one.adapted_on == shown else one.adapted_on,
                "itself" if one.measured_on == one.adapted_on else one.measured_on,
                one.metric,
                _percent(one.raw),
                _percent(one.value, one.seed_std),
                NOTHING if one.difference is None else f"{100 * one.difference:+.2f}",
                _signed_interval(one.interval),
                _signed_interval(ends),
            ]
        )
        shown = one.adapted_on
    caption = "Intervals are of the difference: over groups, paired; and over seeds. Nothing here is ranked."
    title = f"{document['model_name']}: adapted to one task, measured on another, percent"
    print_table(columns, table, title=title, caption=caption, width=width)


def _signed_interval(ends: tuple[float, float] | None) -> str:
    return NOTHING if ends is None else f"{100 * ends[0]:+.1f} .. {100 * ends[1]:+.1f}"


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
    interval = _signed_interval(None if row["ci"] is None else (row["ci"][0], row["ci"][1]))
    return difference, interval, p_value(row["p"])


def _about_baseline(baseline: Mapping[str, Any]) -> str:
    text = f"Difference to {baseline['model_name']} in {baseline['file']}"
    if any(row["paired"] for row in baseline["rows"]):
        text += ", paired group by group; p is of one test, not adjusted for several tasks"
    if not all(row["paired"] for row in baseline["rows"]):
        text += ". Unpaired: no values of single groups in the baseline (it needs --log_samples) or in the metric"
    return text + "."


def _named(one: Number) -> str:
    return one.metric if one.filter == RAW else f"{one.metric} ({one.method})"


def _value(one: Number | None) -> float | None:
    return None if one is None else one.value


def _words(metric: str) -> str:
    return metric.replace("_accuracy", "").replace("_", " ")


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


def _interval(ends: tuple[float, float] | None) -> str:
    return NOTHING if ends is None else f"{100 * ends[0]:.1f} .. {100 * ends[1]:.1f}"


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"
