"""Numbers as CSV, and as LaTeX tables like those of papers, with all texts from data escaped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ttmbench.errors import UsageError
from ttmbench.report import text_table
from ttmbench.report.table import NOTHING, number_text
from ttmbench.report.terminal import gains, headline
from ttmbench.report.text_table import TextTable, transfer_table
from ttmbench.results.labels import (
    BUILT_IN_FILTERS,
    ORACLE_COLUMN,
    OVERFITTED_COLUMN,
    RAW,
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM_COLUMN,
    columns_in,
)
from ttmbench.results.numbers import DocumentFile, Number, newest
from ttmbench.results.transfer_deltas import transfers_of

_COLUMNS = (
    *("model", "task", "version", "metric", "filter", "method", "track", "value", "stderr", "ci_low", "ci_high"),
    *("seed_std", "seeds", "chance", "ties", "cells", "adapted_to", "groups", "groups_of_task", "limited"),
    *("from_file", "fingerprint", "data", "date", "file"),
)
_NEVER_BEST = ("gain", "rel.", "err. red.", ORACLE_COLUMN.name, "groups")
_ABOUT = (
    "Percent. raw: group score (else text score); SimpleMatch, TTM, other methods, oracle: group match (assignment\n"
    "% accuracy for global tasks); overfitted: raw's metric. Gains are over SimpleMatch: points, relative, error\n"
    "% reduction. $\\pm$ is the standard deviation over seeds. Columns of different tracks are not to be ranked."
)


def export_csv(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The `Exporter` ``csv``."""
    return {target: to_csv(runs)}, {}


def export_latex(
    runs: Sequence[DocumentFile],
    target: Path | None,
    source_url: str | None,
    metrics: Sequence[str] = (),
    columns: Sequence[str] = (),
    mark_best: bool = False,
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The `Exporter` ``latex``; the choices are those of `to_latex`."""
    return {target: to_latex(runs, metrics, columns, mark_best)}, {}


def to_csv(runs: Sequence[DocumentFile]) -> str:
    """One line per number (`newest`), in fractions, empty where undefined; with ``setting`` if runs have several.

    Adapted models on other tasks have tasks ``adapted to@measured on``.
    """
    numbers = newest(number for run in runs for number in (*run.numbers(), *run.numbers_elsewhere()))
    columns = ("model", "setting", *_COLUMNS[1:]) if any(number.setting for number in numbers) else _COLUMNS
    return text_table.to_csv(columns, (number.row() for number in numbers))


def to_latex(
    runs: Sequence[DocumentFile], metrics: Sequence[str] = (), columns: Sequence[str] = (), mark_best: bool = False
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
    numbers = sorted(newest(number for run in runs for number in run.numbers()), key=lambda row: row.limited)
    ranked = [row for row in numbers if row.track != "supervised"]  # which has separate tables, below
    # Empty if all tasks are retrieval or classification.
    summary, every_metric = _summary(ranked, runs), []
    for track, about in TRACK_TITLES.items():
        shown = [row for row in numbers if row.track == track]
        for column in dict.fromkeys(column.filter for column in columns_in(row.filter for row in shown)):
            same = [row for row in shown if row.filter == column]
            if not same:
                continue
            every_metric.append(_every_metric(same, f"{about} ({same[0].method})"))
    tables = [*_chosen("columns", [summary] if summary.rows else [], columns)]
    tables += _chosen("metrics", every_metric, metrics)
    if mark_best:
        tables = [_with_best(table, {row.metric for row in numbers if not row.higher_is_better}) for table in tables]
    transfers = [replace(row, model=run.model) for run in runs for row in transfers_of(run.document, run.file)]
    tables += [transfer_table(transfers)] if transfers else []
    return "\n".join(map(text_table.to_latex, tables))


def _summary(numbers: Sequence[Number], runs: Sequence[DocumentFile]) -> TextTable:
    """A paper's main table: the raw model, matching, adaptation, and the gains."""
    by_key = {(row.model, row.task, row.metric, row.filter): row for row in numbers}
    matching = {(run.model, task): spec.get("matching") for run in runs for task, spec in run.document.configs.items()}
    filters = dict.fromkeys(row.filter for row in numbers)
    adapted = [
        column
        for column in columns_in(filters)
        if column.filter in filters
        and (column in (OVERFITTED_COLUMN, TTM_COLUMN, ORACLE_COLUMN) or column.filter not in BUILT_IN_FILTERS)
    ]
    tracks, head = ["", "", "zero-shot", "matching"], ["model", "task", RAW_COLUMN.name, SIMPLE_MATCH_COLUMN.name]
    for column in adapted:
        gained = ["gain", "rel.", "err. red."] if column is TTM_COLUMN else []
        head += [column.name, *gained]
        track = next(row.track for row in numbers if row.filter == column.filter)
        tracks += [str(track).replace("_", "-"), *([""] * len(gained))]
    rows = []
    for model, task in dict.fromkeys((row.model, row.task) for row in numbers if row.filter == RAW):
        metrics = {m for (who, what, m, f) in by_key if (who, what, f) == (model, task, RAW)}
        raw_metric, match_metric = headline(metrics, matching.get((model, task)) == "global")
        raw, matched = (by_key.get((model, task, metric, RAW)) for metric in (raw_metric, match_metric))
        if raw is None and matched is None:
            continue
        row = [model, task, number_text(raw), number_text(matched)]
        for column in adapted:
            metric = raw_metric if column is OVERFITTED_COLUMN else match_metric
            value = by_key.get((model, task, metric, column.filter))
            row += [number_text(value), *(gains(matched, value) if column is TTM_COLUMN else [])]
        rows.append([*row, _extent(raw, matched)])
    return TextTable(_ABOUT, [[*tracks, ""], [*head, "groups"]], rows)


def _every_metric(numbers: Sequence[Number], title: str) -> TextTable:
    metrics = list(dict.fromkeys(row.metric for row in numbers))
    by_key = {(row.model, row.task, row.metric): row for row in numbers}
    rows = [
        [model, task, *map(number_text, known), _extent(*known)]
        for model, task in dict.fromkeys((row.model, row.task) for row in numbers)
        for known in [[by_key.get((model, task, metric)) for metric in metrics]]
    ]
    return TextTable(title, [["model", "task", *metrics, "groups"]], rows)


def _chosen(option: str, tables: Sequence[TextTable], names: Sequence[str]) -> list[TextTable]:
    """The tables that have the named columns, with these and the number of groups."""
    if not names:
        return list(tables)
    known = dict.fromkeys(name for table in tables for name in table.heads[-1][table.texts :])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--{option}: these results have no {', '.join(unknown)}; choose from {', '.join(known)}")
    chosen = []
    for table in tables:
        indices = [table.heads[-1].index(name) for name in names if name in table.heads[-1]]
        if indices:
            indices = [*range(table.texts), *indices, *([] if "groups" in names else [table.heads[-1].index("groups")])]
            heads, rows = ([[row[at] for at in indices] for row in part] for part in (table.heads, table.rows))
            chosen.append(replace(table, heads=heads, rows=rows))
    return chosen


def _with_best(table: TextTable, downwards: Collection[str]) -> TextTable:
    """Mark the best printed values of each column, among rows of the same task and number of groups."""
    bold = []
    for column, name in list(enumerate(table.heads[-1]))[table.texts :]:
        if name in _NEVER_BEST:
            continue
        alike: dict[tuple[str, str], dict[int, float]] = {}
        for at, row in enumerate(table.rows):
            value = row[column].partition(" ")[0]
            if value != NOTHING:
                alike.setdefault((row[1], row[table.heads[-1].index("groups")]), {})[at] = float(value)
        for values in alike.values():
            best = (min if name in downwards else max)(values.values())
            bold += [(at, column) for at, value in values.items() if value == best and len(values) > 1]
    return replace(table, bold=bold)


def _extent(*numbers: Number | None) -> str:
    """The numbers of scored groups and of all groups."""
    return next((row.extent.words for row in numbers if row is not None), NOTHING)
