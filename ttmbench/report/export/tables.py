"""Numbers as CSV, and as LaTeX tables like those of papers, with all texts from data escaped."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import latex
from ttmbench.errors import UsageError
from ttmbench.report.table import NOTHING, TRANSFER_HEADS, TRANSFER_TITLE, csv_text, number_text, transfer_cells
from ttmbench.report.terminal import gains, headline
from ttmbench.results.numbers import (
    BUILT_IN_FILTERS,
    DISAGREES_MARK,
    ORACLE_COLUMN,
    OVERFITTED_COLUMN,
    RAW,
    RAW_COLUMN,
    SEEN_MARK,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM_COLUMN,
    Number,
    columns_in,
    newest,
)
from ttmbench.results.reader import ResultsFile

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = (
    *("model", "task", "version", "metric", "filter", "method", "track", "value", "stderr", "ci_low", "ci_high"),
    *("seed_std", "seeds", "chance", "ties", "cells", "adapted_to", "groups", "groups_of_task", "limited"),
    *("from_file", "fingerprint", "data", "date", "file"),
)
_GAINS = ("gain", "rel.", "err. red.")
_NEVER_BEST = (*_GAINS, ORACLE_COLUMN.name, "groups")
_IN_LATEX = {"±": r"$\pm$", SEEN_MARK: r"$^\dagger$", DISAGREES_MARK: r"$^\ddagger$"}
_ABOUT = (
    "Percent. raw: group score (else text score); SimpleMatch, TTM, other methods, oracle: group match (assignment\n"
    "% accuracy for global tasks); overfitted: raw's metric. Gains are over SimpleMatch: points, relative, error\n"
    "% reduction. $\\pm$ is the standard deviation over seeds. Columns of different tracks are not to be ranked."
)


def export_csv(runs: Sequence[ResultsFile], target: Path | None) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``csv``."""
    return {target: to_csv(runs)}, {}


def export_latex(
    runs: Sequence[ResultsFile], target: Path | None, **choices: object
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``latex``; the choices are those of `to_latex`."""
    return {target: to_latex(runs, **choices)}, {}  # type: ignore[arg-type]


def to_csv(runs: Sequence[ResultsFile]) -> str:
    """One line per number (`newest`), in fractions, empty where undefined; with ``setting`` if runs have several.

    Adapted models on other tasks have tasks ``adapted to@measured on``.
    """
    numbers = newest(number for run in runs for number in (*run.numbers, *run.numbers_elsewhere))
    columns = ("model", "setting", *_COLUMNS[1:]) if any(number.setting for number in numbers) else _COLUMNS
    return csv_text(columns, (number.row() for number in numbers))


def to_latex(
    runs: Sequence[ResultsFile], metrics: Sequence[str] = (), columns: Sequence[str] = (), mark_best: bool = False
) -> str:
    """Tables for the booktabs package, in percent: raw, SimpleMatch and TTM, then every metric by track.

    Args:
        runs: where several have a number, that of the newest run of the whole task counts.
        metrics: of the tables by track; empty for all.
        columns: of the first table; empty for all.
        mark_best: print the best of each column in bold, among rows of the same task and number of groups.

    Returns:
        ``tabular`` environments, each with a comment; the last has adapted models on other tasks.

    Raises:
        UsageError: an unknown metric or column.
    """
    import pandas as pd

    numbers = sorted(newest(number for run in runs for number in run.numbers), key=lambda row: row.limited)
    by_column: dict[tuple[str, str], list[Number]] = {}
    filters = [column.filter for column in columns_in(row.method for row in numbers)]
    for row in sorted(numbers, key=lambda row: filters.index(row.method)):
        by_column.setdefault((row.track or "", row.method), []).append(row)
    every_metric = [
        (f"{about} ({rows[0].column})", _every_metric(rows))
        for track, about in TRACK_TITLES.items()
        for (of, _), rows in by_column.items()
        if of == track
    ]
    summary = _summary([row for row in numbers if row.track != "supervised"], runs)  # which has tables of its own
    tables = _chosen("columns", [(_ABOUT, summary)] if len(summary) else [], columns)
    tables += _chosen("metrics", every_metric, metrics)
    downwards = {row.metric for row in numbers if not row.higher_is_better} if mark_best else None
    written = [_tabular(title, table, 2, downwards) for title, table in tables]
    transfers = [transfer_cells(row) for run in runs for row in run.transfers if row.shown]
    if transfers:
        written.append(_tabular(TRANSFER_TITLE, pd.DataFrame(transfers, columns=list(TRANSFER_HEADS)), 4))
    return "\n".join(written)


def _summary(numbers: Sequence[Number], runs: Sequence[ResultsFile]) -> pd.DataFrame:
    """A paper's main table: the raw model, matching, adaptation, and the gains; empty if no task has groups."""
    import pandas as pd

    by_key = {(row.model, row.task, row.metric, row.method): row for row in numbers}
    matching = {(run.model, task): spec.get("matching") for run in runs for task, spec in run.document.configs.items()}
    tracks = {row.method: str(row.track).replace("_", "-") for row in reversed(numbers)}
    shown = (OVERFITTED_COLUMN, TTM_COLUMN, ORACLE_COLUMN)
    adapted = [
        column
        for column in columns_in(dict.fromkeys(row.method for row in numbers))
        if column.filter in tracks and (column in shown or column.filter not in BUILT_IN_FILTERS)
    ]
    rows = []
    for model, task in dict.fromkeys((row.model, row.task) for row in numbers if row.method == RAW):
        metrics = {m for (who, what, m, f) in by_key if (who, what, f) == (model, task, RAW)}
        raw_metric, match_metric = headline(metrics, matching.get((model, task)) == "global")
        raw, matched = (by_key.get((model, task, metric, RAW)) for metric in (raw_metric, match_metric))
        if raw is None and matched is None:
            continue
        row = {("", "model"): model, ("", "task"): task, ("zero-shot", RAW_COLUMN.name): number_text(raw)}
        row["matching", SIMPLE_MATCH_COLUMN.name] = number_text(matched)
        for column in adapted:
            value = by_key.get(
                (model, task, raw_metric if column is OVERFITTED_COLUMN else match_metric, column.filter)
            )
            row[tracks[column.filter], column.name] = number_text(value)
            if column is TTM_COLUMN:
                row |= {("", name): gain for name, gain in zip(_GAINS, gains(matched, value), strict=True)}
        row["", "groups"] = next(known.extent.words for known in (raw, matched) if known is not None)
        rows.append(row)
    return pd.DataFrame(rows, columns=pd.MultiIndex.from_tuples(rows[0]) if rows else None)


def _every_metric(numbers: Sequence[Number]) -> pd.DataFrame:
    import pandas as pd

    rows: dict[tuple[str, str], dict[str, str]] = {}
    for number in numbers:
        row = rows.setdefault((number.model, number.task), {"model": number.model, "task": number.task})
        row |= {number.metric: number_text(number), "groups": row.get("groups", number.extent.words)}
    metrics = dict.fromkeys(number.metric for number in numbers)
    return pd.DataFrame([*rows.values()], columns=["model", "task", *metrics, "groups"]).fillna(NOTHING)


def _chosen(
    option: str, tables: Sequence[tuple[str, pd.DataFrame]], names: Sequence[str]
) -> list[tuple[str, pd.DataFrame]]:
    """The tables that have the named columns, with these and the number of groups; all for no names."""
    if not names:
        return list(tables)
    known = dict.fromkeys(name for _, table in tables for name in table.columns.get_level_values(-1)[2:])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--{option}: these results have no {', '.join(unknown)}; choose from {', '.join(known)}")
    chosen = []
    for title, table in tables:
        there = list(table.columns.get_level_values(-1))
        places = [there.index(name) for name in names if name in there]
        if places:
            places += [] if "groups" in names else [there.index("groups")]
            chosen.append((title, table.iloc[:, [0, 1, *places]]))
    return chosen


def _tabular(title: str, table: pd.DataFrame, texts: int, downwards: Collection[str] | None = None) -> str:
    """A ``tabular`` with its title as comment; its first columns hold texts, the others numbers.

    With ``downwards``, the metrics of which less is better, the best printed values of each column are bold, among rows
    of the same task and number of groups.
    """
    import pandas as pd

    names, cells = list(table.columns.get_level_values(-1)), table.map(_latex_cell)
    for at, name in enumerate(names):
        if downwards is not None and at >= texts and name not in _NEVER_BEST:
            values = pd.to_numeric(table.iloc[:, at].str.partition(" ")[0], errors="coerce")
            alike = values.groupby([table.iloc[:, 1], table.iloc[:, names.index("groups")]])
            best = alike.transform("min" if name in downwards else "max")
            is_best = (values == best) & (alike.transform("count") > 1)
            cells.iloc[:, at] = cells.iloc[:, at].mask(is_best, r"\textbf{" + cells.iloc[:, at] + "}")
    heads = [
        [_latex_cell(str(head)) for head in table.columns.get_level_values(at)] for at in range(table.columns.nlevels)
    ]
    cells.columns = pd.MultiIndex.from_arrays(heads) if len(heads) > 1 else pd.Index(heads[0])
    alignment = "l" * texts + "r" * (len(names) - texts)
    style = cells.style.hide(axis="index")
    return f"% {title}\n{style.to_latex(column_format=alignment, hrules=True, sparse_columns=False)}"


def _latex_cell(text: str) -> str:
    """A cell in LaTeX; a signed number is in math mode, for a proper minus."""
    cell = latex(text)
    for mark, written in _IN_LATEX.items():
        cell = cell.replace(mark, written)
    return f"${cell}$" if re.fullmatch(r"[+-][0-9.]+%?", text) else cell
