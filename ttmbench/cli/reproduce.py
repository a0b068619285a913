"""``ttmbench reproduce``: a paper's table compared with runs, and the missing runs."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from ttmbench._util.console import echo, print_line, warn
from ttmbench._util.file_io import to_json, write_text
from ttmbench.cli.parser import add_run_options
from ttmbench.config import split_names
from ttmbench.errors import INTERRUPTED, AssertionNotMet, UsageError
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.report.terminal import NOTHING, TableColumn, print_table, spread_text
from ttmbench.reproduce.compared import ComparedRow, Planned, Verdict, compare, plan, select
from ttmbench.reproduce.tables import PublishedTable, load_table, shipped_tables
from ttmbench.results.numbers import Number
from ttmbench.results.reader import walk_documents

NAMED = 6  # rows that are named behind a remark
_PASSED_ON = ("device", "dtype", "batch_size", "offline", "data_dir", "include_path")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench reproduce``."""
    add = parser.add_argument
    add("name", metavar="TABLE", nargs="?", help="Table name or YAML file (default: list the tables)")
    add("--runs", metavar="DIR", help="Directory with results files to compare")
    add("--models", "-M", metavar="A,B", type=split_names, help="Only rows for these models")
    add("--tasks", "-t", metavar="A,B", type=split_names, help="Only rows for these tasks")
    add("--run", action="store_true", help="Run missing evaluations, into the --runs directory")
    add("--dry_run", action="store_true", help="Print the commands for missing evaluations and exit")
    add("--allow_missing", action="store_true", help="Exit code 0 if every available number agrees")
    add_run_options(parser, *_PASSED_ON, title="options for --run")
    add("--output_path", "-o", metavar="x.json", help="Also write the comparison as JSON")


def reproduce(options: argparse.Namespace) -> int:
    """List tables, or compare one with a folder of runs; AssertionNotMet if it is not reproduced."""
    if options.name is None:
        columns = (TableColumn("table", "key"), TableColumn("numbers", "number"), TableColumn("source"))
        tables = [load_table(name) for name in shipped_tables()]
        sources = [f"{table.spec.paper} ({table.spec.source}, {table.spec.where})" for table in tables]
        print_table(columns, [[one.name, str(len(one.numbers)), by] for one, by in zip(tables, sources, strict=True)])
        return 0
    if options.run and options.dry_run:
        raise UsageError("--run cannot be combined with --dry_run")
    if options.runs is None and (options.run or options.dry_run):
        raise UsageError(f"--{'run' if options.run else 'dry_run'} needs --runs DIR, the directory with the results")
    models, tasks = options.models or [], options.tasks or []
    table = select(load_table(options.name), models, tasks)
    registry = build_registry(options.include_path or [])
    if options.runs is None:
        _print(table, compare(table, [], registry), with_ours=False)
        return 0
    folder = Path(options.runs)
    if not folder.is_dir() and (folder.exists() or not (options.run or options.dry_run)):
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"--runs must be a directory with results files, and {folder} {what}")
    rows = _compare(table, folder, registry)
    failures: list[str] = []
    if options.run or options.dry_run:
        common = {key: getattr(options, key) for key in _PASSED_ON if getattr(options, key)}
        planned = list(plan(table, rows, registry, {**common, "output_path": str(folder)}))
        if options.dry_run:
            for run in planned:
                is_refused = run.paid and run.model not in models
                remark = "  # uses a paid server: --run needs --models with its name" if is_refused else ""
                echo("\n".join(run.commands) + remark)
            if not planned:
                echo("nothing is missing")
            return 0
        failures = _run(planned, models)
        rows = _compare(table, folder, registry)
    _print(table, rows, with_ours=True)
    for failure in failures:
        echo(f"failed: {failure}")
    counts = _counts(rows)
    bad = [Verdict.DIFFERS] if options.allow_missing else [Verdict.DIFFERS, Verdict.MISSING, Verdict.OTHER]
    reasons = [f"{counts[verdict]} of {len(rows)} numbers: {verdict}" for verdict in bad if counts[verdict]]
    reasons += [] if counts[Verdict.AGREES] else ["no number agrees"]
    if options.output_path:
        spec, shown = table.spec, [asdict(row) for row in rows]
        about = {"table": table.name, "source": f"{spec.source}, {spec.where}", "rules": spec.rules}
        found = {"reproduced": not reasons, "counts": counts, "failures": failures, "rows": shown}
        document = {**about, "tolerance": spec.tolerance.model_dump(), **found}
        write_text(Path(options.output_path), to_json(document))
        echo(f"reproduction: {options.output_path}")
    if reasons:
        raise AssertionNotMet(f"{table.name} is not reproduced: {'; '.join(reasons)}")
    return 0


def _compare(table: PublishedTable, folder: Path, registry: Registry) -> list[ComparedRow]:
    documents = []
    for path, document in walk_documents(folder) if folder.is_dir() else ():
        if isinstance(document, str):
            warn(f"skipped: {path}: {document}")
        else:
            documents.append((path, document))
    return compare(table, documents, registry)


def _run(planned: Sequence[Planned], named: Sequence[str]) -> list[str]:
    """Carry out the commands, each of which prints its results and errors; returns those that failed."""
    from ttmbench.cli import main

    failures = []
    for run in planned:
        if run.paid and run.model not in named:
            failures.append(f"{run.model}: not run because its server is paid; --models {run.model} runs it")
            continue
        for command in run.commands:
            echo(command, flush=True)
            sys.argv = shlex.split(command)  # the command that the results record
            code = main(sys.argv[1:])
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            if code:
                failures.append(f"{command} (exit code {code})")
                break
    return failures


def _counts(rows: Sequence[ComparedRow]) -> dict[str, int]:
    counts = Counter(row.verdict for row in rows)
    return {verdict: counts[verdict] for verdict in Verdict}


def _print(table: PublishedTable, rows: Sequence[ComparedRow], *, with_ours: bool) -> None:
    spec = table.spec
    echo(f"{spec.paper}, {spec.source}, {spec.where}: percent")
    echo(f"{spec.shows[:1].upper()}{spec.shows[1:]}.")
    for subject, rule in spec.rules.items():
        print_line(f"{spec.source}, {subject}: {rule}.")
    has_tracks = len({row.number.track for row in rows}) > 1
    columns = [TableColumn(name, "key") for name in ("model", *["track"] * has_tracks, "method: metric")]
    columns.append(TableColumn("published", "number", 1))
    if with_ours:
        columns += [TableColumn("ours", "number", 1), TableColumn("verdict", importance=2)]
        columns += [TableColumn(name, "number") for name in ("difference", "allowed", "groups")]
    else:
        columns.append(TableColumn("here"))
    shown = list[list[str]]()
    for task, same in groupby(rows, lambda row: row.number.task):
        shown.append([task])
        for row in same:
            number = row.number
            cells = [number.model, *[str(number.track).replace("_", " ")] * has_tracks]
            cells += [f"{number.column}: {number.metric.replace('_', ' ')}", _percent(number, spec.decimals)]
            shown.append([*cells, *(_ours(row, spec.decimals) if with_ours else (_here(row, table),))])
    print_table(columns, shown)
    for line in _remarks(table, rows):
        echo(line)
    if with_ours:
        counts = ", ".join(f"{verdict} {count}" for verdict, count in _counts(rows).items() if count)
        echo(f"{len(rows)} numbers: {counts}")


def _ours(row: ComparedRow, decimals: int) -> list[str]:
    """The cells of a row from our number on."""
    if row.ours is None:
        return [NOTHING, row.verdict, *[NOTHING] * 3]
    ours = row.ours.number
    points = round(100 * ((ours.value or 0) - (row.number.value or 0)), decimals)
    allowed = NOTHING if row.allowed is None else f"{100 * row.allowed:.{max(2, decimals)}f}"
    return [_percent(ours, decimals), row.verdict, f"{points or 0:+.{decimals}f}", allowed, ours.extent.words]


def _here(row: ComparedRow, table: PublishedTable) -> str:
    if row.verdict == Verdict.NOT_HERE:
        return NOTHING
    entry = table.spec.models[row.number.model]
    first = "" if entry.finetuned is None else f" fine-tuned on {', '.join(entry.finetuned.tasks)},"
    return f"{entry.model}{first} on {', '.join(row.tasks)}"


def _remarks(table: PublishedTable, rows: Sequence[ComparedRow]) -> list[str]:
    """The notes below the table, each once with the first rows that it is about; the JSON document has all."""
    rows_of: dict[str, dict[str, None]] = {}
    for row in rows:
        note = table.spec.models[row.number.model].note
        remarks = [f"{row.verdict}: {row.why}"] if row.why else []
        remarks += [] if row.ours is None else [*row.ours.notes, *([note] if note else [])]
        for remark in remarks:
            rows_of.setdefault(remark, {})[f"{row.number.task} {row.number.model}"] = None
    lines = []
    for remark, names in rows_of.items():
        more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"{remark} ({'; '.join(list(names)[:NAMED])}{more})")
    return lines


def _percent(number: Number, decimals: int) -> str:
    value = f"{100 * (number.value or 0):.{decimals}f}"
    return value + spread_text(number.seed_std)
