"""``ttmbench new task|adapter|method|plugin NAME``: a working template in a new directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.data.template import new_task
from ttmbench.plugins.template import new_package

_NEXT = {
    "task": "a task of three rendered groups. Put your images into {0}/images, write one line per group\n"
    "into {0}/groups.jsonl, and set n_groups in {0}/{1}.yaml. Then:",
    "adapter": "a package with a model adapter. Put your model into {0}/{2}/adapter.py. Then:",
    "method": "a package with a test-time method. Put your loss into {0}/{2}/method.py. Then:",
    "plugin": "a package with a task, a metric, a schedule and a hook. They are in {0}/{2}. Then:",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench new``."""
    parser.add_argument("what", choices=tuple(_NEXT), metavar="|".join(_NEXT), help="Kind of template")
    parser.add_argument("name", metavar="NAME", help="Letters, digits, '_', '.' and '-'; no '.' in a package name")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="New directory (default: NAME)")


def new(options: argparse.Namespace) -> int:
    """Write the template and print the next steps."""
    what, name, folder = options.what, options.name, Path(options.output_path or options.name)
    commands = new_task(name, folder) if what == "task" else new_package(what, name, folder)
    echo(f"{folder}: {_NEXT[what].format(folder, name, name.replace('-', '_'))}")
    for command in commands:
        echo(f"  {command}")
    return 0
