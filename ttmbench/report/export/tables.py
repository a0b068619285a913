"""Numbers as CSV, and as LaTeX in the way that papers print them. Everything that came from data is escaped."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ttmbench import stats
from ttmbench._util.console import csv_cell, latex
from ttmbench.report.leaderboard_formats import TRANSFER_HEAD, transfer_cells
from ttmbench.report.table import NOTHING
from ttmbench.report.terminal import headline
from ttmbench.results.labels import (
    ORACLE_COLUMN,
    OVERFITTED_COLUMN,
    RAW,
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM_COLUMN,
)
from ttmbench.results.numbers import DocumentFile, Number, newest, numbers_elsewhere
from ttmbench.results.transfer_deltas import TITLE, transfers_of

_COLUMNS = [
    *("model", "task", "version", "metric", "filter", "method", "track", "value", "stderr", "ci_low", "ci_high"),
    *(
        "seed_std",
        "seeds",
        "chance",
        "ties",
        "cells",
        "adapted_to",
        "groups",
        "groups_of_task",
        "limited",
        "from_file",
        "fingerprint",
        "data",
        "date",
        "file",
    ),
]
_ADAPTED = (OVERFITTED_COLUMN, TTM_COLUMN, ORACLE_COLUMN)


def export_csv(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``csv`` as `ttmbench.report.export.Exporter` says."""
    return {target: to_csv(runs)}, {}


def export_latex(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``latex`` as `ttmbench.report.export.Exporter` says."""
    return {target: to_latex(runs)}, {}


def to_csv(runs: Sequence[DocumentFile]) -> str:
    """One line a number, of every run and filter; fractions; what is undefined is empty.

    Behind a run's own numbers stand those of its adapted models on other tasks, of tasks ``adapted to@measured on``.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in (number for run in runs for number in [*run.numbers(), *_elsewhere(run)]):
        writer.writerow({key: csv_cell(getattr(one, key)) for key in _COLUMNS})
    return out.getvalue()


def _elsewhere(run: DocumentFile) -> list[Number]:
    return [replace(one, model=run.model) for one in numbers_elsewhere(run.document, run.path.name)]


def to_latex(runs: Sequence[DocumentFile]) -> str:
    """Tables for the booktabs package, in percent: raw beside SimpleMatch and TTM, then every metric, track by track.

    Args:
        runs: of one or more models; of a number that several have the newest of the whole task counts. Rows of a part
            of a task stand below all others.

    Returns:
        ``tabular`` environments with a comment above each; the last is of adapted models on other tasks.
    """
    numbers = sorted(newest(number for run in runs for number in run.numbers()), key=lambda one: one.limited)
    ranked = [one for one in numbers if one.track != "supervised"]  # which has tables of its own, below
    parts = [_summary(ranked, runs)] if any(one.filter == RAW for one in ranked) else []
    for track, about in TRACK_TITLES.items():
        shown = [one for one in numbers if one.track == track]
        for name in dict.fromkeys(one.filter for one in shown):
            title = f"{about} ({next(one.method for one in shown if one.filter == name)})"
            parts.append(_every_metric([one for one in shown if one.filter == name], title))
    transfers = [replace(one, model=run.model) for run in runs for one in transfers_of(run.document, run.path.name)]
    if transfers:
        rows = [list(map(latex, cells)) for cells in transfer_cells(transfers)]
        parts.append(f"% {TITLE}\n" + _tabular([list(map(latex, TRANSFER_HEAD))], rows))
    return "\n".join(parts)


def _summary(numbers: Sequence[Number], runs: Sequence[DocumentFile]) -> str:
    """What a paper's main table shows: the raw model, what matching gives, what adaptation gives, and the gains."""
    by_key = {(one.model, one.task, one.metric, one.filter): one for one in numbers}
    matching = {(run.model, task): spec.get("matching") for run in runs for task, spec in run.document.configs.items()}
    adapted = [column for column in _ADAPTED if any(one.filter == column.filter for one in numbers)]
    head = ["model", "task", RAW_COLUMN.name, SIMPLE_MATCH_COLUMN.name]
    tracks = ["", "", "zero-shot", "matching"]
    for column in adapted:
        gains = ["gain", "rel.", "err. red."] if column is TTM_COLUMN else []
        head += [column.name, *gains]
        tracks += [str(column.track).replace("_", "-"), *([""] * len(gains))]
    rows = []
    for model, task in dict.fromkeys((one.model, one.task) for one in numbers if one.filter == RAW):
        known = {m for (who, what, m, f) in by_key if (who, what, f) == (model, task, RAW)}
        raw_metric, match_metric = headline(known, matching.get((model, task)) == "global")
        raw, matched = (by_key.get((model, task, metric, RAW)) for metric in (raw_metric, match_metric))
        if raw is None and matched is None:
            continue  # a task that ranks has other metrics, which stand below
        row = [latex(model), latex(task), _cell(raw), _cell(matched)]
        for column in adapted:
            metric = raw_metric if column is OVERFITTED_COLUMN else match_metric
            value = by_key.get((model, task, metric, column.filter))
            row += [_cell(value), *(_gains(matched, value) if column is TTM_COLUMN else [])]
        rows.append([*row, _extent(raw, matched)])
    if not rows:
        return ""
    about = (
        "% Percent. raw: group score (text score if there is none); SimpleMatch, TTM, oracle: group match (assignment\n"
        "% accuracy for global tasks); overfitted: raw's metric. Gains are over SimpleMatch: points, relative, error\n"
        "% reduction. $\\pm$ is the standard deviation over seeds. Columns of different tracks are not to be ranked.\n"
    )
    return about + _tabular([[*tracks, ""], [*head, "groups"]], rows)


def _every_metric(numbers: Sequence[Number], title: str) -> str:
    metrics = list(dict.fromkeys(one.metric for one in numbers))
    by_key = {(one.model, one.task, one.metric): one for one in numbers}
    rows = [
        [latex(model), latex(task), *map(_cell, known), _extent(*known)]
        for model, task in dict.fromkeys((one.model, one.task) for one in numbers)
        for known in [[by_key.get((model, task, metric)) for metric in metrics]]
    ]
    return f"% {title}\n" + _tabular([["model", "task", *map(latex, metrics), "groups"]], rows)


def _extent(*numbers: Number | None) -> str:
    """How many groups of how many the numbers of a row are of."""
    return next((one.extent.words for one in numbers if one is not None), NOTHING)


def _tabular(heads: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        f"\\begin{{tabular}}{{ll{'r' * (len(heads[0]) - 2)}}}",
        r"\toprule",
        *(" & ".join(head) + r" \\" for head in heads),
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _cell(one: Number | None) -> str:
    if one is None or one.value is None:
        return NOTHING
    spread = "" if one.seed_std is None else f" $\\pm$ {100 * one.seed_std:.2f}"
    return f"{100 * one.value:.2f}{spread}"


def _gains(before: Number | None, after: Number | None) -> list[str]:
    if before is None or after is None or before.value is None or after.value is None:
        return [NOTHING] * 3
    relative = stats.relative_gain(before.value, after.value)
    reduction = stats.error_reduction(before.value, after.value)
    shares = [NOTHING if share is None else f"${100 * share:+.1f}\\%$" for share in (relative, reduction)]
    return [f"${100 * (after.value - before.value):+.2f}$", *shares]
