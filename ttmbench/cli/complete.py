"""What the shell offers after a tab, by argcomplete: commands, options, and names of tasks, tags and models."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ttmbench.cli.parser import COMMANDS, build_parser


def complete() -> None:
    """Answers the shell and ends the process; without argcomplete it only ends."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        sys.exit(1)
    words = os.environ.get("COMP_LINE", "").split()
    argcomplete.autocomplete(parser_for(words[1] if len(words) > 1 else ""))


def parser_for(first: str) -> argparse.ArgumentParser:
    """The parser that knows what may follow a first word, each option with its names; an option's is that of `run`."""
    from ttmbench.cli.run import add_options

    if first.startswith("-"):
        parser = argparse.ArgumentParser(prog="ttmbench")
        add_options(parser)
        _add_names(parser)
        return parser
    parser = build_parser(first if first in COMMANDS else "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                if command is not None:  # those that are there by name alone
                    _add_names(command)
    return parser


def _add_names(parser: argparse.ArgumentParser) -> None:
    names = {
        "tasks": task_names,
        "ttm_also": task_names,
        "task": task_names,
        "names": task_names,
        "model": model_names,
        "models": model_names,
    }
    if parser.prog.endswith(" show"):
        names["name"] = both
    if parser.prog.endswith(" doctor"):
        names["names"] = both
    for action in parser._actions:
        if action.dest in names and action.choices is None:
            action.completer = listed(names[action.dest])  # type: ignore[attr-defined]


def task_names() -> Iterable[str]:
    """Names of tasks, and tags."""
    from ttmbench.data.catalog import all_tasks
    from ttmbench.plugins.registry import build_registry

    found = all_tasks(build_registry([]))
    return {*found, *(tag for file in found.values() for tag in file.spec.tag)}


def model_names() -> Iterable[str]:
    """Names and aliases of models."""
    from ttmbench.plugins.registry import build_registry

    return build_registry([]).adapters


def both() -> Iterable[str]:
    """Names of tasks and models."""
    return {*task_names(), *model_names()}


def listed(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Completes the last of several names between commas."""

    def completer(prefix: str, **_: Any) -> list[str]:
        before, comma, last = prefix.rpartition(",")
        return sorted(f"{before}{comma}{name}" for name in names() if name.startswith(last))

    return completer
