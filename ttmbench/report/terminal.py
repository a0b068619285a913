"""The tables of a run in the terminal: percent, with chance, ties and standard deviation."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from ttmbench import stats
from ttmbench.report.table import (
    NOTHING,
    TableColumn,
    number_text,
    percent,
    points,
    print_line,
    print_table,
    signed_interval,
    transfer_cells,
)
from ttmbench.results.document import BaselineRecord, Difference, MethodRecord, ResultsDocument
from ttmbench.results.numbers import (
    BUILT_IN_FILTERS,
    CHOICE,
    COLUMNS,
    ORACLE,
    OVERFIT_COLUMN,
    PLACEBO,
    RAW,
    RAW_COLUMN,
    SHUFFLE,
    SIMPLE_MATCH_COLUMN,
    TTM,
    Column,
    Number,
    columns_in,
    key_of,
)

_GAINING = (TTM, PLACEBO, SHUFFLE, ORACLE)


def print_results(results: ResultsDocument | Mapping[str, Any], width: int | None = None) -> None:
    """Print the summary (if a model was adapted), every metric, and the notes; ``width`` as for `print_table`."""
    document = ResultsDocument.of(results)
    if document.methods:
        _print_summary(document, width)
        print_line(width=width)
    _print_metrics(document, width)
    print_line(width=width)
    if document.also:
        _print_transfers(document, width)
        print_line(width=width)
    for line in _notes(document):
        print_line(line, width)


def _notes(document: ResultsDocument) -> Iterator[str]:
    """The lines below the tables: means, each note once with its tasks, and failures."""
    means: dict[str, list[Number]] = {}
    for number in document.means:
        means.setdefault(number.task, []).append(number)
    for name, numbers in means.items():
        metrics = [row.metric if row.method == RAW else f"{row.metric} ({row.column})" for row in numbers]
        values = ", ".join(f"{metric} {percent(row.value)}" for metric, row in zip(metrics, numbers, strict=True))
        yield f"{name}, mean of {numbers[0].parts} tasks: {values}"
    for task, tag_means in document.tag_means.items():
        for name, mean in tag_means.items():
            yield f"{task}/{name}: mean over {mean.cells} of {', '.join(mean.by)} ({mean.groups} groups)"
    notes: dict[str, dict[str, None]] = {}
    of_methods = {
        task: [
            line if line.startswith(name) else f"{name}: {line}"
            for name, record in records.items()
            for line in (*record.notes, *_held_out(record))
        ]
        for task, records in document.methods.items()
    }
    for notes_of in (of_methods, document.notes, document.group_notes):
        for task, lines in notes_of.items():
            for line in lines:
                notes.setdefault(line, {})[task] = None
    yield from (f"{', '.join(tasks)}: {note}" for note, tasks in notes.items())
    yield from (f"undecided: {task}: {why}" for task, why in document.undecided_tasks().items())
    yield from (f"failed: {error.task}: {error.message}" for error in document.errors)


def _held_out(record: MethodRecord) -> Iterator[str]:
    """What training on the other groups did to those that were held out."""
    held = record.holdout
    values = None if held is None else held.metrics.get("group_match")
    if held is not None and values is not None and values.raw is not None and values.gain is not None:
        ends = "" if values.gain.ci is None else f" (95 % interval {' .. '.join(map(percent, values.gain.ci))})"
        yield (
            f"group match of {held.scored} held-out groups: {percent(values.raw)} raw, "
            f"{percent(values.raw + values.gain.value)} adapted, gain {percent(values.gain.value)}{ends}"
        )


def headline(metrics: Container[str], is_global: bool) -> tuple[str, str]:
    """The metrics of a summary: that of the raw model, and that of matching and adaptation."""
    if is_global:
        return "group_score", "global_assignment_accuracy"
    return ("group_score" if "group_score" in metrics else "text_score"), "group_match"


def _print_summary(document: ResultsDocument, width: int | None) -> None:
    """One row per task and method; two for methods whose scores are numbers without matching too."""
    heads = {"value": 3, "gain": 1, "relative": 0, "error\nred.": 0, "chance": 2, "ties": 0}
    columns = [TableColumn("", "key"), *(TableColumn(name, "number", rank) for name, rank in heads.items())]
    rows: list[list[str]] = []
    for task in document.results:
        of_task = {(row.metric, row.method): row for row in document.numbers if row.task == task}
        is_global = document.configs[task]["matching"] == "global"
        metrics = headline({metric for metric, name in of_task if name == RAW}, is_global)
        if not {(metrics[0], RAW), (metrics[1], RAW)} & of_task.keys():
            continue  # a task that ranks
        counts, data = document.n_samples[task], document.datasets[task]
        groups = counts.effective if data.coverage is None else f"{counts.effective} of {counts.original}"
        end = ", matched globally" if is_global else ""
        rows.append([f"{task}: {groups} groups, {'x'.join(map(str, data.shape))}{end}"])
        for column in columns_in(name for _, name in of_task):
            for metric, before in _compared(column, metrics, document.training(task, column.filter)):
                row = of_task.get((metric, column.filter))
                if column.filter == CHOICE or (row is None and column not in (RAW_COLUMN, SIMPLE_MATCH_COLUMN)):
                    continue
                remark = f" ({column.remark})" if column.remark else ""
                rows.append(
                    [
                        f"{column.name}{remark}: {metric.replace('_accuracy', '').replace('_', ' ')}",
                        number_text(row),
                        *(("", "", "") if before is None else gains(of_task.get(before), row)),
                        percent(document.chance[task].get(metric) if row is None else row.chance),
                        NOTHING if row is None or row.ties is None else f"{row.ties:g}",
                    ]
                )
        rows.append([])
    title, caption = f"{document.model_name}: percent", _about_gains(document)
    print_table(columns, rows[:-1], title=title, caption=caption, width=width)


def _compared(column: Column, metrics: tuple[str, str], record: object) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """The metrics that a summary shows of a column, each with the metric and method that its gain is over, if any."""
    raw_metric, match_metric = metrics
    matched = (match_metric, RAW)
    if column in (RAW_COLUMN, OVERFIT_COLUMN):
        yield raw_metric, None
    elif column in COLUMNS:
        yield match_metric, matched if column.filter in _GAINING else None
    else:
        uses_matching = isinstance(record, MethodRecord) and record.uses_matching
        yield raw_metric, matched if uses_matching else (raw_metric, RAW)
        yield match_metric, matched


def _about_gains(document: ResultsDocument) -> str:
    """What the summary's standard deviations and gains are."""
    records = {name: record for methods in document.methods.values() for name, record in methods.items()}
    most = max(len(record.seeds) for record in records.values())
    caption = f"± is the standard deviation over {most} seeds." if most > 1 else "One seed: no standard deviation."
    caption += " Gains are over SimpleMatch."
    others = {name: record for name, record in records.items() if name not in BUILT_IN_FILTERS}
    if unmatched := [name for name, record in others.items() if not record.uses_matching]:
        caption = f"{caption[:-1]}, those of scores without matching ({', '.join(unmatched)}) over raw."
    return caption


def _print_metrics(document: ResultsDocument, width: int | None) -> None:
    compared = (
        {}
        if document.baseline is None
        else {(row.task, key_of(row.metric, row.filter)): row for row in document.baseline.rows}
    )
    columns = [TableColumn("metric", "key"), TableColumn("", "key")]
    heads = [("value", 4), ("± stderr", 1), ("95% interval", 1), ("chance", 3), ("ties", 0)]
    heads += [("difference", 3), ("95% interval", 1), ("p", 2)] if compared else []
    columns += [TableColumn(name, "number", rank) for name, rank in heads]
    rows: list[list[str]] = []
    shown, undecided = None, document.undecided_tasks()
    for row in document.numbers:
        if row.task != shown:
            is_part = row.task in document.datasets and document.datasets[row.task].coverage
            words = f" ({row.extent.words} groups)" if is_part else ""
            rows.append([f"{row.task}{' (undecided)' if row.task in undecided else ''}{words}"])
            shown = row.task
        rows.append(
            [
                *(row.metric, row.column, percent(row.value), percent(row.stderr)),
                f"{percent(row.interval[0], 1)} .. {percent(row.interval[1], 1)}" if row.interval else NOTHING,
                *(percent(row.chance), NOTHING if row.ties is None else f"{row.ties:g}"),
                *(_difference(compared.get((row.task, row.key))) if compared else ()),
            ]
        )
    caption = "" if document.baseline is None or not compared else _about_baseline(document.baseline)
    print_table(columns, rows, title=f"{document.model_name}: every metric, percent", caption=caption, width=width)


def _print_transfers(document: ResultsDocument, width: int | None) -> None:
    """What adapting to each task does to the others."""
    columns = [TableColumn("measured on", "key"), TableColumn("metric", "key")]
    heads = {"raw": 1, "adapted": 2, "difference": 3, "95 % interval": 1, "over seeds": 0}
    columns += [TableColumn(name, "number", rank) for name, rank in heads.items()]
    shown, rows = None, list[list[str]]()
    for row in (row for row in document.transfers if row.shown):
        rows += [] if row.adapted_to == shown else [[f"adapted to {row.adapted_to}"]]
        shown, cells = row.adapted_to, transfer_cells(row)
        rows.append([cells[column.name] for column in columns])
    caption = "Intervals are of the difference: paired over groups, and over seeds. These numbers are not ranked."
    title = f"{document.model_name}: adapted to one task, measured on another, percent"
    print_table(columns, rows, title=title, caption=caption, width=width)


def gains(before: Number | None, after: Number | None) -> tuple[str, str, str]:
    """The gain of a number: in points, relative, and as a reduction of the error."""
    if before is None or after is None or before.value is None or after.value is None:
        return NOTHING, NOTHING, NOTHING
    relative = stats.relative_gain(before.value, after.value)
    reduction = stats.error_reduction(before.value, after.value)
    fractions = (NOTHING if part is None else f"{100 * part:+.1f}%" for part in (relative, reduction))
    return (points(after.value - before.value), *fractions)  # type: ignore[return-value]


def p_value(value: float) -> str:
    """A p-value in a table."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _difference(row: Difference | None) -> tuple[str, str, str]:
    """The difference to the baseline, its interval and p."""
    if row is None:
        return NOTHING, NOTHING, NOTHING
    if not row.paired or row.p is None:
        return points(row.difference), "unpaired", NOTHING
    return points(row.difference), signed_interval(row.ci), p_value(row.p)


def _about_baseline(baseline: BaselineRecord) -> str:
    text = f"Difference to {baseline.model_name} in {baseline.file}"
    if any(row.paired for row in baseline.rows):
        text += ", paired group by group; p is not adjusted for several tasks"
    if not all(row.paired for row in baseline.rows):
        text += ". Unpaired: the metric or the baseline has no values of single groups (it needs --log_samples)"
    return text + "."
