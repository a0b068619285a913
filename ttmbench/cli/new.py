"""``ttmbench new task|adapter|plugin NAME``: a folder with a small one that works, to make one's own of."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.options import add_verbosity
from ttmbench.data.template import new_task
from ttmbench.plugins.template import new_package

_ABOUT = {
    "adapter": "a package with a model adapter. Put your model into {0}/{1}/adapter.py. Then:",
    "plugin": "a package with a task, a metric, a schedule and a hook. They are in {0}/{1}. Then:",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench new``."""
    kinds = ("task", "adapter", "plugin")
    parser.add_argument("what", choices=kinds, metavar="task|adapter|plugin", help="Kind of template")
    parser.add_argument("name", metavar="NAME", help="Letters, digits, '_', '.' and '-'; no '.' in a package name")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="New directory (default: NAME)")
    add_verbosity(parser)


def new(options: argparse.Namespace) -> int:
    """Writes the folder and says what to do next."""
    folder = Path(options.output_path or options.name)
    if options.what == "task":
        commands = new_task(options.name, folder)
        echo(f"{folder}: a task of three drawn groups. Put your images into {folder / 'images'}, write a line for each")
        echo(f"group into {folder / 'groups.jsonl'}, and set n_groups in {folder / f'{options.name}.yaml'}. Then:")
    else:
        commands = new_package(options.what, options.name, folder)
        echo(f"{folder}: {_ABOUT[options.what].format(folder, options.name.replace('-', '_'))}")
    for command in commands:
        echo(f"  {command}")
    return 0
