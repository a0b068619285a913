"""``ttmbench export``: results in the formats of lm-evaluation-harness, the Hub, spreadsheets and papers."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, put, warn
from ttmbench._util.file_io import write_text
from ttmbench.config import split_names
from ttmbench.errors import UsageError
from ttmbench.report.exporters import FORMATS
from ttmbench.results.numbers import merged, same_rows
from ttmbench.results.reader import read_files

_TAKEN_BY = {"source_url": "model-index", "metrics": "latex", "mark_best": "latex"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench export``."""
    add = parser.add_argument
    add("runs", metavar="RESULTS", nargs="+", help="Results files or directories")
    add("--to", required=True, metavar="FORMAT", choices=list(FORMATS), help=f"One of {', '.join(FORMATS)}")
    add("--source_url", metavar="URL", help="Web page with the results, for model-index")
    add("--metrics", metavar="A,B", type=split_names, default=[], help="LaTeX: these metrics (default: all)")
    add("--mark_best", action="store_true", help="LaTeX: print the best value in bold")
    add("--output_path", "-o", metavar="FILE|DIR", help="Output file or directory (default: standard output)")


def export(options: argparse.Namespace) -> int:
    """Write runs in a format and list what was skipped."""
    given = {name: value for name in _TAKEN_BY if (value := getattr(options, name))}
    for name in given:
        if options.to != _TAKEN_BY[name]:
            raise UsageError(f"--to must be {_TAKEN_BY[name]} for --{name}, got {options.to}")
    runs, skipped = read_files([Path(name) for name in options.runs])
    for path, why in skipped.items():
        warn(f"skipped: {path}: {why}")
    if not any(run.document.results for run in runs):
        raise UsageError(f"{', '.join(options.runs)}: there is no finished task to export")
    numbers = [number for run in runs for number in (*run.numbers, *run.numbers_elsewhere)]
    if options.to in ("csv", "latex") and (older := sum(len(merged(same)[1]) for same in same_rows(numbers))):
        warn(f"skipped: {older} older numbers of the same configurations")
    for run in runs:
        if run.document.status != "done":
            warn(f"{run.path}: status {run.document.status}: only finished tasks are exported")
    runs.sort(key=lambda run: run.model if run.called.setting else "")  # a model's settings stand together
    texts, left_out = FORMATS[options.to](runs, Path(options.output_path) if options.output_path else None, **given)
    for task, why in left_out.items():
        warn(f"skipped: {task}: {why}")
    for file, text in texts.items():
        if file is None:
            put(text)
        else:
            write_text(file, text)
            echo(str(file))
    return 0
