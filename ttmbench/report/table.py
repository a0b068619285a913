"""Tables in the terminal: where one is too wide, its least important columns are dropped; no number is broken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len

from ttmbench._util import console as terminal
from ttmbench._util.console import echo, printable

if TYPE_CHECKING:
    from ttmbench.results.numbers import Number

NOTHING = "-"  # a cell without a value
GAP = 2  # blanks between columns
TEXT = 24  # minimum width of a text column
KEY = 12  # minimum width of a key
LEAST = 8  # minimum width of a key or text column where a single column remains beside the keys


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        name: its head.
        kind: ``key`` names the row and is never dropped; ``heading`` is a key shared by several rows, empty where it
            repeats, and becomes a separate row in a table that is too wide; ``number`` is never broken and is aligned
            right; ``text`` may be broken between words.
        importance: in a table that is too wide, columns of lower importance are dropped first, and of equal ones the
            last.
    """

    name: str
    kind: str = "text"
    importance: int = 0


Cells = Sequence[str]


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in percent.

    >>> percent(0.68333), percent(None)
    ('68.33', '-')
    """
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def spread(value: float | None, std: float | None) -> str:
    """A fraction and its standard deviation over seeds, if known, in percent."""
    return percent(value) if value is None or std is None else f"{percent(value)} ± {percent(std)}"


def number_text(row: Number | None) -> str:
    """A number and its standard deviation, in percent."""
    return NOTHING if row is None else spread(row.value, row.seed_std)


def signed_interval(ends: Sequence[float | None] | None) -> str:
    """The ends of an interval of a difference, in percent.

    >>> signed_interval((-0.01, 0.025)), signed_interval((None, None))
    ('-1.0 .. +2.5', '-')
    """
    low, high = ends or (None, None)
    return NOTHING if low is None or high is None else f"{100 * low:+.1f} .. {100 * high:+.1f}"


def print_line(text: str = "", width: int | None = None) -> None:
    """Print a text, wrapped as tables are."""
    console = terminal.console(width)
    console.print(terminal.encodable(str(printable(text)), console.encoding))


def print_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Cells],
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
    has_lines = not console.legacy_windows and terminal.encodable("─", console.encoding) == "─"

    def shown(text: str) -> str:
        return terminal.encodable(str(printable(text)), console.encoding)

    columns = [replace(column, name=shown(column.name)) for column in columns]
    rows = [[shown(cell) for cell in row] or [""] * len(columns) for row in rows]
    shown_columns, cells, widths = lay_out(columns, rows, console.width)
    if title:
        console.print(shown(title), style="bold")
        console.print()
    head, body = plain_lines(shown_columns, cells, widths, "─" if has_lines else "-")
    if console.is_terminal:
        console.print("\n".join(head), style="bold", soft_wrap=True)
        console.print("\n".join(body), soft_wrap=True)
    else:
        echo("\n".join([*head, *body]))  # many times as fast
    printed = [id(column) for column in shown_columns]
    omitted = [column.name for column in columns if column.kind != "heading" and id(column) not in printed]
    if omitted:
        too_wide = f"Columns that do not fit in {console.width} characters: {', '.join(omitted)}"
        caption = f"{caption}\n{too_wide}" if caption else too_wide
    if caption:
        console.print()
        console.print(shown(caption), width=min(console.width, max(_total(widths), 60)), style="dim")


def plain_lines(
    columns: Sequence[TableColumn], rows: Sequence[Cells], widths: Sequence[int], rule: str
) -> tuple[list[str], list[str]]:
    """The lines of a table: the head; and the line below it, made of ``rule``, with the rows.

    >>> plain_lines([TableColumn("task", "key"), TableColumn("value", "number")], [["a", "1.5"]], [4, 5], "-")
    (['task  value'], ['-----------', 'a       1.5'])
    """
    head = [broken(column.name, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, head), default=0)
    lines = [rule * _total(widths)]
    for row in rows:
        if _spans(row, columns):
            lines += broken(row[0], _total(widths))
            continue
        lines += _joined(columns, [broken(cell, width) for cell, width in zip(row, widths, strict=True)], widths)
    return _joined(columns, [[""] * (height - len(name)) + name for name in head], widths), lines


def _joined(columns: Sequence[TableColumn], cells: Sequence[list[str]], widths: Sequence[int]) -> list[str]:
    """Cells side by side, each with one or more lines."""
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        padded = []
        for column, part, width in zip(columns, parts, widths, strict=True):
            blanks = " " * (width - cell_len(part))
            padded.append(blanks + part if column.kind == "number" else part + blanks)
        lines.append((" " * GAP).join(padded).rstrip())
    return lines


Layout = tuple[list[TableColumn], list[list[str]], list[int]]
"""Columns, rows and the widths of the columns."""


def lay_out(columns: Sequence[TableColumn], rows: Sequence[Cells], width: int) -> Layout:
    """Fit a table into ``width``: headings become rows, texts and keys are narrowed, and columns are dropped.

    >>> names = TableColumn("task", "key"), TableColumn("value", "number"), TableColumn("chance", "number")
    >>> [column.name for column in lay_out(names, [["shapes_color", "12.50", "50"]], 20)[0]]
    ['task', 'value']
    """
    widths = _fitted(columns, _natural(columns, rows), width, TEXT, "text")
    if _total(widths) <= width:
        return list(columns), [list(row) for row in rows], widths
    columns, cells = _without_headings(columns, rows)
    while True:
        droppable = [at for at, column in enumerate(columns) if column.kind != "key"]
        is_last = len(droppable) == 1
        widths = _fitted(columns, _natural(columns, cells), width, TEXT, "text")
        widths = _fitted(columns, widths, width, LEAST if is_last else KEY, "key")
        widths = _fitted(columns, widths, width, LEAST, "text") if is_last else widths
        if _total(widths) <= width:
            return columns, cells, widths
        if not droppable:
            return columns, cells, _fitted(columns, widths, width, 1, "key")
        drop = min(droppable, key=lambda at: (columns[at].importance, -at))
        cells = [row if _spans(row, columns) else [*row[:drop], *row[drop + 1 :]] for row in cells]
        columns = [*columns[:drop], *columns[drop + 1 :]]


def _spans(row: Cells, columns: Sequence[TableColumn]) -> bool:
    """Whether a row is one text for all columns."""
    return len(row) == 1 < len(columns)


def _natural(columns: Sequence[TableColumn], rows: Sequence[Cells]) -> list[int]:
    lines = [[column.name for column in columns], *(row for row in rows if not _spans(row, columns))]
    return [max(cell_len(part) for line in lines for part in line[at].split("\n")) for at in range(len(columns))]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _fitted(columns: Sequence[TableColumn], widths: Sequence[int], room: int, least: int, kind: str) -> list[int]:
    """Widths that fit into ``room`` if possible: columns of a kind are narrowed, the widest first."""
    fitted = list(widths)
    while _total(fitted) > room:
        wide = [at for at, column in enumerate(columns) if column.kind == kind and fitted[at] > least]
        if not wide:
            break
        fitted[max(wide, key=fitted.__getitem__)] -= 1
    return fitted


def _without_headings(
    columns: Sequence[TableColumn], rows: Sequence[Cells]
) -> tuple[list[TableColumn], list[list[str]]]:
    """The table with the heading column as rows that span it, above the rows that share it."""
    at = next((index for index, column in enumerate(columns) if column.kind == "heading"), None)
    if at is None:
        return list(columns), [list(row) for row in rows]
    below = []
    for row in rows:
        if _spans(row, columns):
            below.append(list(row))
            continue
        if row[at]:
            below.append([row[at]])
        below.append([cell for index, cell in enumerate(row) if index != at])
    return [column for column in columns if column.kind != "heading"], below


def broken(text: str, width: int) -> list[str]:
    """A text as lines of a maximum width, broken after blanks, else after ``_ - / , :``, else anywhere.

    >>> broken("global_assignment_accuracy of it", 20)
    ['global_assignment_', 'accuracy of it']
    """
    if cell_len(text) <= width and "\n" not in text:
        return [text]
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in _pieces(paragraph, width):
            if line and cell_len(line + piece.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            line += piece
        lines.append(line.rstrip())
    return lines


def _pieces(text: str, width: int) -> list[str]:
    """Words, cut after a mark or else anywhere where they are too long for a line."""
    pieces = []
    for word in re.findall(r"\S+\s*|\s+", text):
        parts = [word] if cell_len(word.rstrip()) <= width else re.findall(r"[^_\-/,:]*[_\-/,:]+\s*|[^_\-/,:]+", word)
        for part in parts:
            while cell_len(part.rstrip()) > width:
                cut = next((at for at in range(len(part), 0, -1) if cell_len(part[:at]) <= width), 1)
                pieces.append(part[:cut])
                part = part[cut:]
            pieces.append(part)
    return pieces
