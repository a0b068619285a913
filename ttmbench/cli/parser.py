"""The command line as argparse sees it; a command's options come from its module, when that command is asked for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn, cast

from ttmbench._util.console import note
from ttmbench._util.escape import one_line
from ttmbench._util.places import read_place
from ttmbench._util.redact import redact
from ttmbench._version import __version__
from ttmbench.cli.addresses import TAKEN
from ttmbench.cli.examples import EXAMPLES, NOT_TAKEN
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError

COMMANDS = {
    "run": "evaluate a model on tasks, raw and matched; adapt it by TTM",
    "score": "every metric from stored scores or answers: no model, no dataset",
    "sweep": "many models, tasks and settings by one file, on many workers",
    "finetune": "finetune a model on labelled groups, in the ordinary way",
    "analyze": "the paper's figures for a model and a task",
    "compare": "runs compared group by group",
    "power": "which difference a task can show, and what another needs",
    "leaderboard": "results of many runs in tables, one a track, or as a site",
    "report": "results, TTM curves and groups as one page",
    "export": "results in the formats of others: lm-eval, hub, CSV, LaTeX",
    "reproduce": "a paper's table beside runs of your own",
    "ls": "list tasks, models, tags, metrics, schedules or plugins",
    "show": "everything about one task or model",
    "validate": "check task files and their data, and submissions of results",
    "download": "fetch everything that tasks and models need for --offline",
    "cache": "what earlier runs kept: list, verify, prune, path",
    "doctor": "what of tasks and models is on this machine",
    "new": "start a task, an adapter or a plugin from a small example",
    "schema": "print the JSON Schema of results or task files",
    "help": "what a command does, its options and examples",
}
"""What `ttmbench --help` lists; a command is a module of this package with `add_options` and a function of its name."""

EPILOG = """\
examples:
  ttmbench --model tiny-clip --tasks shapes_color --ttm
  ttmbench run --model siglip-b16 --tasks winoground --ttm --ttm_preset paper --output_path results
  ttmbench score clip.jsonl --task winoground
  ttmbench ls tasks
  ttmbench help run

Options may be written with dashes or underscores. Without a command, `run` is meant.
exit codes: 0 done, 1 a task failed, 2 usage or configuration, 3 an assertion or a reproduction does not hold,
4 data or weights out of reach, 130 interrupted
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that says every default; options of a run have theirs in its configuration."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = action.default
        if default is None and action.option_strings:
            field = RunConfig.model_fields.get(action.dest)
            default = None if field is None or field.is_required() else field.default
        is_said = default is not None and default is not False and default != argparse.SUPPRESS
        if "default" in text or not is_said or not isinstance(default, str | int | float):
            return text
        return f"{text} (default: {str(default).replace('%', '%%')})" if text else f"(default: {default})"


_ONCE = {  # options of which the last would win in silence: what to do instead
    "model": "one run has one model; run the command once for each",
    "models": "separate names by commas",
    "tasks": "separate names by commas",
    "model_args": "separate arguments by commas",
    "task_args": "separate arguments by commas",
    "ttm_args": "separate settings by commas",
    "output_path": "a run is written to one place",
}
_OF_PAGES = ("source_url",)  # options that name a web page and no file


class _Store(argparse._StoreAction):
    """argparse's own, for what is given once, and for files and folders, which may be an address for some commands."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Takes down a value."""
        before = getattr(namespace, self.dest, None)
        if option and self.dest in _ONCE and before not in (None, self.default, values):
            shown = [",".join(one) if isinstance(one, list) else one for one in (before, values)]
            parser.error(f"{option} is given twice ({shown[0]} and {shown[1]}): {_ONCE[self.dest]}")
        may_be_address = self.dest in TAKEN.get(parser.prog.partition(" ")[2], ())
        try:
            if self.dest not in _OF_PAGES:
                read = [
                    read_place(option or self.dest, one, may_be_address)
                    for one in (values if isinstance(values, list) else [values])
                ]
                values = read if isinstance(values, list) else read[0]
        except UsageError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line and a near name for a misspelt option."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for name in (None, "store"):
            self.register("action", name, _Store)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Knows all of its own options: what is left over is an error here, where near names are known."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits 2."""
        if message.startswith("unrecognized arguments:"):
            words = message.removeprefix("unrecognized arguments:").split()
            known = [option for action in self._actions for option in action.option_strings]
            near = get_close_matches(words[0], known, n=1)
            message = f"unknown option {words[0]}" + (f"; did you mean {near[0]}?" if near else "")
            name = words[0].partition("=")[0]
            if name in NOT_TAKEN:
                message = f"there is no {name} here: {NOT_TAKEN[name]}"
            elif not name.startswith("-"):
                message = f"'{words[0]}' is one word too many; several names are separated by commas"
        message = _with_near_choice(message)
        note(one_line(redact([f"{self.prog}: {message} (see {self.prog} --help)"])))
        raise SystemExit(2)


def _with_near_choice(message: str) -> str:
    """What argparse says of a wrong choice, with the nearest one in front of the list.

    >>> _with_near_choice("argument X: invalid choice: 'tsk' (choose from 'task', 'plugin')")
    "argument X: invalid choice: 'tsk'; did you mean 'task'? (choose from 'task', 'plugin')"
    """
    given, found, choices = message.partition(" (choose from ")
    near = get_close_matches(given.rpartition(" ")[2].strip("'"), re.findall(r"[\w-]+", choices), n=1)
    return f"{given}; did you mean '{near[0]}'?{found}{choices}" if found and near else message


def normalise(arguments: Sequence[str]) -> list[str]:
    """Adds the command `run` where none is named, and turns ``--some-option`` into ``--some_option``.

    >>> normalise(["--model", "tiny-clip", "--batch-size=8"])
    ['run', '--model', 'tiny-clip', '--batch_size=8']
    """
    words = []
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + equals + value
        words.append(word)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        words.insert(0, "run")
    return _with_commas(words)


def _with_commas(words: list[str]) -> list[str]:
    """``--tasks a b`` as ``--tasks a,b``, where no word can be anything else.

    >>> _with_commas(["analyze", "lr", "--tasks", "a", "b", "--ttm"])
    ['analyze', 'lr', '--tasks', 'a,b', '--ttm']
    """
    if words[:1] in (["analyze"], ["reproduce"]) and words[1:2] and words[1].startswith("-"):
        return words  # a word at the end may be the analysis or the table
    if words[:1] not in (["run"], ["finetune"], ["analyze"], ["reproduce"], ["doctor"]):
        return words
    found: list[str] = []
    for place, word in enumerate(words):
        listed = next((one for one in reversed(words[:place]) if one.startswith("-")), "")
        is_first = words[place - 1].startswith("-") and "=" not in listed
        if listed.partition("=")[0] in ("--tasks", "-t") and not word.startswith("-") and not is_first:
            found[-1] = f"{found[-1].removesuffix(',')},{word.removeprefix(',')}"
        else:
            found.append(word)
    return found


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The command line.

    Args:
        only: the command whose options are wanted; the others are there by name alone. None for the options of all.

    Returns:
        The parser; what it parses has ``execute``, the function of the command.
    """
    parser = _Parser(
        prog="ttmbench",
        description="How well does a vision-language model compose, and what does it gain from test-time matching?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ttmbench {__version__}")

    def parser_if_wanted(**about: Any) -> _Parser | None:  # twenty parsers cost more than the command's own options
        return _Parser(**about) if only in (None, about["prog"].rpartition(" ")[2]) else None

    wanted = cast(type[_Parser], parser_if_wanted)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=wanted)
    commands.required = True
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[:1].upper()}{summary[1:]}.",
            epilog="\n  ".join(["examples:", *EXAMPLES.get(name, ())]),
            formatter_class=_Help,
            allow_abbrev=False,
        )
        if command is not None:
            module = import_module(f"ttmbench.cli.{name}")
            module.add_options(command)
            command.set_defaults(execute=getattr(module, name))
    return parser
