"""``ttmbench compare``: runs paired group by group, as a table, JSON or Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.collector import seldom_collecting
from ttmbench._util.console import as_shown, echo, printable
from ttmbench._util.escape import markdown
from ttmbench._util.files import to_json, write_atomically
from ttmbench.cli.options import add_verbosity, count, names
from ttmbench.errors import UsageError
from ttmbench.report.table import TableColumn, print_table
from ttmbench.report.terminal import p_value
from ttmbench.results.clusters import clusters_note
from ttmbench.results.comparison import StoredRun, compare_runs, pairs_within, read_run
from ttmbench.results.labels import SLASH, key_of, name_of
from ttmbench.results.models import stated_model, tell_apart

Tracks = Mapping[str, Mapping[str, str]]  # task -> metric,filter -> track
HEAD = (
    *("task", "metric", "filter", "baseline", "other", "difference", "95% interval", "p", "p (Holm)", "won", "lost"),
    "groups",
)

_PART = "compared on a part of its groups, so this is no result of the task"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench compare``."""
    parser.add_argument(
        "runs", metavar="RESULTS", nargs="+", help="results documents of runs with --log_samples, or of ttmbench score"
    )
    parser.add_argument("--metrics", metavar="A,B", type=names, default=[], help="these only")
    parser.add_argument("--filters", metavar="A,B", type=names, help="A of the first run with B of the others")
    parser.add_argument("--allow_different", action="store_true", help="also other versions or data, by shared ids")
    parser.add_argument("--bootstrap_iters", metavar="N", type=count, default=1000, help="resamples and permutations")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the resampling")
    parser.add_argument("--output_path", "-o", metavar="x.json|x.md", help="also write it")
    add_verbosity(parser)


@seldom_collecting()  # hundreds of documents are millions of objects, and all of them stay
def compare(options: argparse.Namespace) -> int:
    """Compares the first run with every other one, or the filters of a single run; prints a table a pair."""
    runs = [read_run(Path(name)) for name in options.runs]
    called = dict(
        zip((str(run.path) for run in runs), tell_apart([stated_model(run.document) for run in runs]), strict=True)
    )
    comparisons = []
    for other in runs[1:] or runs:
        rows = _compare(runs[0], other, options)
        rows = [row for row in rows if not options.metrics or row["metric"] in options.metrics]
        if not rows:
            raise UsageError(f"--metrics {','.join(options.metrics)}: the runs share no such metric")
        comparisons.append(
            {
                "baseline": as_shown(str(runs[0].path)),
                "other": as_shown(str(other.path)),
                "names": [called[str(run.path)] for run in (runs[0], other)],
                "rows": rows,
            }
        )
    tracks = runs[0].document["tracks"]
    for comparison in comparisons:
        _print(comparison, tracks)
    if options.output_path:
        _write(Path(options.output_path), comparisons, tracks)
    return 0


def _compare(baseline: StoredRun, other: StoredRun, options: argparse.Namespace) -> list[dict[str, Any]]:
    settings = {
        "allow_different": options.allow_different,
        "iterations": options.bootstrap_iters,
        "seed": options.seed,
    }
    if options.filters is not None:
        if len(options.filters) != 2:
            raise UsageError("--filters takes two names, such as none,ttm")
        return compare_runs(baseline, other, filters=(options.filters[0], options.filters[1]), **settings)
    if baseline is other:
        pairs = pairs_within(baseline.values)
        if not pairs:
            raise UsageError(f"{baseline.path} holds raw numbers only; name a second run to compare it with")
        return [row for pair in pairs for row in compare_runs(baseline, other, filters=pair, **settings)]
    return compare_runs(baseline, other, **settings)


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
    unknown = [task for task, row in first.items() if row["clusters"] is None and "cells" not in row]
    if unknown:
        lines.append(
            f"{', '.join(unknown)}: the samples do not say which groups share images (those of stored scores and of "
            "older versions do not), so every group is taken for independent"
        )
    return lines


def _write(path: Path, comparisons: Sequence[Mapping[str, Any]], tracks: Tracks) -> None:
    if path.suffix == ".md":
        text = "\n".join(_markdown(comparison, tracks) for comparison in comparisons)
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
