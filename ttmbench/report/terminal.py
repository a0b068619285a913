"""Tables in the terminal, those of a run too: percent, with chance, ties and standard deviation.

Of a table that is too wide the least important columns are dropped; no number is broken.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len, chop_cells

from ttmbench import stats
from ttmbench._util import console as terminal
from ttmbench._util.console import echo, plain
from ttmbench.results.document import Difference, ResultsDocument, Transfer
from ttmbench.results.numbers import (
    BUILT_IN_METHODS,
    CHOICE,
    COLUMNS,
    DISAGREES_MARK,
    OVERFIT_COLUMN,
    RAW,
    RAW_COLUMN,
    SEEN_MARK,
    SIMPLE_MATCH_COLUMN,
    Number,
    columns_in,
    key_of,
)

NOTHING = "-"  # a cell without a value
GAP = 2  # blanks between columns
TEXT, KEY, LEAST = 24, 12, 8  # minimum widths: of a text, a key, and of both where one column remains beside the keys
_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # with the full-width forms, which spreadsheets of some languages take too


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        name: its head.
        kind: ``key`` names the row and is never dropped; ``number`` is never broken and is aligned right; ``text`` may
            be broken between words.
        importance: columns of lower importance are dropped first, and of equal ones the last.
    """

    name: str
    kind: str = "text"
    importance: int = 0


def percent(value: float | None, digits: int = 2, std: float | None = None) -> str:
    """A fraction in percent, with its standard deviation if that is known.

    >>> percent(0.68333), percent(None), percent(0.5, std=0.01)
    ('68.33', '-', '50.00 ± 1.00')
    """
    text = NOTHING if value is None else f"{100 * value:.{digits}f}"
    return text if value is None or std is None else f"{text} ± {100 * std:.{digits}f}"


def number_text(row: Number | None) -> str:
    """A number and its standard deviation over seeds, in percent."""
    return NOTHING if row is None else percent(row.value, std=row.seed_std)


def interval_text(ends: Sequence[float | None] | None, signed: bool = False) -> str:
    """The ends of an interval in percent, with signs for one of a difference.

    >>> interval_text((0.01, 0.025)), interval_text((-0.01, 0.025), signed=True), interval_text((None, None))
    ('1.0 .. 2.5', '-1.0 .. +2.5', '-')
    """
    low, high = ends or (None, None)
    form = "+.1f" if signed else ".1f"
    return NOTHING if low is None or high is None else f"{100 * low:{form}} .. {100 * high:{form}}"


def points(difference: float | None) -> str:
    """A difference of fractions in points of percent, with its sign.

    >>> points(0.125), points(-0.000001)
    ('+12.50', '+0.00')
    """
    return NOTHING if difference is None else f"{100 * difference:+z.2f}"


def p_value(value: float) -> str:
    """A p-value in a table."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def marks(number: Number) -> str:
    """The marks beside a number, which `ttmbench.report.leaderboard.legends` explains."""
    return (SEEN_MARK if number.origin.seen else "") + (DISAGREES_MARK if number.origin.disagrees else "")


def gains(before: Number | None, after: Number | None) -> tuple[str, str, str]:
    """The gain of a number: in points, relative, and as a reduction of the error."""
    if before is None or after is None or before.value is None or after.value is None:
        return NOTHING, NOTHING, NOTHING
    fractions = stats.relative_gain(before.value, after.value), stats.error_reduction(before.value, after.value)
    relative, reduction = (NOTHING if part is None else f"{100 * part:+.1f}%" for part in fractions)
    return points(after.value - before.value), relative, reduction


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
        "groups": number.extent.words if number.limited else str(number.groups),
    }


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """One line per row; a quote precedes what a spreadsheet would take for a formula."""
    import pandas as pd

    cells = [[csv_cell(row[name]) for name in columns] for row in rows]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(index=False, lineterminator="\n")


def print_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    caption: str = "",
    width: int | None = None,
) -> None:
    """Print a table, and below it the names of dropped columns.

    Args:
        columns: of the table.
        rows: a text for each column; an empty row separates, and a single text spans the table.
        title: a line above.
        caption: text below.
        width: in characters; by default that of the terminal. In a file or a pipe ``COLUMNS``, else unlimited.
    """
    console = terminal.console(width)
    table = [[terminal.encodable(plain(cell, "\n"), console.encoding) for cell in row] or [""] for row in rows]
    names = [terminal.encodable(plain(column.name, "\n"), console.encoding) for column in columns]
    widths = fitted(columns, [names, *table], console.width)
    total = sum(widths.values()) + GAP * (len(widths) - 1)
    lines: list[str] = []
    for row in (names, *table):
        if len(row) < len(columns):
            lines += broken(row[0], total)
            continue
        cells = [broken(row[at], width) for at, width in widths.items()]
        if not lines:  # the head, whose last lines are beside one another
            cells = [[""] * (max(map(len, cells)) - len(cell)) + cell for cell in cells]
        padded = [
            [" " * (room - cell_len(part)) + part if columns[at].kind == "number" else part for part in cell]
            for cell, (at, room) in zip(cells, widths.items(), strict=True)
        ]
        for parts in zip_longest(*padded, fillvalue=""):
            filled = (part + " " * (room - cell_len(part)) for part, room in zip(parts, widths.values(), strict=True))
            lines.append((" " * GAP).join(filled).rstrip())
        if row is names:
            head = len(lines)
    if title:
        print_line(title, width, style="bold")
        print_line(width=width)
    console.print("\n".join(lines[:head]), style="bold", soft_wrap=True)
    has_lines = not console.legacy_windows and terminal.encodable("─", console.encoding) == "─"
    echo("\n".join([("─" if has_lines else "-") * total, *lines[head:]]))  # many times as fast
    omitted = ", ".join(name for at, name in enumerate(names) if at not in widths)
    too_wide = f"Columns that do not fit in {console.width} characters: {omitted}" if omitted else ""
    if below := "\n".join(filter(None, [caption, too_wide])):
        console.print()
        print_line(below, min(console.width, max(total, 60)), style="dim")


def print_line(text: str = "", width: int | None = None, style: str = "") -> None:
    """Print a text, wrapped as tables are."""
    console = terminal.console(width)
    console.print(terminal.encodable(plain(text, "\n"), console.encoding), style=style)


def fitted(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """The positions of the columns that fit into a width, and their widths: texts and keys are narrowed first.

    >>> names = TableColumn("task", "key"), TableColumn("value", "number"), TableColumn("chance", "number")
    >>> fitted(names, [["shapes_color", "12.50", "50"]], 20)
    {0: 12, 1: 5}
    """
    whole = [row for row in rows if len(row) == len(columns)]
    natural = [max(cell_len(part) for row in whole for part in row[at].split("\n")) for at in range(len(columns))]
    kept = list(range(len(columns)))
    while True:
        widths = {at: natural[at] for at in kept}
        room_of_cells = room - GAP * (len(kept) - 1)
        droppable = [at for at in kept if columns[at].kind != "key"]
        least = [("text", TEXT), ("key", KEY if len(droppable) > 1 else LEAST if droppable else 1)]
        for kind, narrowest in least if len(droppable) != 1 else (*least, ("text", LEAST)):
            for _ in range(sum(widths.values()) - room_of_cells):
                wide = [at for at in kept if columns[at].kind == kind and widths[at] > narrowest]
                if wide:
                    widths[max(wide, key=widths.__getitem__)] -= 1
        if sum(widths.values()) <= room_of_cells or not droppable:
            return widths
        kept.remove(min(droppable, key=lambda at: (columns[at].importance, -at)))


def broken(text: str, width: int) -> list[str]:
    """A text as lines of a maximum width, broken after a blank, else after one of ``_ - / , :``, else anywhere.

    >>> broken("global_assignment_accuracy of it", 20)
    ['global_assignment_', 'accuracy of it']
    """
    lines = []
    for line in text.split("\n"):
        while cell_len(line) > width:
            start = chop_cells(line, width)[0] or line[0]
            marks = (max(start.rfind(mark) for mark in group) + 1 for group in (" ", "_-/,:"))
            at = len(start) if line[len(start)] == " " else next(filter(None, marks), len(start))
            lines.append(line[:at].rstrip())
            line = line[at:].lstrip()
        lines.append(line)
    return lines


def print_results(results: ResultsDocument | Mapping[str, Any], width: int | None = None) -> None:
    """Print the summary (if a model was adapted), every metric, and the notes; ``width`` as for `print_table`."""
    document = ResultsDocument.of(results)
    if document.methods:
        _print_summary(document, width)
        print_line(width=width)
    _print_metrics(document, width)
    print_line(width=width)
    if document.also:
        columns = [TableColumn("measured on", "key"), TableColumn("metric", "key")]
        heads = {"raw": 1, "adapted": 2, "difference": 3, "95 % interval": 1, "over seeds": 0}
        columns += [TableColumn(name, "number", rank) for name, rank in heads.items()]
        title = f"{document.model_name}: adapted to one task, measured on another, percent"
        caption = "Intervals are of the difference: paired over groups, and over seeds. These numbers are not ranked."
        cells = [transfer_cells(row) for row in document.transfers if row.shown]
        rows = [
            line
            for name in dict.fromkeys(row["adapted to"] for row in cells)
            for line in (
                [f"adapted to {name}"],
                *([row[column.name] for column in columns] for row in cells if row["adapted to"] == name),
            )
        ]
        print_table(columns, rows, title=title, caption=caption, width=width)
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
    for task, records in document.methods.items():
        for name, record in records.items():
            lines, match = list(record.notes), record.holdout and record.holdout.metrics.get("group_match")
            if record.holdout and match and match.raw is not None and match.gain is not None:
                before, gain = match.raw, match.gain
                ends = "" if gain.ci is None else f" (95 % interval {' .. '.join(map(percent, gain.ci))})"
                lines.append(
                    f"group match of {record.holdout.scored} held-out groups: {percent(before)} raw, "
                    f"{percent(before + gain.value)} adapted, gain {percent(gain.value)}{ends}"
                )
            for line in lines:
                notes.setdefault(line if line.startswith(name) else f"{name}: {line}", {})[task] = None
    for task, lines in (*document.notes.items(), *document.group_notes.items()):
        for line in lines:
            notes.setdefault(line, {})[task] = None
    yield from (f"{', '.join(tasks)}: {note}" for note, tasks in notes.items())
    yield from (f"undecided: {task}: {why}" for task, why in document.undecided_tasks().items())
    yield from (f"failed: {error.task}: {error.message}" for error in document.errors)


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
        raw, match = headline({metric for metric, name in of_task if name == RAW}, is_global)
        if not {(raw, RAW), (match, RAW)} & of_task.keys():
            continue  # a task that ranks
        counts, data = document.n_samples[task], document.datasets[task]
        groups = counts.effective if data.coverage is None else f"{counts.effective} of {counts.original}"
        end = ", matched globally" if is_global else ""
        rows += [[], [f"{task}: {groups} groups, {'x'.join(map(str, data.shape))}{end}"]]
        for column in columns_in(name for _, name in of_task):
            method, record = column.method, document.training(task, column.method)
            compared = {raw: match if record is not None and record.uses_matching else raw, match: match}
            if column in COLUMNS:
                is_gain = column not in (RAW_COLUMN, OVERFIT_COLUMN, SIMPLE_MATCH_COLUMN)
                compared = {raw: ""} if column in (RAW_COLUMN, OVERFIT_COLUMN) else {match: match if is_gain else ""}
            for metric, before in compared.items():
                row = of_task.get((metric, method))
                if method == CHOICE or (row is None and column not in (RAW_COLUMN, SIMPLE_MATCH_COLUMN)):
                    continue
                remark = f" ({column.remark})" if column.remark else ""
                name = f"{column.name}{remark}: {metric.replace('_accuracy', '').replace('_', ' ')}"
                gained = gains(of_task.get((before, RAW)), row) if before else ("", "", "")
                chance = document.chance[task].get(metric) if row is None else row.chance
                ties = NOTHING if row is None or row.ties is None else f"{row.ties:g}"
                rows.append([name, number_text(row), *gained, percent(chance), ties])
    known = {name: record for methods in document.methods.values() for name, record in methods.items()}
    most = max(len(record.seeds) for record in known.values())
    caption = f"± is the standard deviation over {most} seeds." if most > 1 else "One seed: no standard deviation."
    others = [name for name, record in known.items() if name not in BUILT_IN_METHODS and not record.uses_matching]
    of_others = f", those of scores without matching ({', '.join(others)}) over raw" if others else ""
    caption += f" Gains are over SimpleMatch{of_others}."
    print_table(columns, rows[1:], title=f"{document.model_name}: percent", caption=caption, width=width)


def _print_metrics(document: ResultsDocument, width: int | None) -> None:
    baseline = document.baseline
    compared = {} if baseline is None else {(row.task, key_of(row.metric, row.method)): row for row in baseline.rows}
    heads = [("value", 4), ("± stderr", 1), ("95% interval", 1), ("chance", 3), ("ties", 0)]
    heads += [("difference", 3), ("95% interval", 1), ("p", 2)] if compared else []
    columns = [TableColumn(name, "key") for name in ("metric", "")]
    columns += [TableColumn(name, "number", rank) for name, rank in heads]
    rows: list[list[str]] = []
    shown, undecided = None, document.undecided_tasks()
    for row in document.numbers:
        if row.task != shown:
            is_part = row.task in document.datasets and document.datasets[row.task].coverage
            words = f" ({row.extent.words} groups)" if is_part else ""
            rows.append([f"{row.task}{' (undecided)' if row.task in undecided else ''}{words}"])
            shown = row.task
        ties = NOTHING if row.ties is None else f"{row.ties:g}"
        cells = [row.metric, row.column, percent(row.value), percent(row.stderr), interval_text(row.interval)]
        cells += [percent(row.chance), ties]
        if compared:
            cells += _difference(compared.get((row.task, row.key)))
        rows.append(cells)
    caption = ""
    if baseline is not None and compared:
        caption = f"Difference to {baseline.model_name} in {baseline.file}"
        if any(row.paired for row in baseline.rows):
            caption += ", paired group by group; p is not adjusted for several tasks"
        if not all(row.paired for row in baseline.rows):
            caption += ". Unpaired: the metric or the baseline has no values of single groups (it needs --log_samples)"
        caption += "."
    print_table(columns, rows, title=f"{document.model_name}: every metric, percent", caption=caption, width=width)


def _difference(row: Difference | None) -> tuple[str, str, str]:
    """The difference to the baseline, its interval and p."""
    if row is None:
        return NOTHING, NOTHING, NOTHING
    if not row.paired or row.p is None:
        return points(row.difference), "unpaired", NOTHING
    return points(row.difference), interval_text(row.ci, signed=True), p_value(row.p)


def csv_cell(value: object) -> object:
    r"""A cell that no spreadsheet reads as a formula; values that are not texts stay the same.

    >>> csv_cell('=HYPERLINK("x")'), csv_cell("clip"), csv_cell(-0.5)
    ('\'=HYPERLINK("x")', 'clip', -0.5)
    """
    if not isinstance(value, str):
        return value
    return f"'{value}" if value[:1] in ("\t", "\r", "\n") or value.lstrip()[:1] in tuple(_FORMULA) else value
