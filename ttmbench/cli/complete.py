"""Shell completion by argcomplete: commands, options, and names of tasks, tags, models and methods."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable

from ttmbench.cli.parser import COMMANDS, build_parser


def complete() -> None:
    """Answer the shell and end the process; without argcomplete it only ends."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        sys.exit(1)
    words = os.environ.get("COMP_LINE", "").split()
    argcomplete.autocomplete(parser_for(words[1] if len(words) > 1 else ""))


def parser_for(first: str) -> argparse.ArgumentParser:
    """The parser that completes what follows a first word; that of `run` where the word is an option."""
    parser = build_parser(first if first in COMMANDS else "run" if first.startswith("-") else "")
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    for command in filter(None, commands.values()):
        completers = dict.fromkeys(("tasks", "ttm_also", "task", "names"), _completer(_tasks))
        completers |= dict.fromkeys(("model", "models"), _completer(_models))
        completers["methods"] = _completer(_methods)
        if command.prog.endswith(" show"):
            completers["name"] = _completer(lambda: {*_tasks(), *_models(), *_methods(every=True), *_metrics()})
        if command.prog.endswith(" doctor"):
            completers["names"] = _completer(lambda: {*_tasks(), *_models()})
        for action in command._actions:
            if action.dest in completers and action.choices is None:
                action.completer = completers[action.dest]
    return commands["run"] if first.startswith("-") else parser


def _tasks() -> Iterable[str]:
    """Names of tasks, and tags."""
    from ttmbench.data.catalog import all_tasks
    from ttmbench.plugins.registry import build_registry

    tasks = all_tasks(build_registry([]))
    return {*tasks, *(tag for file in tasks.values() for tag in file.spec.tag)}


def _models() -> Iterable[str]:
    """Names and aliases of models."""
    from ttmbench.plugins.registry import build_registry

    return build_registry([]).adapters


def _methods(every: bool = False) -> Iterable[str]:
    """Names of test-time methods; of those that are commands of their own only if ``every`` is meant."""
    from ttmbench.plugins.registry import build_registry

    return [name for name, (spec, _) in build_registry([]).methods.items() if every or not spec.is_finetuning]


def _metrics() -> Iterable[str]:
    """Names of metrics."""
    from ttmbench.plugins.registry import build_registry

    return build_registry([]).metrics


def _completer(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Completes the last of several names between commas."""

    def completer(prefix: str, **_: object) -> list[str]:
        before, comma, last = prefix.rpartition(",")
        return sorted(f"{before}{comma}{name}" for name in names() if name.startswith(last))

    return completer
