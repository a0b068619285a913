"""``ttmbench compare``: runs paired group by group, as a table, JSON or Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.console import as_shown, echo, markdown, printable, warn
from ttmbench._util.files import to_json, write_atomically
from ttmbench.cli.options import add_verbosity, count, names
from ttmbench.errors import DataError, UsageError
from ttmbench.report.table import TableColumn, print_table
from ttmbench.report.terminal import p_value
from ttmbench.results.clusters import clusters_note
from ttmbench.results.comparison import adjust_for_several, compare_runs, pairs_of
from ttmbench.results.labels import SLASH, key_of, name_of
from ttmbench.results.reader import NOT_A_DOCUMENT
from ttmbench.results.settings import names_of_runs
from ttmbench.results.stored_runs import StoredRun, read_run, runs_in

Tracks = Mapping[str, Mapping[str, str]]  # task -> metric,filter -> track
HEAD = (
    *("task", "metric", "filter", "baseline", "other", "difference", "95% interval", "p", "p (Holm)", "won", "lost"),
    "groups",
)

_PART = "compared on a part of its groups, so this is no result of the task"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench compare``."""
    parser.add_argument(
        "runs", metavar="RESULTS", nargs="+", help="Results files or directories, from `run --log_samples` or `score`"
    )
    parser.add_argument("--metrics", metavar="A,B", type=names, default=[], help="Metrics to compare (default: all)")
    parser.add_argument(
        "--filters", metavar="A,B", type=names, help="Filter A in the first run, B in the others: none,ttm"
    )
    parser.add_argument(
        "--allow_different", action="store_true", help="Also compare other task versions or data, by group IDs"
    )
    parser.add_argument("--bootstrap_iters", metavar="N", type=count, default=1000, help="Resamples and permutations")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="Seed for the resampling")
    parser.add_argument("--output_path", "-o", metavar="x.json|x.md", help="Also write the comparison to a file")
    add_verbosity(parser)


def compare(options: argparse.Namespace) -> int:
    """Compares the first run with every other one, or the filters of a single run; prints a table a pair."""
    runs, pairs = _runs(options)
    names = names_of_runs([(run.path, run.document) for run in runs])
    called = {str(run.path): name.words for run, name in zip(runs, names, strict=True)}
    comparisons: list[dict[str, Any]] = []
    tracks: list[Tracks] = []
    for baseline, other in pairs:
        try:
            rows = _compare(baseline, other, options)
        except UsageError as error:
            if not _has_folder(options) or (other is pairs[-1][1] and not comparisons):
                raise
            warn(str(error))
            continue
        comparisons.append(
            {
                "baseline": as_shown(str(baseline.path)),
                "other": as_shown(str(other.path)),
                "names": _names(baseline, other, called),
                "rows": rows,
            }
        )
        tracks.append(baseline.document.tracks)
    shown = [row for comparison in comparisons for row in comparison["rows"]]
    adjust_for_several(shown, whole_table=len(comparisons) > 1)
    for comparison, of in zip(comparisons, tracks, strict=True):
        _print(comparison, of)
    echo()
    echo(_adjusted(shown, len(comparisons)))
    if options.output_path:
        _write(Path(options.output_path), comparisons, tracks)
    return 0


def _runs(options: argparse.Namespace) -> tuple[list[StoredRun], list[tuple[StoredRun, StoredRun]]]:
    """The runs that were given, and which are compared: (baseline, other), the same twice for a single run."""
    if not _has_folder(options):
        runs = [read_run(Path(name)) for name in options.runs]
        return runs, [(runs[0], other) for other in runs[1:] or runs]
    runs, skipped = [], dict[Path, str]()
    for path in map(Path, options.runs):
        some, why = runs_in(path) if path.is_dir() else ([read_run(path)], {})
        runs, skipped = [*runs, *some], {**skipped, **why}
    for path, reason in skipped.items():
        if reason.startswith(NOT_A_DOCUMENT):
            continue  # the configuration of saved weights, say
        warn(f"skipped: {reason}" if reason.startswith(str(path)) else f"{path} is skipped: {reason}")
    pairs = [(run, run) for run in runs] if len(runs) == 1 else pairs_of(runs, options.allow_different)
    if not pairs:
        raise DataError(
            f"{', '.join(options.runs)}: {len(runs)} runs with samples, and no two of them have a task with the same "
            "version and data; run the models with --log_samples on the same task"
        )
    paired = {run.path for pair in pairs for run in pair}
    for run in runs:
        if run.path not in paired:
            warn(f"{run.path}: no other run here has its tasks with the same version and data")
    return runs, pairs


def _has_folder(options: argparse.Namespace) -> bool:
    return any(Path(name).is_dir() for name in options.runs)


def _names(baseline: StoredRun, other: StoredRun, called: Mapping[str, str]) -> list[str]:
    """What the two models are called; with their files where that is the same."""
    names = [called[str(run.path)] for run in (baseline, other)]
    if names[0] == names[1] and baseline.path != other.path:
        return [f"{name} ({as_shown(str(run.path))})" for name, run in zip(names, (baseline, other), strict=True)]
    return names


def _adjusted(rows: Sequence[Mapping[str, Any]], tables: int) -> str:
    """What the adjusted p takes into account."""
    most = max(row["holm_tests"] for row in rows)
    of = "all tasks of this table, for each metric and filter apart"
    if tables > 1:
        of = f"all of the {tables} tables: every model, setting, task, metric and filter"
    clustered = sum((row["clusters"] or row["groups"]) < row["groups"] for row in rows)
    how = f"; {clustered} of the rows have tests by clusters of groups that share images" if clustered else ""
    return f"p (Holm) is adjusted over {of}: at most {most} {'test' if most == 1 else 'tests'}{how}"


def _compare(baseline: StoredRun, other: StoredRun, options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.filters is not None and len(options.filters) != 2:
        raise UsageError("--filters takes two names, such as none,ttm")
    return compare_runs(
        baseline,
        other,
        filters=None if options.filters is None else (options.filters[0], options.filters[1]),
        metrics=options.metrics,
        allow_different=options.allow_different,
        iterations=options.bootstrap_iters,
        seed=options.seed,
    )


def _cells(row: Mapping[str, Any], tracks: Tracks) -> list[str]:
    mine = tracks.get(row["task"].partition(SLASH)[0], {})
    interval = "-" if row["ci"] is None else f"{100 * row['ci'][0]:+.1f} .. {100 * row['ci'][1]:+.1f}"
    return [
        row["task"],
        row["metric"],
        ">".join(
            name_of(name, mine.get(key_of(row["metric"], name)), row["metric"]) for name in row["filter"].split(">")
        ),
        f"{100 * row['baseline']:.2f}",
        f"{100 * row['other']:.2f}",
        f"{100 * row['difference']:+.2f}",
        interval,
        p_value(row["p"]),
        p_value(row["p_holm"]),
        str(len(row["won"])),
        str(len(row["lost"])),
        f"{row['groups']} of {row['groups_of_task'] if row['groups_of_task'] is not None else '?'}",
    ]


def _print(comparison: Mapping[str, Any], tracks: Tracks) -> None:
    comparison = printable(comparison)
    one, other = comparison["names"]
    columns = [TableColumn(name, "key" if index < 3 else "number") for index, name in enumerate(HEAD)]
    smallest = {row["task"]: row["smallest_difference"] for row in comparison["rows"] if "cells" not in row}
    caption = "The smallest difference that could be significant: " + ", ".join(
        f"{task} {'none' if value is None else f'{100 * value:.2f}'}" for task, value in smallest.items()
    )
    rows = [_cells(row, tracks) for row in comparison["rows"]]
    print_table(columns, rows, title=f"{one} -> {other}: percent", caption=caption)
    for line in _remarks(comparison["rows"]):
        echo(line)


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader should know: of parts of tasks, and of groups that share images, or may."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row["task"], row)
    lines = [f"{task}: {_PART}" for task in dict.fromkeys(row["task"] for row in rows if row["limited"])]
    lines += [
        f"{task}: {clusters_note(row['groups'], row['clusters'])}"
        for task, row in first.items()
        if row["clusters"] is not None and row["clusters"] < row["groups"]
    ]
    lines += [f"{task}: mean over {row['cells']} kinds of groups" for task, row in first.items() if "cells" in row]
    unknown = {task: row["clusters_unknown"] for task, row in first.items() if row.get("clusters_unknown")}
    for why in dict.fromkeys(unknown.values()):
        tasks = ", ".join(task for task in unknown if unknown[task] == why)
        lines.append(f"{tasks}: {why}; every group is treated as independent")
    return lines


def _write(path: Path, comparisons: Sequence[Mapping[str, Any]], tracks: Sequence[Tracks]) -> None:
    if path.suffix == ".md":
        text = "\n".join(_markdown(one, of) for one, of in zip(comparisons, tracks, strict=True))
        rows = [row for comparison in comparisons for row in comparison["rows"]]
        text += f"\n{_adjusted(rows, len(comparisons))}\n"
    elif path.suffix == ".json":
        text = to_json({"comparisons": list(comparisons)})
    else:
        raise UsageError(f"--output_path {path}: compare writes .json or .md")
    write_atomically(path, lambda target: target.write_text(text, encoding="utf-8"))
    echo(f"comparison: {path}")


def _markdown(comparison: Mapping[str, Any], tracks: Tracks) -> str:
    rows = [HEAD, ["---"] * 3 + ["---:"] * (len(HEAD) - 3), *(_cells(row, tracks) for row in comparison["rows"])]
    lines = ["| " + " | ".join(map(str, row) if row is rows[1] else map(markdown, row)) + " |" for row in rows]
    names = [f'"{markdown(name)}"' for name in comparison["names"]]
    remarks = "".join(f"\n{markdown(line)}\n" for line in _remarks(comparison["rows"]))
    return f"{names[0]} -> {names[1]}, percent\n\n" + "\n".join(lines) + "\n" + remarks
