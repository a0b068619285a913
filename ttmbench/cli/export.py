"""``ttmbench export``: results in the formats of lm-evaluation-harness, the Hub, spreadsheets and papers."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, put, warn
from ttmbench._util.files import write_text
from ttmbench._util.option_values import split_names
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import load_target
from ttmbench.report.export import EXPORTERS
from ttmbench.results.numbers import merged, read_runs, same_rows

FORMATS = {exporter.name: exporter for exporter in EXPORTERS}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench export``."""
    add = parser.add_argument
    add("runs", metavar="RESULTS", nargs="+", help="Results files or directories")
    add("--to", required=True, metavar="FORMAT", help=f"One of {', '.join(FORMATS)}")
    add("--source_url", metavar="URL", help="Web page with the results, for the Hub formats")
    add("--metrics", metavar="A,B", type=split_names, default=[], help="LaTeX: these metrics (default: all)")
    add(
        "--columns",
        metavar="A,B",
        type=split_names,
        default=[],
        help="LaTeX: columns of the first table (default: all)",
    )
    add("--mark_best", action="store_true", help="LaTeX: print the best value in bold")
    add("--output_path", "-o", metavar="FILE|DIR", help="Output file or directory (default: standard output)")


def export(options: argparse.Namespace) -> int:
    """Write runs in a format and list what was skipped."""
    if options.to not in FORMATS:
        raise UsageError(f"--to must be one of {', '.join(FORMATS)}, got {options.to}")
    exporter = FORMATS[options.to]
    if options.source_url and not exporter.takes_source_url:
        others = " or ".join(name for name, exporter in FORMATS.items() if exporter.takes_source_url)
        raise UsageError(f"--to must be {others} for --source_url, got {options.to}")
    choices = {name: value for name in ("metrics", "columns", "mark_best") if (value := getattr(options, name))}
    if choices and not exporter.takes_choices:
        raise UsageError(f"--to must be latex for --{next(iter(choices))}, got {options.to}")
    runs, skipped = read_runs([Path(name) for name in options.runs])
    for path, why in skipped.items():
        warn(f"skipped: {path}: {why}")
    for run in runs:
        if run.document.status != "done":
            warn(f"{run.path}: status {run.document.status}: only finished tasks are exported")
    numbers = [number for run in runs for number in (*run.numbers(), *run.numbers_elsewhere())]
    older = sum(len(replaced) for _, replaced in map(merged, same_rows(numbers)))
    if older and exporter.name in ("csv", "latex"):
        warn(f"skipped: {older} older numbers of the same configurations")
    target = Path(options.output_path) if options.output_path else None
    texts, skipped_tasks = load_target(exporter.target)(runs, target, options.source_url, **choices)
    for task, why in skipped_tasks.items():
        warn(f"skipped: {task}: {why}")
    for file, text in texts.items():
        if file is None:
            put(text)
        else:
            write_text(file, text)
            echo(str(file))
    return 0
