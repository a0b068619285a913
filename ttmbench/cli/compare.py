"""``ttmbench compare``: runs paired group by group, as a table, JSON or Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo, plain, warn
from ttmbench._util.file_io import to_json, write_text
from ttmbench.cli.parser import count
from ttmbench.config import split_names
from ttmbench.errors import DataError, UsageError
from ttmbench.report.paper_table import markdown, markdown_table
from ttmbench.report.terminal import TableColumn, interval_text, p_value, points, print_table
from ttmbench.results.comparison import NO_SAMPLES, adjust_for_several, compare_runs, pairs_of, read_run
from ttmbench.results.models import names_of_runs
from ttmbench.results.numbers import SLASH, UNTRAINED, Number
from ttmbench.results.reader import NOT_A_DOCUMENT, ResultsFile, read_files
from ttmbench.results.summary import clusters_note

Row = Mapping[str, Any]
"""A row of `ttmbench.results.comparison.compare_runs`."""
Tracks = Mapping[tuple[str, str, str], str | None]
"""Task, metric and method -> track."""
HEAD = (
    *("task", "metric", "method", "baseline", "other", "difference", "95% interval", "p", "p (Holm)", "won", "lost"),
    "groups",
)
_IMPORTANCE = {"difference": 4, "95% interval": 3, "p (Holm)": 3, "baseline": 2, "other": 2, "won": 1, "lost": 1}
_TESTED = "the 95% interval inverts the test of p (McNemar's, else a permutation test): it excludes 0 where p <= 0.05"
_PART = "compared on a part of its groups, so this is not a result for the task"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench compare``."""
    add = parser.add_argument
    add("runs", metavar="RESULTS", nargs="+", help="Results files, sample logs of other harnesses, or directories")
    add("--metrics", metavar="A,B", type=split_names, default=[], help="Metrics to compare (default: all)")
    add("--methods", metavar="A,B", type=split_names, help="Method A in the first run, B in the others: none,ttm")
    add("--allow_different", action="store_true", help="Also compare other task versions or data, by group IDs")
    add("--bootstrap_iters", metavar="N", type=count, default=1000, help="Resamples and permutations")
    add("--seed", metavar="N", type=int, default=0, help="Seed for the resampling")
    add("--output_path", "-o", metavar="x.json|x.md", help="Also write the comparison to a file")


def compare(options: argparse.Namespace) -> int:
    """Compare the first run with every other one, or two methods of a single run; one table per pair."""
    target = None if options.output_path is None else Path(options.output_path)
    if target is not None and target.suffix not in (".json", ".md"):
        raise UsageError(f"--output_path must end with .json or .md, got {target}")
    if options.methods is not None and len(options.methods) != 2:
        raise UsageError(f"--methods must be two names, such as none,ttm, got {','.join(options.methods)}")
    paths = [*map(Path, options.runs)]
    pairs = _pairs(paths, options.allow_different)
    runs = {run.path: run.document for pair in pairs for run in pair}
    label_of = dict(zip(runs, names_of_runs([*runs.items()]), strict=True))
    counted = set[tuple[str, ...]]()  # the raw numbers of a model are the same in each of its settings
    comparisons: list[dict[str, Any]] = []
    tracks: list[Tracks] = []
    for baseline, other in pairs:
        try:
            rows = compare_runs(
                baseline,
                other,
                methods=None if options.methods is None else tuple(options.methods),
                metrics=options.metrics,
                allow_different=options.allow_different,
                iterations=options.bootstrap_iters,
                seed=options.seed,
            )
        except UsageError as error:
            if not any(path.is_dir() for path in paths) or (other is pairs[-1][1] and not comparisons):
                raise
            warn(str(error))
            continue
        labels = [label_of[run.path] for run in (baseline, other)]
        keyed = {(labels[0].model, labels[1].model, to_json(row)): row for row in rows}
        rows = [row for key, row in keyed.items() if key not in counted]
        if labels[0].model == labels[1].model:
            rows = [row for row in rows if row["method"] not in UNTRAINED or row["won"] or row["lost"]] or rows
        counted |= {key for key, row in keyed.items() if row["method"] in UNTRAINED}
        if not rows:
            warn(f"{other.path}: its numbers are those of a comparison above")
            continue
        named = [plain(str(run.path)) for run in (baseline, other)]
        names = [label.words for label in labels]
        if names[0] == names[1] and baseline.path != other.path:
            names = [f"{name} ({path})" for name, path in zip(names, named, strict=True)]
        comparisons.append({"baseline": named[0], "other": named[1], "names": names, "rows": rows})
        tracks.append({(one.task, one.metric, one.method): one.track for one in baseline.document.numbers})
    all_rows = [row for comparison in comparisons for row in comparison["rows"]]
    adjust_for_several(all_rows, whole_table=len(comparisons) > 1)
    for comparison, track in zip(comparisons, tracks, strict=True):
        _print(comparison, track)
    adjustment = _adjustment(all_rows, len(comparisons))
    echo(f"\n{adjustment}")
    if target is not None:
        text = "\n".join(_markdown(*both) for both in zip(comparisons, tracks, strict=True)) + f"\n{adjustment}\n"
        write_text(target, text if target.suffix == ".md" else to_json({"comparisons": comparisons}))
        echo(f"comparison: {target}")
    return 0


def _pairs(paths: Sequence[Path], allow_different: bool) -> list[tuple[ResultsFile, ResultsFile]]:
    """The pairs (baseline, other) to compare; a single run is paired with itself."""
    if not any(path.is_dir() for path in paths):
        named = list(map(read_run, paths))
        return [(named[0], other) for other in named[1:] or named]
    files, skipped = read_files(paths, logs=True)
    runs = dict[Path, ResultsFile]()
    for run in files:
        try:
            if run.groups:
                runs[run.path] = run
            else:
                skipped[run.path] = NO_SAMPLES
        except DataError as error:
            skipped[run.path] = str(error)
    for path, reason in skipped.items():
        if not reason.startswith(NOT_A_DOCUMENT):  # else the configuration of saved weights, say
            warn(f"skipped: {path}: {reason.removeprefix(f'{path}: ')}")
    pairs = pairs_of([*runs.values()], allow_different)
    if len(runs) == len(paths) == 1:
        pairs = [(run, run) for run in runs.values()]
    if not pairs:
        raise DataError(
            f"{', '.join(map(str, paths))}: {len(runs)} runs with samples, and no two of them have a task with the "
            "same version and data; run both on the same task, or use --allow_different to compare groups by their IDs"
        )
    paired = {run.path for pair in pairs for run in pair}
    for path in (path for path in runs if path not in paired):
        warn(f"{path}: no other run has one of its tasks with the same version and data")
    return pairs


def _adjustment(rows: Sequence[Row], tables: int) -> str:
    """The tests over which p is adjusted."""
    most = max(row["holm_tests"] for row in rows)
    tests = "all tasks of this table, separately for each metric and method"
    if tables > 1:
        tests = f"all {tables} tables: every model, setting, task, metric and method"
    clustered = sum((row["clusters"] or row["groups"]) < row["groups"] for row in rows)
    clusters = f"; {clustered} rows are tested by clusters of groups that share images" if clustered else ""
    return f"p (Holm) is adjusted over {tests}: at most {most} {'test' if most == 1 else 'tests'}{clusters}"


def _cells(row: Row, tracks: Tracks) -> list[str]:
    task, metric = row["task"].partition(SLASH)[0], row["metric"]
    methods = row["method"].split(">")
    named = (Number(task, metric, name, None, track=tracks.get((task, metric, name))) for name in methods)
    return [
        row["task"],
        row["metric"],
        ">".join(map(attrgetter("column"), named)),
        f"{100 * row['baseline']:.2f}",
        f"{100 * row['other']:.2f}",
        points(row["difference"]),
        interval_text(row["ci"], signed=True),
        p_value(row["p"]),
        p_value(row["p_holm"]),
        str(len(row["won"])),
        str(len(row["lost"])),
        f"{row['groups']} of {row['groups_of_task'] if row['groups_of_task'] is not None else '?'}",
    ]


def _print(comparison: Row, tracks: Tracks) -> None:
    baseline, other = comparison["names"]
    columns = [
        TableColumn(name, "key" if index < 3 else "number", _IMPORTANCE.get(name, 0)) for index, name in enumerate(HEAD)
    ]
    smallest = {row["task"]: row["smallest_difference"] for row in comparison["rows"] if "cells" not in row}
    caption = "The smallest difference that could be significant: " + ", ".join(
        f"{task} {'none' if value is None else f'{100 * value:.2f}'}" for task, value in smallest.items()
    )
    rows = [_cells(row, tracks) for row in comparison["rows"]]
    print_table(columns, rows, title=f"{baseline} -> {other}: percent", caption=caption)
    for line in _remarks(comparison, tracks):
        echo(line)


def _remarks(comparison: Row, tracks: Tracks) -> list[str]:
    """Which run is which and what the columns mean; notes about parts of tasks, shared images and unlike scales."""
    rows, first = comparison["rows"], dict[str, Row]()
    for row in rows:
        first.setdefault(row["task"], row)
    paths = [comparison[name] for name in ("baseline", "other")]
    what = f"baseline is {paths[0]}, other is {paths[1]}"
    if paths[0] == paths[1]:
        what = f"of {paths[0]}, baseline is the method before >, other the one after it"
    lines = [f"{what}; won: groups in which other is better, lost: groups in which baseline is", _TESTED]
    lines += [f"{task}: {_PART}" for task in dict.fromkeys(row["task"] for row in rows if row["limited"])]
    lines += [
        f"{task}: {clusters_note(row['groups'], row['clusters'])}"
        for task, row in first.items()
        if row["clusters"] is not None and row["clusters"] < row["groups"]
    ]
    matched = dict.fromkeys(name for row in rows if (name := _matched_method(row, tracks)) is not None)
    lines += [
        f"{name} uses that captions compete, so the fair baseline of its scores is SimpleMatch (group_match), not raw"
        for name in matched
    ]
    lines += [f"{task}: mean over {row['cells']} kinds of groups" for task, row in first.items() if "cells" in row]
    unknown: dict[str, list[str]] = {}
    for task, row in first.items():
        if row.get("clusters_unknown"):
            unknown.setdefault(row["clusters_unknown"], []).append(task)
    return lines + [f"{', '.join(of)}: {why}; every group is treated as independent" for why, of in unknown.items()]


def _matched_method(row: Row, tracks: Tracks) -> str | None:
    """The method of a row that compares raw scores with those of a method that uses a matching, if it is one."""
    before, _, after = row["method"].partition(">")
    task, metric = row["task"].partition(SLASH)[0], row["metric"]
    of_both = [tracks.get((task, metric, name)) for name in (before, after)]
    return after if of_both == ["zero_shot", "matching"] else None


def _markdown(comparison: Row, tracks: Tracks) -> str:
    rows = [_cells(row, tracks) for row in comparison["rows"]]
    names = [f'"{markdown(name)}"' for name in comparison["names"]]
    remarks = "".join(f"\n{markdown(line)}\n" for line in _remarks(comparison, tracks))
    table = markdown_table([*map(markdown, HEAD)], ([*map(markdown, row)] for row in rows), 3)
    return f"{names[0]} -> {names[1]}, percent\n\n{table}{remarks}"
