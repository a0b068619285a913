"""Tables in the terminal, those of a run too: percent, with chance, ties and standard deviation.

Of a table that is too wide the least important columns are dropped; no number is broken.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import attrgetter
from textwrap import TextWrapper
from typing import Any

from rich.cells import cell_len

from ttmbench._util.console import console, echo, plain, print_line
from ttmbench.results.document import MethodHoldout, ResultsDocument, Transfer
from ttmbench.results.numbers import DISAGREES_MARK, RAW, SEEN_MARK, SLASH, UNTRAINED, Number, column_of
from ttmbench.stats import error_reduction, relative_gain

NOTHING = "-"  # a cell without a value
Rows = Sequence[Sequence[str]]
GAP = 2  # blanks between columns
TEXT, KEY, LEAST = 24, 12, 8  # minimum widths: of a text, a key, and of both where one column remains beside the keys


@dataclass(frozen=True)
class TableColumn:
    """A column of a table in the terminal."""

    name: str
    kind: str = "text"  # or ``key``, which is never dropped, or ``number``, which is never broken and is aligned right
    importance: int = 0  # columns of lower importance are dropped first, and of equal ones the last


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in percent."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def spread_text(std: float | None, seeds: int = 0) -> str:
    """The standard deviation over seeds, or how many gave one number, behind a number; empty where it is unknown."""
    return "" if std is None else f" ({seeds} seeds, identical)" if std == 0 and seeds > 1 else f" ± {percent(std)}"


def number_text(row: Number | None) -> str:
    """A number in percent, with its spread over seeds."""
    return NOTHING if row is None else percent(row.value) + spread_text(row.seed_std, len(row.seeds))


def points(difference: float | None, digits: int = 2) -> str:
    """A difference of fractions in points of percent, with its sign unless it rounds to zero.

    >>> points(0.125), points(-0.000001), points(None)
    ('+12.50', '0.00', '-')
    """
    text = NOTHING if difference is None else f"{100 * difference:+.{digits}f}"
    return text if text.strip("+-0.") else text.strip("+-") or NOTHING


def interval_text(ends: Sequence[float | None] | None, signed: bool = False) -> str:
    """The ends of an interval in percent, with signs for one of a difference."""
    low, high = ends or (None, None)
    text = points if signed else percent
    return NOTHING if low is None or high is None else f"{text(low, 1)} .. {text(high, 1)}"


def p_value(value: float | None) -> str:
    """A p-value in a table."""
    return NOTHING if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def marks(number: Number) -> str:
    """The marks beside a number, which `ttmbench.report.board.legends` explains."""
    return (SEEN_MARK if number.origin.seen else "") + (DISAGREES_MARK if number.origin.disagrees else "")


TRANSFER_TITLE = "Adapted to one task, measured on another: what adaptation costs elsewhere, in no ranking"
TRANSFER_HEADS = (
    *("model", "adapted to", "measured on", "metric", "raw", "adapted", "difference", "95 % interval", "groups"),
)
"""Those of pages and exports."""


def transfer_cells(row: Transfer) -> dict[str, str]:
    """Head -> cell of an adapted model on another task, in percent."""
    number, gain = row.number, row.gain
    return {
        "model": number.model,
        "adapted to": row.adapted_to,
        "measured on": "itself" if row.measured_on == number.adapted_to else row.measured_on,
        "metric": number.metric.replace("_", " "),
        "raw": percent(row.raw),
        "adapted": number_text(number),
        "difference": points(None if gain is None else gain.value),
        "95 % interval": interval_text(None if gain is None else gain.ci, signed=True),
        "over seeds": interval_text(None if gain is None else gain.seed_ci, signed=True),
        "groups": number.extent.words,
    }


class _Wrapper(TextWrapper):
    """Breaks lines behind blanks and behind ``_ - / , :``, else anywhere."""

    wordsep_re = re.compile(r"(\s+|[^\s_/,:-]*[_/,:-]+)")


def print_table(columns: Sequence[TableColumn], rows: Rows, *, title: str = "", caption: str = "") -> None:
    """Print a table below its title, and the caption and the names of dropped columns below it.

    A row is a text for each column; an empty row separates, and a single text spans the table. It is as wide as the
    terminal; in a file or a pipe as ``COLUMNS``, else unlimited.
    """
    screen = console().width
    heads = [column.name for column in columns]
    table = [[plain(cell, "") for cell in row] for row in (heads, *rows)]
    natural = {at: max(1, *(cell_len(row[at]) for row in table if len(row) == len(heads))) for at in range(len(heads))}
    while True:
        widths, excess = dict(natural), sum(natural.values()) + GAP * (len(natural) - 1) - screen
        others = [at for at in natural if columns[at].kind != "key"]
        least = {"text": TEXT, "key": KEY} if len(others) > 1 else {"text": LEAST, "key": LEAST if others else 1}
        bound = {at: max(least.get(columns[at].kind, width), cell_len(heads[at])) for at, width in widths.items()}
        while excess > 0 and (wide := [at for at in widths if widths[at] > bound[at]]):
            widths[max(wide, key=widths.__getitem__)] -= 1
            excess -= 1
        if excess <= 0 or not others:
            break
        del natural[min(others, key=lambda at: (columns[at].importance, -at))]
    total = sum(widths.values()) + GAP * (len(widths) - 1)
    lines: list[str] = []
    for row in table:
        if len(row) < len(columns):
            lines += _Wrapper(total).wrap("".join(row)) or [""]
            continue
        for cells in zip_longest(*(_Wrapper(room).wrap(row[at]) for at, room in widths.items()), fillvalue=""):
            padded = (
                blank + cell if columns[at].kind == "number" else cell + blank
                for at, cell in zip(widths, cells, strict=True)
                for blank in [" " * (widths[at] - cell_len(cell))]
            )
            lines.append((" " * GAP).join(padded).rstrip())
    if title:
        print_line(f"{title}\n", style="bold")
    print_line(lines[0], style="bold", soft_wrap=True)
    echo("\n".join(["─" * total, *lines[1:]]))  # as tables of rich, but fast
    if dropped := ", ".join(name for at, name in enumerate(heads) if at not in widths):
        caption += f"\nColumns that do not fit in {screen} characters: {dropped}"
    if caption:
        print_line("\n" + caption.strip(), min(screen, max(total, 60)), style="dim")


def print_results(results: ResultsDocument | Mapping[str, Any]) -> None:
    """Print every number, what adapted models are on other tasks, means, and notes."""
    document = ResultsDocument.model_validate(results, strict=False)
    _print_numbers(document)
    print_line()
    if document.also:
        _print_transfers(document)
    has_means = document.groups or document.tag_means
    for line in (*_gains(document), *(_means(document) if has_means else ()), *_notes(document)):
        print_line(line)


def headline(metrics: Container[str], is_global: bool) -> tuple[str, str]:
    """The metrics of a summary: that of the raw model, and that of matching and adaptation."""
    if is_global:
        return "group_score", "global_assignment_accuracy"
    return ("group_score" if "group_score" in metrics else "text_score"), "group_match"


def _print_numbers(document: ResultsDocument) -> None:
    """A row a task, metric and method."""
    baseline, is_adapted = document.baseline, bool(document.methods)
    compared = {} if baseline is None else {(row.task, row.metric, row.method): row for row in baseline.rows}
    heads = [("value", 5), *([("gain", 3)] if is_adapted else []), ("± stderr", 0), ("95% interval", 2), ("chance", 4)]
    heads += [("ties", 1), *([("difference", 4), ("95% interval", 1), ("p", 2)] if compared else [])]
    columns = [TableColumn("metric", "key"), TableColumn("", "key")]
    columns += [TableColumn(name, "number", rank) for name, rank in heads]
    raw = {(one.task, one.metric): one.value for one in document.numbers if one.method == RAW}
    rows: list[list[str]] = []
    for task, numbers in groupby(document.numbers, attrgetter("task")):
        records = document.methods.get(task.partition(SLASH)[0], {})
        for at, one in enumerate(numbers):
            if at == 0:
                undecided = ", undecided" if task in document.undecided_tasks() else ""
                rows.append([f"{task}: {one.extent.words} groups{undecided}"])
            remark, record = column_of(one.method).remark, records.get(one.method)
            cells = [one.metric, f"{one.column} ({remark})" if remark else one.column]
            cells.append(percent(one.value) + spread_text(one.seed_std))
            if is_adapted:
                is_matched = record is not None and record.uses_matching and one.metric == "group_score"
                before = raw.get((task, "group_match" if is_matched else one.metric))
                gain = None if before is None or one.value is None else one.value - before
                cells.append("" if one.method in UNTRAINED else points(gain))
            cells += [percent(one.stderr), interval_text(one.interval), percent(one.chance)]
            cells.append(NOTHING if one.ties is None else f"{one.ties:g}")
            if compared:
                row = compared.get((task, one.metric, one.method))
                ends = NOTHING if row is None else interval_text(row.ci, True) if row.paired else "unpaired"
                cells += [NOTHING, ends, NOTHING] if row is None else [points(row.difference), ends, p_value(row.p)]
            rows.append(cells)
    captions = []
    if is_adapted:
        captions.append(
            "± is the standard deviation over seeds. Gain: over the same metric of the raw model, and over SimpleMatch "
            "for the group score of a method that outputs a matching."
        )
    if baseline is not None and compared:
        captions.append(
            f"Difference to {baseline.model_name} in {baseline.file}, paired group by group where both runs have the "
            "values of single groups; p is not adjusted for several tasks."
        )
    print_table(columns, rows, title=f"{document.model_name}: every metric, percent", caption=" ".join(captions))


def _print_transfers(document: ResultsDocument) -> None:
    heads = {"raw": 1, "adapted": 2, "difference": 3, "95 % interval": 1, "over seeds": 0}
    columns = [TableColumn("measured on", "key"), TableColumn("metric", "key")]
    columns += [TableColumn(name, "number", rank) for name, rank in heads.items()]
    rows: list[list[str]] = []
    for name, of_name in groupby((row for row in document.transfers if row.shown), attrgetter("adapted_to")):
        rows.append([f"adapted to {name}"])
        rows += ([cells[column.name] for column in columns] for cells in map(transfer_cells, of_name))
    caption = "Percent. Intervals are of the difference: paired over groups, and over seeds."
    print_table(columns, rows, title=TRANSFER_TITLE, caption=caption)
    print_line()


_MATCHED = ("group_match", "global_assignment_accuracy")  # which TTM raises


def _gains(document: ResultsDocument) -> Iterator[str]:
    """A line for what adaptation by matching gains on a task: in points, relative, and of the error that was left."""
    raw = {(one.task, one.metric): one.value for one in document.numbers if one.method == RAW}
    for one in document.numbers:
        record, before = document.methods.get(one.task, {}).get(one.method), raw.get((one.task, one.metric))
        is_adapted = record is not None and record.iterations and one.metric in _MATCHED
        if is_adapted and before is not None and one.value is not None:
            shares = relative_gain(before, one.value), error_reduction(before, one.value)
            relative, reduced = (NOTHING if share is None else f"{points(share, 1)} %" for share in shares)
            yield (
                f"{one.task}: {one.column} gains {points(one.value - before)} in {one.metric} over SimpleMatch: "
                f"relative gain {relative}, error reduction {reduced}"
            )


def _means(document: ResultsDocument) -> Iterator[str]:
    """A line for each mean over tasks or over values of tags."""
    for name, means in groupby(document.means, attrgetter("task")):
        values = {f"{one.metric}{'' if one.method == RAW else f' ({one.column})'}": one for one in means}
        listed = ", ".join(f"{metric} {percent(one.value)}" for metric, one in values.items())
        yield f"{name}, mean of {len(document.group_subtasks[name])} tasks: {listed}"
    for task, tag_means in document.tag_means.items():
        for name, mean in tag_means.items():
            yield f"{task}/{name}: mean over {mean.cells} of {', '.join(mean.by)} ({mean.groups} groups)"


def _notes(document: ResultsDocument) -> Iterator[str]:
    """Each note once with its tasks, and failures."""
    notes: dict[str, dict[str, None]] = {}
    for task, records in document.methods.items():
        for name, record in records.items():
            for line in (*record.notes, *([] if record.holdout is None else _of_holdout(record.holdout))):
                notes.setdefault(line if line.startswith(name) else f"{name}: {line}", {})[task] = None
    for task, lines in (*document.notes.items(), *document.group_notes.items()):
        for line in lines:
            notes.setdefault(line, {})[task] = None
    yield from (f"{', '.join(tasks)}: {note}" for note, tasks in notes.items())
    yield from (f"undecided: {task}: {why}" for task, why in document.undecided_tasks().items())
    yield from (f"failed: {error.task}: {error.message}" for error in document.errors)


def _of_holdout(holdout: MethodHoldout) -> Iterator[str]:
    match = holdout.metrics.get("group_match")
    if match and match.raw is not None and match.gain is not None:
        before, gain = match.raw, match.gain
        ends = "" if gain.ci is None else f" (95 % interval {' .. '.join(map(points, gain.ci))})"
        yield (
            f"group match of {holdout.scored} held-out groups: {percent(before)} raw, "
            f"{percent(before + gain.value)} adapted, gain {points(gain.value)}{ends}"
        )
