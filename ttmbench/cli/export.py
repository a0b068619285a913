"""``ttmbench export``: the table of a paper, and results in the formats of other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, put, warn
from ttmbench._util.file_io import write_text
from ttmbench.config import split_names
from ttmbench.errors import UsageError
from ttmbench.report.exporters import FORMATS
from ttmbench.report.paper_table import TABLES, paper_table
from ttmbench.results.numbers import merged, same_rows
from ttmbench.results.reader import read_files

_HELP = {
    "rows": "Table: models, as globs (default: all)",
    "columns": "Table: tasks, tag values and methods, as globs, in this order (default: all)",
    "metrics": "Table: metrics (default: group score of raw scores, else group match)",
    "baseline": "Table: method or model that gains are over (default: the same model without training)",
    "by": "Table: a column for each value of this tag",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench export``."""
    add, formats = parser.add_argument, [*TABLES, *FORMATS]
    add("runs", metavar="RESULTS", nargs="+", help="Results files or directories")
    add("--to", required=True, metavar="FORMAT", choices=formats, help=f"One of {', '.join(formats)}")
    add("--source_url", metavar="URL", help="Web page with the results, for model-index")
    for name in ("rows", "columns", "metrics"):
        add(f"--{name}", metavar="A,B", type=split_names, default=[], help=_HELP[name])
    add("--baseline", metavar="NAME", default="", help=_HELP["baseline"])
    add("--by", metavar="TAG", default="", help=_HELP["by"])
    add("--output_path", "-o", metavar="FILE|DIR", help="Output file or directory (default: standard output)")


def export(options: argparse.Namespace) -> int:
    """Write runs in a format and list what was skipped."""
    given = {name: value for name in ("source_url", *_HELP) if (value := getattr(options, name))}
    for name in given:
        takes = list(TABLES) if name in _HELP else ["model-index"]
        if options.to not in takes:
            raise UsageError(f"--to must be {', '.join(takes)} for --{name}, got {options.to}")
    runs, skipped = read_files([Path(name) for name in options.runs], logs=True)
    for path, why in skipped.items():
        warn(f"skipped: {path}: {why}")
    if not any(run.document.results for run in runs):
        raise UsageError(f"{', '.join(options.runs)}: there is no finished task to export")
    numbers = [number for run in runs for number in (*run.numbers, *run.numbers_elsewhere)]
    parts = map(merged, same_rows(numbers)) if options.to in (*TABLES, "numbers") else ()
    if older := sum(one.value != newest.value for newest, left in parts for one in left):
        warn(f"skipped: {older} older numbers of the same configurations, which differ")
    for run in runs:
        if run.document.status != "done":
            warn(f"{run.path}: status {run.document.status}: only finished tasks are exported")
    runs.sort(key=lambda run: run.model if run.called.setting else "")  # the settings of a model are adjacent
    target = Path(options.output_path) if options.output_path else None
    if options.to in TABLES:
        texts, left_out = {target: TABLES[options.to](paper_table(runs, **given))}, dict[str, str]()
    else:
        texts, left_out = FORMATS[options.to](runs, target, **given)
    for task, why in left_out.items():
        warn(f"skipped: {task}: {why}")
    for file, text in texts.items():
        if file is None:
            put(text)
        else:
            write_text(file, text)
            echo(str(file))
    return 0
