"""Numbers as CSV, and as LaTeX in the way that papers print them. Everything that came from data is escaped."""

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
    ORACLE_COLUMN,
    OVERFITTED_COLUMN,
    RAW,
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM_COLUMN,
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
    "Percent. raw: group score (text score if there is none); SimpleMatch, TTM, oracle: group match (assignment\n"
    "% accuracy for global tasks); overfitted: raw's metric. Gains are over SimpleMatch: points, relative, error\n"
    "% reduction. $\\pm$ is the standard deviation over seeds. Columns of different tracks are not to be ranked."
)


def export_csv(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``csv`` as `ttmbench.report.export.Exporter` says."""
    return {target: to_csv(runs)}, {}


def export_latex(
    runs: Sequence[DocumentFile],
    target: Path | None,
    source_url: str | None,
    metrics: Sequence[str] = (),
    columns: Sequence[str] = (),
    mark_best: bool = False,
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``latex`` as `ttmbench.report.export.Exporter` says; the choices are those of `to_latex`."""
    return {target: to_latex(runs, metrics, columns, mark_best)}, {}


def to_csv(runs: Sequence[DocumentFile]) -> str:
    """One line a number, of every run and filter; fractions; what is undefined is empty.

    Runs of several settings have a column ``setting``.

    Behind a run's own numbers stand those of its adapted models on other tasks, of tasks ``adapted to@measured on``.
    """
    numbers = []
    for run in runs:
        numbers += [*run.numbers(), *run.numbers_elsewhere()]
    columns = ("model", "setting", *_COLUMNS[1:]) if any(number.setting for number in numbers) else _COLUMNS
    return text_table.to_csv(columns, (number.row() for number in numbers))


def to_latex(
    runs: Sequence[DocumentFile], metrics: Sequence[str] = (), columns: Sequence[str] = (), mark_best: bool = False
) -> str:
    """Tables for the booktabs package, in percent: raw beside SimpleMatch and TTM, then every metric, track by track.

    Args:
        runs: of one or more models; of a number that several have the newest of the whole task counts. Rows of a part
            of a task stand below all others.
        metrics: of the tables by track; all if none is named.
        columns: of the first table; all if none is named.
        mark_best: print the best of each column among rows of one task and as many groups in bold.

    Returns:
        ``tabular`` environments with a comment above each; the last is of adapted models on other tasks.

    Raises:
        UsageError: a metric or column that is not there.
    """
    numbers = sorted(newest(number for run in runs for number in run.numbers()), key=lambda one: one.limited)
    ranked = [one for one in numbers if one.track != "supervised"]  # which has tables of its own, below
    # A task that ranks has other metrics, so the summary may have no rows.
    summary, every_metric = _summary(ranked, runs), []
    for track, about in TRACK_TITLES.items():
        shown = [one for one in numbers if one.track == track]
        for name in dict.fromkeys(one.filter for one in shown):
            mine = [one for one in shown if one.filter == name]
            every_metric.append(_every_metric(mine, f"{about} ({mine[0].method})"))
    tables = [*_chosen("columns", [summary] if summary.rows else [], columns)]
    tables += _chosen("metrics", every_metric, metrics)
    if mark_best:
        tables = [_with_best(table, {one.metric for one in numbers if not one.higher_is_better}) for table in tables]
    transfers = [replace(one, model=run.model) for run in runs for one in transfers_of(run.document, run.file)]
    tables += [transfer_table(transfers)] if transfers else []
    return "\n".join(map(text_table.to_latex, tables))


def _summary(numbers: Sequence[Number], runs: Sequence[DocumentFile]) -> TextTable:
    """What a paper's main table shows: the raw model, what matching gives, what adaptation gives, and the gains."""
    by_key = {(one.model, one.task, one.metric, one.filter): one for one in numbers}
    matching = {(run.model, task): spec.get("matching") for run in runs for task, spec in run.document.configs.items()}
    adapted = [
        column
        for column in (OVERFITTED_COLUMN, TTM_COLUMN, ORACLE_COLUMN)
        if any(one.filter == column.filter for one in numbers)
    ]
    tracks, head = ["", "", "zero-shot", "matching"], ["model", "task", RAW_COLUMN.name, SIMPLE_MATCH_COLUMN.name]
    for column in adapted:
        gained = ["gain", "rel.", "err. red."] if column is TTM_COLUMN else []
        head += [column.name, *gained]
        tracks += [str(column.track).replace("_", "-"), *([""] * len(gained))]
    rows = []
    for model, task in dict.fromkeys((one.model, one.task) for one in numbers if one.filter == RAW):
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
    metrics = list(dict.fromkeys(one.metric for one in numbers))
    by_key = {(one.model, one.task, one.metric): one for one in numbers}
    rows = [
        [model, task, *map(number_text, known), _extent(*known)]
        for model, task in dict.fromkeys((one.model, one.task) for one in numbers)
        for known in [[by_key.get((model, task, metric)) for metric in metrics]]
    ]
    return TextTable(title, [["model", "task", *metrics, "groups"]], rows)


def _chosen(option: str, tables: Sequence[TextTable], names: Sequence[str]) -> list[TextTable]:
    """Tables with some of their columns of numbers, those that have any; how many groups they are of stays there."""
    if not names:
        return list(tables)
    known = dict.fromkeys(name for table in tables for name in table.heads[-1][table.texts :])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--{option}: these results have no {', '.join(unknown)}; choose from {', '.join(known)}")
    found = []
    for table in tables:
        places = [table.heads[-1].index(name) for name in names if name in table.heads[-1]]
        if not places:
            continue
        places = [*range(table.texts), *places, *([] if "groups" in names else [table.heads[-1].index("groups")])]
        heads, rows = ([[row[at] for at in places] for row in part] for part in (table.heads, table.rows))
        found.append(replace(table, heads=heads, rows=rows))
    return found


def _with_best(table: TextTable, downwards: Collection[str]) -> TextTable:
    """The best as it is printed of each column, among rows of one task and as many groups; equal ones all."""
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
    """How many groups of how many the numbers of a row are of."""
    return next((one.extent.words for one in numbers if one is not None), NOTHING)
