"""``ttmbench prepare``: converts original files that cannot be read directly into rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.options import add_data_files
from ttmbench.data.catalog import find_task
from ttmbench.data.paths import given_data_folder
from ttmbench.data.prepare import Preparation, prepare_rows
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import build_registry


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench prepare``."""
    parser.add_argument("task", metavar="TASK", help="Task to prepare")
    add_data_files(parser)


def prepare(options: argparse.Namespace) -> int:
    """Write the rows of a task; prints what was written."""
    source = find_task(build_registry(options.include_path or []), options.task).spec.source
    parts = [part for part in source.get("of", [source]) if "prepare" in part]
    if not parts:
        raise UsageError(
            f"task '{options.task}' needs no preparation; `ttmbench download {options.task}` fetches its data"
        )
    folder = given_data_folder(Path(options.data_dir) if options.data_dir else None)
    for part in parts:
        how, made = Preparation.model_validate(part["prepare"]), part["file"]
        origin = part.get("get", {}).get(made, {})
        page = origin.get("page", "") if isinstance(origin, dict) else origin
        echo(f"{options.task}: {prepare_rows(folder, made, how, page)}")
    return 0
