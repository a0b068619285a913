"""``ttmbench export``: results in the formats of lm-evaluation-harness, the hub, spreadsheets and papers."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, put, warn
from ttmbench._util.files import write_text
from ttmbench.cli.options import add_verbosity, names
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import load_target
from ttmbench.report.export import EXPORTERS
from ttmbench.results.numbers import read_runs

FORMATS = {exporter.name: exporter for exporter in EXPORTERS}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench export``."""
    parser.add_argument("runs", metavar="RESULTS", nargs="+", help="Results files or directories")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"One of {', '.join(FORMATS)}")
    parser.add_argument("--source_url", metavar="URL", help="Web page with the results, for the Hub formats")
    parser.add_argument("--metrics", metavar="A,B", type=names, default=[], help="LaTeX: these metrics (default: all)")
    parser.add_argument(
        "--columns", metavar="A,B", type=names, default=[], help="LaTeX: columns of the first table (default: all)"
    )
    parser.add_argument("--mark_best", action="store_true", help="LaTeX: print the best value in bold")
    parser.add_argument(
        "--output_path", "-o", metavar="FILE|DIR", help="Output file or directory (default: standard output)"
    )
    add_verbosity(parser)


def export(options: argparse.Namespace) -> int:
    """Reads the runs, writes them in the format asked for, and says what was left out."""
    if options.to not in FORMATS:
        raise UsageError(f"--to {options.to}: the formats are {', '.join(FORMATS)}")
    exporter = FORMATS[options.to]
    if options.source_url and not exporter.takes_source_url:
        others = " and ".join(name for name, one in FORMATS.items() if one.takes_source_url)
        raise UsageError(f"--source_url: {options.to} has no place for it; {others} do")
    choices = {name: getattr(options, name) for name in ("metrics", "columns", "mark_best")}
    if any(choices.values()) and not exporter.takes_choices:
        raise UsageError(
            f"--{next(name for name in choices if choices[name])}: --to must be latex for this option, got {options.to}"
        )
    runs, skipped = read_runs([Path(name) for name in options.runs])
    for path, why in skipped.items():
        warn(f"left out: {path}: {why}")
    for run in runs:
        if run.document.status != "done":
            warn(f"{run.path}: status {run.document.status}: only finished tasks are there")
    target = Path(options.output_path) if options.output_path else None
    texts, left_out = load_target(exporter.target)(
        runs, target, options.source_url, **(choices if exporter.takes_choices else {})
    )
    for task, why in left_out.items():
        warn(f"left out: {task}: {why}")
    for written, text in texts.items():
        if written is None:
            put(text)
            continue
        write_text(written, text)
        echo(str(written))
    return 0
