"""A leaderboard as CSV, Markdown and LaTeX. Everything that came from data is escaped."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from ttmbench._util.console import csv_cell, latex, markdown
from ttmbench.report.leaderboard import ROW, Leaderboard, as_row, extent_of_line, legends, tables
from ttmbench.report.table import NOTHING
from ttmbench.results.labels import DISAGREES_MARK, SEEN_MARK, TRACK_TITLES
from ttmbench.results.numbers import Number
from ttmbench.results.transfer_deltas import TITLE, Transfer

_IN_LATEX = (r" $\pm$ ", r"$^\dagger$", r"$^\ddagger$")
HEAD = ("model", "method", "groups")
TRANSFER_HEAD = (
    *("model", "adapted to", "measured on", "metric", "raw", "adapted", "difference", "95 % interval", "groups"),
)


def to_csv(board: Leaderboard) -> str:
    """One line a row, fractions; a cell that a spreadsheet would take for a formula gets a quote in front."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ROW, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in as_row(row).items()} for row in board.rows)
    return out.getvalue()


def to_markdown(board: Leaderboard) -> str:
    """One table a track, percent."""
    parts = []
    for track, lines in tables(board.rows).items():
        columns = columns_of(lines)
        head = [*HEAD, *columns]
        text = [_markdown_row(head), _markdown_row(["---", "---", *["---:"] * (len(columns) + 1)], rule=True)]
        text += [
            _markdown_row([*who, extent_of_line(line).words, *(cell_of(line.get(name)) for name in columns)])
            for who, line in lines.items()
        ]
        parts.append(f"## {title_of(track, markdown)}\n\n" + "\n".join(text) + "\n")
    parts += [f"{legend}\n" for legend in legends(board.rows, markdown)]
    if board.transfers:
        text = [_markdown_row(TRANSFER_HEAD), _markdown_row(["---"] * 4 + ["---:"] * 5, rule=True)]
        text += [_markdown_row(row) for row in transfer_cells(board.transfers)]
        parts.append(f"## {TITLE}\n\n" + "\n".join(text) + "\n")
    return "\n".join(parts)


def to_latex(board: Leaderboard) -> str:
    """One ``tabular`` a track, percent, for the booktabs package."""
    parts = []
    for track, lines in tables(board.rows).items():
        columns = columns_of(lines)
        rows = [" & ".join(map(latex, [*HEAD, *columns])) + r" \\"]
        for who, line in lines.items():
            cells = [*map(latex, who), extent_of_line(line).words]
            rows.append(" & ".join([*cells, *(cell_of(line.get(name), *_IN_LATEX) for name in columns)]) + r" \\")
        body = "\n".join([rows[0], r"\midrule", *rows[1:]])
        parts.append(
            f"% {title_of(track, latex)}\n\\begin{{tabular}}{{ll{'r' * (len(columns) + 1)}}}\n\\toprule\n{body}\n"
            "\\bottomrule\n\\end{tabular}\n"
        )
    parts += [f"% {legend}\n" for legend in legends(board.rows, latex)]
    if board.transfers:
        rows = [" & ".join(map(latex, cells)) + r" \\" for cells in (TRANSFER_HEAD, *transfer_cells(board.transfers))]
        body = "\n".join([rows[0], r"\midrule", *rows[1:]])
        parts.append(f"% {TITLE}\n\\begin{{tabular}}{{llllrrrrr}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n")
    return "\n".join(parts)


def transfer_cells(transfers: Sequence[Transfer]) -> list[list[str]]:
    """Adapted models on other tasks, a row of cells a metric, in percent.

    Args:
        transfers: of a leaderboard or a report.

    Returns:
        The metrics that tables show, in the order of `TRANSFER_HEAD`.
    """
    return [
        [
            one.model,
            one.adapted_on,
            "itself" if one.measured_on == one.adapted_on else one.measured_on,
            one.metric.replace("_", " "),
            NOTHING if one.raw is None else f"{100 * one.raw:.2f}",
            NOTHING if one.value is None else f"{100 * one.value:.2f}" + _plus_minus(one.seed_std),
            NOTHING if one.difference is None else f"{100 * one.difference:+.2f}",
            NOTHING if one.interval is None else f"{100 * one.interval[0]:+.1f} .. {100 * one.interval[1]:+.1f}",
            f"{one.groups} of {one.groups_of_task}" if one.limited else str(one.groups),
        ]
        for one in transfers
        if one.shown
    ]


def _plus_minus(spread: float | None) -> str:
    return "" if spread is None else f" ± {100 * spread:.2f}"


def title_of(track: str, escape: Callable[[str], str]) -> str:
    """The heading of a track's table."""
    return next((title for known, title in TRACK_TITLES.items() if known == track), None) or escape(track)


def columns_of(lines: Mapping[tuple[str, str], Mapping[str, Number]]) -> list[str]:
    """The columns of a table's lines."""
    return sorted({name for line in lines.values() for name in line})


def cell_of(row: Number | None, plus_minus: str = " ± ", seen: str = SEEN_MARK, disagrees: str = DISAGREES_MARK) -> str:
    """A number in percent, with its spread and its marks."""
    if row is None:
        return NOTHING
    spread = "" if row.seed_std is None else f"{plus_minus}{100 * row.seed_std:.2f}"
    return f"{100 * (row.value or 0.0):.2f}{spread}{seen if row.seen else ''}{disagrees if row.disagrees else ''}"


def _markdown_row(cells: Sequence[str], rule: bool = False) -> str:
    return "| " + " | ".join(cells if rule else map(markdown, cells)) + " |"
