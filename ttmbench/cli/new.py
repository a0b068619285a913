"""``ttmbench new task NAME``: a folder with a small task that runs, to make one's own of."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.options import add_verbosity
from ttmbench.data.template import new_task


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench new``."""
    parser.add_argument("what", choices=("task",), metavar="task", help="what to start")
    parser.add_argument("name", metavar="NAME", help="letters, digits, '_', '.' and '-'")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="new folder for it (default: NAME)")
    add_verbosity(parser)


def new(options: argparse.Namespace) -> int:
    """Writes the folder and says what to do next."""
    folder = Path(options.output_path or options.name)
    commands = new_task(options.name, folder)
    echo(f"{folder}: a task of three drawn groups. Put your images into {folder / 'images'}, write a line for each")
    echo(f"group into {folder / 'groups.jsonl'}, and set n_groups in {folder / f'{options.name}.yaml'}. Then:")
    for command in commands:
        echo(f"  {command}")
    return 0
