"""A leaderboard as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping

from ttmbench.report.html.render import render
from ttmbench.report.leaderboard import Leaderboard, columns_of, extent_of_line, legends, tables
from ttmbench.report.text_table import transfer_table
from ttmbench.results.labels import TRACK_TITLES
from ttmbench.results.numbers import Number


def to_html(board: Leaderboard, made: str) -> str:
    """One page that opens offline: a table a track, sorted by a click or by Enter on a heading.

    Args:
        board: the leaderboard.
        made: when, for the foot of the page.

    Returns:
        HTML without any address to load from.
    """
    return render(
        "leaderboard.html",
        styles=["page.css"],
        scripts=["tables.js"],
        tables=[
            {"track": track, "title": TRACK_TITLES[track], "lines": lines, "columns": _columns(lines)}
            for track, lines in tables(board.rows).items()
        ],
        tasks=sorted({row.task for row in board.rows}),
        metrics=sorted({row.metric for row in board.rows}),
        board=board,
        extent_of_line=extent_of_line,
        legends=legends(board.rows),
        transfers=transfer_table(board.transfers),
        made=made,
    )


def _columns(lines: Mapping[tuple[str, str], Mapping[str, Number]]) -> dict[str, dict[str, Number | float | None]]:
    """For each column one of its numbers, and the best one of whole tasks, where there are several."""
    columns = {}
    for name in columns_of(lines):
        rows = [line[name] for line in lines.values() if name in line]
        whole = [row.value or 0.0 for row in rows if not row.limited]
        best = (max if rows[0].higher_is_better else min)(whole) if len(whole) > 1 else None
        columns[name] = {"row": rows[0], "best": best}
    return columns
