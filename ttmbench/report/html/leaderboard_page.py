"""A leaderboard as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttmbench.report.html.render import render
from ttmbench.report.leaderboard import Leaderboard, extent_of_line, legends, tables
from ttmbench.report.leaderboard_formats import TRANSFER_HEAD, cell_of, columns_of, title_of, transfer_cells
from ttmbench.results.numbers import Number
from ttmbench.results.transfer_deltas import TITLE


def to_html(board: Leaderboard, made: str) -> str:
    """One page that opens offline: a table a track, sorted by a click or by Enter on a heading.

    Args:
        board: the leaderboard.
        made: when, for the foot of the page.

    Returns:
        HTML without any address to load from.
    """
    laid_out = [
        {"track": track, "title": title_of(track, str), **_html_table(lines)}
        for track, lines in tables(board.rows).items()
    ]
    return render(
        "leaderboard.html",
        styles=["page.css"],
        scripts=["tables.js"],
        tables=laid_out,
        tasks=sorted({row.task for row in board.rows}),
        metrics=sorted({row.metric for row in board.rows}),
        board=board,
        legends=legends(board.rows),
        transfers={"title": TITLE, "head": TRANSFER_HEAD, "rows": transfer_cells(board.transfers)},
        made=made,
    )


def _html_table(lines: Mapping[tuple[str, str], Mapping[str, Number]]) -> dict[str, Any]:
    columns = columns_of(lines)
    some = {name: next(line[name] for line in lines.values() if name in line) for name in columns}
    values = {
        name: [line[name].value or 0.0 for line in lines.values() if name in line and not line[name].limited]
        for name in columns
    }
    best = {
        name: (max if some[name].higher_is_better else min)(known) if len(known) > 1 else None
        for name, known in values.items()
    }
    return {
        "columns": [{"task": some[name].task, "metric": some[name].metric} for name in columns],
        "lines": [
            {
                "model": model,
                "method": method,
                "groups": extent_of_line(line),
                "cells": [_html_cell(line.get(name), best[name]) for name in columns],
            }
            for (model, method), line in lines.items()
        ],
    }


def _html_cell(row: Number | None, best: float | None) -> dict[str, Any]:
    about = "" if row is None else f"{row.file}; {_groups(row)}"
    about += f"; but {row.disagrees}" if row is not None and row.disagrees else ""
    return {
        "text": cell_of(row),
        "value": "" if row is None else row.value,
        "about": about,
        "best": row is not None and not row.limited and row.value == best,
    }


def _groups(row: Number) -> str:
    return "unknown number of groups" if row.groups is None else f"{row.extent.words} groups"
