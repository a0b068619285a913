"""Tables as CSV, Markdown and LaTeX, with all texts from data escaped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ttmbench._util.console import csv_cell, latex, markdown
from ttmbench.report.table import NOTHING, percent, signed_interval, spread
from ttmbench.results.labels import DISAGREES_MARK, SEEN_MARK
from ttmbench.results.numbers import Number
from ttmbench.results.transfer_deltas import TITLE, Transfer

_IN_LATEX = {"±": r"$\pm$", SEEN_MARK: r"$^\dagger$", DISAGREES_MARK: r"$^\ddagger$"}


def marks(number: Number | None) -> str:
    """The marks beside a number, which `ttmbench.report.leaderboard.legends` explains."""
    if number is None:
        return ""
    return (SEEN_MARK if number.seen else "") + (DISAGREES_MARK if number.disagrees else "")


@dataclass(frozen=True)
class TextTable:
    """A table of texts.

    Attributes:
        title: a line above it.
        heads: one or more rows.
        rows: of cells; numbers are in percent, with their standard deviation and marks.
        texts: number of text columns at the left; the others hold numbers.
        bold: positions (row, column) of cells that are bold in LaTeX.
    """

    title: str
    heads: Sequence[Sequence[str]]
    rows: Sequence[Sequence[str]]
    texts: int = 2
    bold: Collection[tuple[int, int]] = ()


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """A Markdown table; its first columns hold texts, the others numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    lines = [[*map(markdown, head)], rule, *([*map(markdown, row)] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(table: TextTable) -> str:
    """A ``tabular`` for the booktabs package, with its title as comment."""
    import pandas as pd

    body = [
        [
            rf"\textbf{{{_latex_cell(cell)}}}" if (at, column) in table.bold else _latex_cell(cell)
            for column, cell in enumerate(row)
        ]
        for at, row in enumerate(table.rows)
    ]
    heads = [[*map(_latex_cell, head)] for head in table.heads]
    names = pd.MultiIndex.from_arrays(heads) if len(heads) > 1 else pd.Index(heads[0])
    alignment = "l" * table.texts + "r" * (len(heads[0]) - table.texts)
    style = pd.DataFrame(body, columns=names, dtype=object).style.hide(axis="index")
    written = style.to_latex(column_format=alignment, hrules=True, sparse_columns=False)
    return f"% {table.title}\n{written}"


def _latex_cell(text: str) -> str:
    """A cell in LaTeX; a signed number is in math mode, for a proper minus."""
    cell = latex(text)
    for mark, written in _IN_LATEX.items():
        cell = cell.replace(mark, written)
    return f"${cell}$" if re.fullmatch(r"[+-][0-9.]+%?", text) else cell


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """One line per row; a quote precedes what a spreadsheet would take for a formula."""
    import pandas as pd

    cells = [[csv_cell(row[name]) for name in columns] for row in rows]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(index=False, lineterminator="\n")


def transfer_table(transfers: Iterable[Transfer]) -> TextTable:
    """Adapted models on other tasks, one row per metric, in percent."""
    names = ("model", "adapted to", "measured on", "metric", "raw", "adapted", "difference", "95 % interval", "groups")
    rows = [
        [
            row.model,
            row.adapted_to,
            "itself" if row.measured_on == row.adapted_on else row.measured_on,
            row.metric.replace("_", " "),
            percent(row.raw),
            spread(row.value, row.seed_std),
            NOTHING if row.difference is None else f"{100 * row.difference:+z.2f}",
            signed_interval(row.interval),
            f"{row.groups} of {row.groups_of_task}" if row.limited else str(row.groups),
        ]
        for row in transfers
        if row.shown
    ]
    return TextTable(TITLE, [names], rows, texts=4)
