"""Numbers as CSV, and as LaTeX in the way that papers print them. Everything that came from data is escaped."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from ttmbench import stats
from ttmbench._util.escape import csv_cell, latex
from ttmbench.report.export.numbers import Number, Run, newest, numbers_of
from ttmbench.report.leaderboard_formats import TITLES
from ttmbench.report.terminal import NOTHING, headline
from ttmbench.results.summary import ORACLE, RAW, SIMPLE_MATCH, TRACK_ORDER, TTM

_COLUMNS = [
    *("model", "task", "version", "metric", "filter", "method", "track", "value", "stderr", "ci_low", "ci_high"),
    *("seed_std", "seeds", "chance", "ties", "groups", "groups_of_task", "data", "date", "file"),
]
assert set(_COLUMNS) == {column.name for column in fields(Number)} | {"method"}
_ADAPTED = (("TTM", TTM), ("overfitted", SIMPLE_MATCH), ("oracle", ORACLE))


def export_csv(
    runs: Sequence[Run], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``csv`` as `ttmbench.report.export.Exporter` says."""
    return {target: to_csv(runs)}, {}


def export_latex(
    runs: Sequence[Run], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``latex`` as `ttmbench.report.export.Exporter` says."""
    return {target: to_latex(runs)}, {}


def to_csv(runs: Sequence[Run]) -> str:
    """One line a number, of every run and filter; fractions; what is undefined is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in (number for run in runs for number in numbers_of(run)):
        writer.writerow({key: csv_cell(value) for key, value in {**asdict(one), "method": one.method}.items()})
    return out.getvalue()


def to_latex(runs: Sequence[Run]) -> str:
    """Tables for the booktabs package, in percent: raw beside SimpleMatch and TTM, then every metric, track by track.

    Args:
        runs: of one or more models; of a number that several have the newest counts.

    Returns:
        ``tabular`` environments with a comment above each.
    """
    numbers = newest(number for run in runs for number in numbers_of(run))
    parts = [_summary(numbers, runs)] if any(one.filter == RAW for one in numbers) else []
    for track in TRACK_ORDER:
        shown = [one for one in numbers if one.track == track]
        for name in dict.fromkeys(one.filter for one in shown):
            title = f"{TITLES[track]} ({next(one.method for one in shown if one.filter == name)})"
            parts.append(_every_metric([one for one in shown if one.filter == name], title))
    return "\n".join(parts)


def _summary(numbers: Sequence[Number], runs: Sequence[Run]) -> str:
    """What a paper's main table shows: the raw model, what matching gives, what adaptation gives, and the gains."""
    by_key = {(one.model, one.task, one.metric, one.filter): one for one in numbers}
    matching = {
        (run.model, task): spec.get("matching") for run in runs for task, spec in run.document["configs"].items()
    }
    adapted = [(title, name) for title, name in _ADAPTED if any(one.filter == name for one in numbers)]
    head = ["model", "task", "raw", "SimpleMatch"]
    tracks = ["", "", "zero-shot", "matching"]
    for title, name in adapted:
        gains = ["gain", "rel.", "err. red."] if name == TTM else []
        head += [title, *gains]
        tracks += ["oracle" if name == ORACLE else "test-time", *([""] * len(gains))]
    rows = []
    for model, task in dict.fromkeys((one.model, one.task) for one in numbers if one.filter == RAW):
        known = {f"{m},{f}": one.value for (who, what, m, f), one in by_key.items() if (who, what) == (model, task)}
        raw_metric, match_metric = headline(known, matching.get((model, task)) == "global")
        raw, matched = (by_key.get((model, task, metric, RAW)) for metric in (raw_metric, match_metric))
        row = [latex(model), latex(task), _cell(raw), _cell(matched)]
        for _, name in adapted:
            value = by_key.get((model, task, raw_metric if name == SIMPLE_MATCH else match_metric, name))
            row += [_cell(value), *(_gains(matched, value) if name == TTM else [])]
        rows.append(row)
    about = (
        "% Percent. raw: group score (text score if there is none); SimpleMatch, TTM, oracle: group match (assignment\n"
        "% accuracy for global tasks); overfitted: raw's metric. Gains are over SimpleMatch: points, relative, error\n"
        "% reduction. $\\pm$ is the standard deviation over seeds. Columns of different tracks are not to be ranked.\n"
    )
    return about + _tabular([tracks, head], rows, 2)


def _every_metric(numbers: Sequence[Number], title: str) -> str:
    metrics = list(dict.fromkeys(one.metric for one in numbers))
    by_key = {(one.model, one.task, one.metric): one for one in numbers}
    rows = [
        [latex(model), latex(task), *(_cell(by_key.get((model, task, metric))) for metric in metrics)]
        for model, task in dict.fromkeys((one.model, one.task) for one in numbers)
    ]
    return f"% {title}\n" + _tabular([["model", "task", *map(latex, metrics)]], rows, 2)


def _tabular(heads: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], left: int) -> str:
    lines = [
        f"\\begin{{tabular}}{{{'l' * left}{'r' * (len(heads[0]) - left)}}}",
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
