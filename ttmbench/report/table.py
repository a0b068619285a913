"""Tables in the terminal: as wide as it is, broken between columns and never inside a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len

from ttmbench._util import console as terminal
from ttmbench._util.console import echo, printable
from ttmbench._util.redact import secrets_in_environment

if TYPE_CHECKING:
    from ttmbench.results.numbers import Number

NOTHING = "-"  # a cell without a value
GAP = 2  # blanks between columns
TEXT = 24  # width of a text column below which the table is broken into blocks
KEYS = 0.6  # maximum fraction of the width for the columns that every block repeats
LEAST = 8  # width of a key or a text in a block that would not fit otherwise
LEAST_KEYS = 0.3  # minimum fraction of the width for keys when they are narrowed to avoid blocks


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        name: its head.
        kind: ``key`` names the row and is repeated in every block of a table that is too wide; ``heading`` is a key
            shared by several rows, empty where it repeats, and becomes a separate row in a table that is too wide;
            ``number`` is never broken and is aligned right; ``text`` may be broken between words.
    """

    name: str
    kind: str = "text"


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
    """Print a table, and below it the names of columns that do not fit.

    Args:
        columns: of the table.
        rows: a text for each column; an empty row separates, and a single text spans the table.
        title: a line above.
        caption: text below.
        width: in characters; by default that of the terminal. In a file or a pipe ``COLUMNS``, else unlimited.
    """
    console = terminal.console(width)
    has_lines = not console.legacy_windows and terminal.encodable("─", console.encoding) == "─"

    secrets = secrets_in_environment()

    def shown(text: str) -> str:
        return terminal.encodable(str(printable(text, secrets)), console.encoding)

    columns = [replace(column, name=shown(column.name)) for column in columns]
    rows = [[shown(cell) for cell in row] or [""] * len(columns) for row in rows]
    blocks = lay_out(columns, rows, console.width)
    if title:
        console.print(shown(title), style="bold")
        console.print()
    widest = 0
    for number, (block_columns, cells, widths) in enumerate(blocks):
        if number:
            console.print()
        head, body = plain_lines(block_columns, cells, widths, "─" if has_lines else "-")
        if console.is_terminal:
            console.print("\n".join(head), style="bold", soft_wrap=True)
            console.print("\n".join(body), soft_wrap=True)
        else:
            echo("\n".join([*head, *body]))  # many times as fast
        widest = max(widest, _total(widths))
    printed = [id(column) for block_columns, _, _ in blocks for column in block_columns]
    omitted = [column.name for column in columns if column.kind != "heading" and id(column) not in printed]
    if omitted:
        too_wide = f"Columns that do not fit in {console.width} characters: {', '.join(omitted)}"
        caption = f"{caption}\n{too_wide}" if caption else too_wide
    if caption:
        console.print()
        console.print(shown(caption), width=min(console.width, max(widest, 60)), style="dim")


def plain_lines(
    columns: Sequence[TableColumn], rows: Sequence[Cells], widths: Sequence[int], rule: str
) -> tuple[list[str], list[str]]:
    """The lines of a block: the head; and the line below it, made of ``rule``, with the rows.

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


Block = tuple[list[TableColumn], list[list[str]], list[int]]
"""Columns, rows and the widths of the columns."""


def lay_out(columns: Sequence[TableColumn], rows: Sequence[Cells], width: int) -> list[Block]:
    """Break a table into blocks that fit in ``width``; a column that does not fit beside the keys is in none.

    >>> names = TableColumn("task", "key"), TableColumn("value", "number"), TableColumn("chance", "number")
    >>> [[column.name for column in block] for block, _, _ in lay_out(names, [["shapes_color", "12.50", "50"]], 20)]
    [['task', 'value'], ['task', 'chance']]
    """
    whole = _fitted(columns, _natural(columns, rows), width, TEXT, ("text",))
    if _total(whole) <= width:
        return [(list(columns), [list(row) for row in rows], whole)]
    columns, rows = _without_headings(columns, rows)
    widths = _natural(columns, rows)
    keys = [index for index, column in enumerate(columns) if column.kind == "key"]
    others = [index for index in range(len(columns)) if index not in keys]
    room = width - sum(GAP + (min(widths[i], TEXT) if columns[i].kind == "text" else widths[i]) for i in others)
    for_keys = room if room >= LEAST_KEYS * width else int(KEYS * width)
    narrow = _fitted([columns[index] for index in keys], [widths[index] for index in keys], for_keys, 1, ("key",))
    for index, key_width in zip(keys, narrow, strict=True):
        widths[index] = key_width

    def fitted(block: Sequence[int], least: int, *kinds: str) -> list[int]:
        return _fitted([columns[index] for index in block], [widths[index] for index in block], width, least, kinds)

    blocks: list[list[int]] = []
    for index in others:
        if _total(fitted([*keys, index], LEAST, "key", "text")) > width:
            continue
        if not blocks or _total(fitted([*blocks[-1], index], TEXT, "text")) > width:
            blocks.append(list(keys))
        blocks[-1].append(index)
    laid_out = []
    for block in blocks or [keys]:
        final = fitted(block, TEXT, "text")
        final = final if _total(final) <= width else fitted(block, LEAST, "key", "text")
        cells = [list(row) if _spans(row, columns) else [row[index] for index in block] for row in rows]
        laid_out.append(([columns[index] for index in block], cells, final))
    return laid_out


def _spans(row: Cells, columns: Sequence[TableColumn]) -> bool:
    """Whether a row is one text for all columns."""
    return len(row) == 1 < len(columns)


def _natural(columns: Sequence[TableColumn], rows: Sequence[Cells]) -> list[int]:
    lines = [[column.name for column in columns], *(row for row in rows if not _spans(row, columns))]
    return [max(cell_len(part) for line in lines for part in line[at].split("\n")) for at in range(len(columns))]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _fitted(
    columns: Sequence[TableColumn], widths: Sequence[int], room: int, least: int, kinds: Sequence[str]
) -> list[int]:
    """Widths that fit into ``room`` if possible: columns of some kinds are narrowed, the widest first."""
    fitted = list(widths)
    while _total(fitted) > room:
        wide = [at for at, column in enumerate(columns) if column.kind in kinds and fitted[at] > least]
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
