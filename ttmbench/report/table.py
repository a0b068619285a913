"""Tables in the terminal: where one is too wide, its least important columns are dropped; no number is broken.

Also the cells that several tables have in common, and tables as CSV.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells

from ttmbench._util import console as terminal
from ttmbench._util.console import csv_cell, echo, printable
from ttmbench.results.numbers import DISAGREES_MARK, SEEN_MARK

if TYPE_CHECKING:
    from ttmbench.results.document import Transfer
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
        kind: ``key`` names the row and is never dropped; ``number`` is never broken and is aligned right; ``text`` may
            be broken between words.
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


def points(difference: float | None) -> str:
    """A difference of fractions in points of percent, with its sign.

    >>> points(0.125), points(-0.000001)
    ('+12.50', '+0.00')
    """
    return NOTHING if difference is None else f"{100 * difference:+z.2f}"


def marks(number: Number) -> str:
    """The marks beside a number, which `ttmbench.report.leaderboard.legends` explains."""
    return (SEEN_MARK if number.seen else "") + (DISAGREES_MARK if number.disagrees else "")


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
        "95 % interval": signed_interval(None if gain is None else gain.ci),
        "over seeds": signed_interval(None if gain is None else gain.seed_ci),
        "groups": number.extent.words if number.limited else str(number.groups),
    }


TRANSFER_TITLE = "Adapted to one task, measured on another: what adaptation costs elsewhere, in no ranking"
TRANSFER_HEADS = (
    *("model", "adapted to", "measured on", "metric", "raw", "adapted", "difference", "95 % interval", "groups"),
)
"""Those of pages and exports."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """One line per row; a quote precedes what a spreadsheet would take for a formula."""
    import pandas as pd

    cells = [[csv_cell(row[name]) for name in columns] for row in rows]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(index=False, lineterminator="\n")


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

    def shown(text: str) -> str:
        return terminal.encodable(str(printable(text)), console.encoding)

    names = [shown(column.name) for column in columns]
    cells = [[shown(cell) for cell in row] or [""] * len(columns) for row in rows]
    widths = fitted(columns, [names, *cells], console.width)
    total = sum(widths.values()) + GAP * (len(widths) - 1)
    heads = [broken(names[at], width) for at, width in widths.items()]
    head = _beside(columns, widths, [[""] * (max(map(len, heads)) - len(lines)) + lines for lines in heads])
    has_lines = not console.legacy_windows and terminal.encodable("─", console.encoding) == "─"
    body = [("─" if has_lines else "-") * total]
    for row in cells:
        is_whole = len(row) == len(columns)
        here = [broken(row[at], width) for at, width in widths.items()] if is_whole else []
        body += _beside(columns, widths, here) if is_whole else broken(row[0], total)
    if title:
        console.print(shown(title), style="bold")
        console.print()
    console.print("\n".join(head), style="bold", soft_wrap=True)
    echo("\n".join(body))  # many times as fast
    omitted = [name for at, name in enumerate(names) if at not in widths]
    if omitted:
        too_wide = f"Columns that do not fit in {console.width} characters: {', '.join(omitted)}"
        caption = f"{caption}\n{too_wide}" if caption else too_wide
    if caption:
        console.print()
        console.print(shown(caption), width=min(console.width, max(total, 60)), style="dim")


def fitted(columns: Sequence[TableColumn], rows: Sequence[Cells], room: int) -> dict[int, int]:
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


def _beside(columns: Sequence[TableColumn], widths: Mapping[int, int], cells: Sequence[list[str]]) -> list[str]:
    """Cells side by side, each with one or more lines."""
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        padded = []
        for (at, width), part in zip(widths.items(), parts, strict=True):
            blanks = " " * (width - cell_len(part))
            padded.append(blanks + part if columns[at].kind == "number" else part + blanks)
        lines.append((" " * GAP).join(padded).rstrip())
    return lines


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
