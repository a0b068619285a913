"""``ttmbench schema``: the JSON Schema of results or task files."""

from __future__ import annotations

import argparse
import json

from ttmbench._util.console import echo
from ttmbench.data.task_file import task_schema
from ttmbench.results.files import schema as results_schema


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench schema``."""
    parser.add_argument("name", metavar="results|task|leaderboard", help="Schema to print")


def schema(options: argparse.Namespace) -> int:
    """Print a JSON Schema."""
    echo(json.dumps(task_schema() if options.name == "task" else results_schema(options.name), indent=2))
    return 0
