"""A leaderboard as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping

from ttmbench._util.console import latex, markdown
from ttmbench.report import text_table
from ttmbench.report.leaderboard import ROW, Leaderboard, as_row, extent_of_line, legends, tables
from ttmbench.report.table import number_text
from ttmbench.report.text_table import TextTable, transfer_table
from ttmbench.results.labels import DISAGREES_MARK, SEEN_MARK, TRACK_TITLES
from ttmbench.results.numbers import Number


def to_csv(board: Leaderboard) -> str:
    """One line a row, fractions."""
    settings = {row.setting for row in board.rows} - {""}
    columns = (*ROW, "setting") if settings else ROW
    return text_table.to_csv(columns, ({"setting": "", **as_row(row)} for row in board.rows))


def to_markdown(board: Leaderboard) -> str:
    """One table a track, percent."""
    parts = [*map(text_table.to_markdown, _tables(board)), *(f"{one}\n" for one in legends(board.rows, markdown))]
    parts += [text_table.to_markdown(transfer_table(board.transfers))] if board.transfers else []
    return "\n".join(parts)


def to_latex(board: Leaderboard) -> str:
    """One ``tabular`` a track, percent, for the booktabs package."""
    parts = [*map(text_table.to_latex, _tables(board)), *(f"% {one}\n" for one in legends(board.rows, latex))]
    parts += [text_table.to_latex(transfer_table(board.transfers))] if board.transfers else []
    return "\n".join(parts)


def _tables(board: Leaderboard) -> list[TextTable]:
    shown = []
    for track, lines in tables(board.rows).items():
        columns = columns_of(lines)
        rows = [
            [*who, extent_of_line(line).words, *(_marked(line.get(name)) for name in columns)]
            for who, line in lines.items()
        ]
        shown.append(TextTable(TRACK_TITLES[track], [["model", "method", "groups", *columns]], rows))
    return shown


def columns_of(lines: Mapping[tuple[str, str], Mapping[str, Number]]) -> list[str]:
    """The columns of a table's lines."""
    return sorted({name for line in lines.values() for name in line})


def _marked(row: Number | None) -> str:
    """A number with its marks."""
    marks = "" if row is None else (SEEN_MARK if row.seen else "") + (DISAGREES_MARK if row.disagrees else "")
    return number_text(row) + marks
