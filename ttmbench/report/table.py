"""Tables of the command line: as wide as the terminal, broken between columns and never inside a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table

from ttmbench._util import console as terminal
from ttmbench._util.console import echo, printable
from ttmbench._util.redact import secrets_in_environment

if TYPE_CHECKING:
    from ttmbench.results.numbers import Number

NOTHING = "-"  # what stands in a cell without a value
GAP = 2  # blanks between columns
TEXT = 24  # a column of text is not made narrower than this before the table is broken into blocks
KEYS = 0.6  # of the width at most, for the columns that every block repeats
LEAST_KEYS = 0.4  # of the width; to have one block, keys are made narrower down to this
_ASCII_HEAD = box.Box("\n".join(["    "] * 2 + [" -- "] + ["    "] * 5), ascii=True)


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        name: its head.
        kind: ``key`` names the row and stands in every block of a table too wide for the terminal; ``heading`` is a
            key that many rows share, empty where the row above has the same: in a table too wide it becomes a row of
            its own; ``number`` is never broken and stands to the right; ``text`` may be broken between words.
    """

    name: str
    kind: str = "text"


Cells = Sequence[str]


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as a person reads it.

    >>> percent(0.68333), percent(None)
    ('68.33', '-')
    """
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def spread(value: float | None, std: float | None) -> str:
    """A fraction and its standard deviation over seeds, if there is one."""
    return percent(value) if value is None or std is None else f"{percent(value)} ± {percent(std)}"


def number_text(row: Number | None) -> str:
    """A number in percent with its spread."""
    return NOTHING if row is None else spread(row.value, row.seed_std)


def signed_interval(ends: Sequence[float | None] | None) -> str:
    """The two ends of an interval of a difference.

    >>> signed_interval((-0.01, 0.025)), signed_interval((None, None))
    ('-1.0 .. +2.5', '-')
    """
    low, high = ends or (None, None)
    return NOTHING if low is None or high is None else f"{100 * low:+.1f} .. {100 * high:+.1f}"


def print_line(text: str = "", width: int | None = None) -> None:
    """Prints a text on stdout, as wide as tables are."""
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
    """Prints a table on stdout.

    Args:
        columns: what stands in a row.
        rows: a text for each column; an empty row separates.
        title: a line above.
        caption: text below.
        width: in characters; by default that of the terminal, and in a file or a pipe that of ``COLUMNS``, else as
            wide as needed. Columns that do not fit are named below the table.
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
    for number, (some, cells, widths) in enumerate(blocks):
        if number:
            console.print()
        if console.is_terminal:
            console.print(_rich_table(some, cells, widths, has_lines))
        else:
            echo("\n".join(plain_lines(some, cells, widths, "─" if has_lines else "-")))
        widest = max(widest, sum(widths) + GAP * (len(widths) - 1))
    printed = [id(column) for some, _, _ in blocks for column in some]
    omitted = [column.name for column in columns if column.kind != "heading" and id(column) not in printed]
    if omitted:
        too_wide = f"Columns that do not fit in {console.width} characters: {', '.join(omitted)}"
        caption = f"{caption}\n{too_wide}" if caption else too_wide
    if caption:
        console.print()
        console.print(shown(caption), width=min(console.width, max(widest, 60)), style="dim")


def _rich_table(columns: Sequence[TableColumn], rows: Sequence[Cells], widths: Sequence[int], has_lines: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if has_lines else _ASCII_HEAD, show_edge=False, pad_edge=False)
    table.padding = (0, GAP - 1, 0, 0)
    for column, least in zip(columns, widths, strict=True):
        right = column.kind == "number"
        name = "\n".join(broken(column.name, least))
        table.add_column(name, justify="right" if right else "left", no_wrap=True, width=least)
    for row in rows:
        table.add_row(*("\n".join(broken(cell, least)) for cell, least in zip(row, widths, strict=True)))
    return table


def plain_lines(columns: Sequence[TableColumn], rows: Sequence[Cells], widths: Sequence[int], rule: str) -> list[str]:
    """A block as rich draws it, without colours and without blanks at the end of lines: for files, many times as fast.

    Args:
        columns: of the block.
        rows: a text for each column.
        widths: of the columns.
        rule: the character of the line below the head.

    Returns:
        The lines.

    >>> plain_lines([TableColumn("task", "key"), TableColumn("value", "number")], [["a", "1.5"]], [4, 5], "-")
    ['task  value', '-----------', 'a       1.5']
    """
    lines: list[str] = []
    for number, row in enumerate([[column.name for column in columns], *rows]):
        cells = [broken(cell, least) for cell, least in zip(row, widths, strict=True)]
        height = max(map(len, cells), default=0)
        padded = [[""] * (height - len(cell)) + cell if number == 0 else cell for cell in cells]
        for place in range(height):
            parts = []
            for column, cell, least in zip(columns, padded, widths, strict=True):
                text = cell[place] if place < len(cell) else ""
                blanks = " " * (least - cell_len(text))
                parts.append(blanks + text if column.kind == "number" else text + blanks)
            lines.append((" " * GAP).join(parts).rstrip())
        if number == 0:
            lines.append(rule * (sum(widths) + GAP * (len(widths) - 1)))
    return lines


Block = tuple[list[TableColumn], list[list[str]], list[int]]


def lay_out(columns: Sequence[TableColumn], rows: Sequence[Cells], width: int) -> list[Block]:
    """Breaks a table into blocks that fit.

    Args:
        columns: of the table.
        rows: a text for each column.
        width: characters that there are.

    Returns:
        For each block its columns, its rows and the width of each column. One block if the table fits. A column
        that does not fit beside the keys is in none.

    >>> names = TableColumn("task", "key"), TableColumn("value", "number"), TableColumn("chance", "number")
    >>> [[column.name for column in block] for block, _, _ in lay_out(names, [["shapes_color", "12.50", "50"]], 22)]
    [['task', 'value'], ['task', 'chance']]
    """
    columns, cells = list(columns), [list(row) for row in rows]
    widths = _natural(columns, cells)
    whole = _squeezed(columns, cells, widths, width)
    if whole is not None:
        return [(columns, cells, whole)]
    columns, cells = _without_headings(columns, cells)
    widths = _natural(columns, cells)
    keys = [index for index, column in enumerate(columns) if column.kind == "key"]
    others = [index for index in range(len(columns)) if index not in keys]
    room = width - sum(GAP + (min(widths[i], TEXT) if columns[i].kind == "text" else widths[i]) for i in others)
    least = room if room >= LEAST_KEYS * width else int(KEYS * width)
    for index, narrow in zip(keys, _shrunk([widths[index] for index in keys], least, 1), strict=True):
        widths[index] = narrow

    def fits(index: int) -> bool:
        some, _, natural = _taken(columns, cells, widths, [*keys, index])
        return _total(_forced(some, natural, width)) <= width

    others = [index for index in others if fits(index)]
    blocks: list[list[int]] = [[]]
    for index in others:
        tried = [*keys, *blocks[-1], index]
        if blocks[-1] and _squeezed(*_taken(columns, cells, widths, tried), width) is None:
            blocks.append([])
        blocks[-1].append(index)
    found = []
    for block in blocks:
        some, part, natural = _taken(columns, cells, widths, [*keys, *block])
        found.append((some, part, _squeezed(some, part, natural, width) or _forced(some, natural, width)))
    return found


def broken(text: str, width: int) -> list[str]:
    """Lines of a text no wider than a column: broken after blanks, else after ``_ - / , :``, else anywhere.

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
    """Parts that a line is made of: words, those too long for a line cut after a mark, and at last anywhere."""
    parts = []
    for word in re.findall(r"\S+\s*|\s+", text):
        marked = [word] if cell_len(word.rstrip()) <= width else re.findall(r"[^_\-/,:]*[_\-/,:]+\s*|[^_\-/,:]+", word)
        for one in marked:
            while cell_len(one.rstrip()) > width:
                cut = next((at for at in range(len(one), 0, -1) if cell_len(one[:at]) <= width), 1)
                parts.append(one[:cut])
                one = one[cut:]
            parts.append(one)
    return parts


def _natural(columns: Sequence[TableColumn], rows: Sequence[Cells]) -> list[int]:
    lines = [[column.name for column in columns], *rows]
    return [
        max(cell_len(part) for row in lines for part in row[index].split("\n")) if lines else 0
        for index in range(len(columns))
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _squeezed(
    columns: Sequence[TableColumn], rows: Sequence[Cells], widths: Sequence[int], room: int
) -> list[int] | None:
    """Widths with which columns fit, text made narrower if need be; None if that does not suffice."""
    if _total(widths) <= room:
        return list(widths)
    texts = [index for index, column in enumerate(columns) if column.kind == "text"]
    left = room - _total(widths) + sum(widths[index] for index in texts)
    if sum(min(widths[index], TEXT) for index in texts) > left or not texts:
        return None
    found = list(widths)
    for index, one in zip(texts, _shrunk([widths[index] for index in texts], left, TEXT, gap=0), strict=True):
        found[index] = one
    return found


def _shrunk(widths: Sequence[int], room: int, least: int, gap: int = GAP) -> list[int]:
    """Widths that together take the room, the widest made narrower first."""
    found = list(widths)
    while sum(found) + gap * (len(found) - 1) > room and any(one > least for one in found):
        found[found.index(max(found))] -= 1
    return found


def _forced(columns: Sequence[TableColumn], widths: Sequence[int], room: int) -> list[int]:
    """Widths of a block that does not fit: keys and text are made narrower, down to a few characters."""
    loose = [index for index, column in enumerate(columns) if column.kind != "number"]
    left = room - _total(widths) + sum(widths[index] for index in loose)
    found = list(widths)
    for index, one in zip(loose, _shrunk([widths[index] for index in loose], left, 8, gap=0), strict=True):
        found[index] = one
    return found


def _taken(
    columns: Sequence[TableColumn], rows: Sequence[Cells], widths: Sequence[int], wanted: Sequence[int]
) -> tuple[list[TableColumn], list[list[str]], list[int]]:
    return (
        [columns[index] for index in wanted],
        [[row[index] for index in wanted] for row in rows],
        [widths[index] for index in wanted],
    )


def _without_headings(
    columns: Sequence[TableColumn], rows: Sequence[Cells]
) -> tuple[list[TableColumn], list[list[str]]]:
    """The table with its heading as rows of their own, above those that it is of."""
    at = next((index for index, column in enumerate(columns) if column.kind == "heading"), None)
    if at is None:
        return list(columns), [list(row) for row in rows]
    kept = [column for column in columns if column.kind != "heading"]
    found = []
    for row in rows:
        if row[at]:
            found.append([row[at], *[""] * (len(kept) - 1)])
        found.append([cell for index, cell in enumerate(row) if index != at])
    return kept, found
