"""A leaderboard as one page that works offline."""

from __future__ import annotations

from ttmbench.report.html.render import render
from ttmbench.report.leaderboard import (
    Leaderboard,
    Lines,
    as_document,
    beats_chance,
    columns_of,
    extent_of_line,
    legends,
    tables,
)
from ttmbench.report.text_table import transfer_table
from ttmbench.results.labels import TRACK_TITLES


def to_html(board: Leaderboard, made: str) -> str:
    """One page with one sortable table per track; ``made`` is its date."""
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
        superseded=as_document(board)["superseded"],
        extent_of_line=extent_of_line,
        legends=legends(board.rows),
        transfers=transfer_table(board.transfers),
        made=made,
    )


def _columns(lines: Lines) -> dict[str, dict[str, object]]:
    """For each column one of its rows, and the best value of whole tasks if there are several."""
    columns: dict[str, dict[str, object]] = {}
    for name in columns_of(lines):
        rows = [line[name] for line in lines.values() if name in line]
        whole = [row for row in rows if not row.limited]
        better = [row.value or 0.0 for row in whole if beats_chance(row)]
        best = (max if rows[0].higher_is_better else min)(better) if len(whole) > 1 and better else None
        columns[name] = {"row": rows[0], "best": best}
    return columns
