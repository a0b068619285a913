"""The command line as argparse sees it; a command's options come from its module, when that command is asked for."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn, cast

from ttmbench._util.console import note, one_line
from ttmbench._util.option_values import read_place
from ttmbench._util.redact import redact
from ttmbench._version import __version__
from ttmbench.cli.addresses import TAKEN
from ttmbench.cli.examples import EXAMPLES, NOT_TAKEN
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError

COMMAND_GROUPS = {
    "evaluate": {
        "run": "Evaluate a model on tasks; --ttm adapts it at test time",
        "score": "Compute every metric from stored scores, ranks or answers",
        "sweep": "Run many models, tasks and settings from one plan file",
        "finetune": "Fine-tune a model on labelled groups",
        "analyze": "Compute the TTM paper's analyses for a model and a task",
    },
    "data and models": {
        "ls": "List tasks, models, tags, metrics, schedules or plugins",
        "show": "Print all details for a task or model",
        "download": "Download the data and weights that --offline needs",
        "validate": "Check task files and their data, or submitted results",
        "doctor": "Check which tasks and models are available locally",
        "cache": "Inspect and clean the score cache",
    },
    "results": {
        "compare": "Compare runs group by group, with paired tests",
        "power": "Estimate the smallest difference that a task can detect",
        "reproduce": "Compare a paper's table with your own runs",
        "report": "Write an HTML page with results, TTM curves and groups",
        "leaderboard": "Write tables or a website from many runs",
        "export": "Convert results for lm-eval, the Hub, CSV or LaTeX",
    },
    "extend": {
        "new": "Create a task, model adapter or plugin from a template",
        "schema": "Print the JSON Schema for results or task files",
    },
}
"""Heading of `ttmbench --help` -> its commands; a command is a module here with `add_options` and a function."""
COMMANDS = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}

EPILOG = """\
examples:
  ttmbench --model tiny-clip --tasks shapes_color --ttm
  ttmbench run --model siglip-b16 --tasks winoground --ttm --ttm_preset paper --output_path results
  ttmbench score clip.jsonl --task winoground
  ttmbench ls tasks

`ttmbench help COMMAND` lists the options for a command. A command line that begins with an option runs `run`.
Options may be written with dashes or underscores.

Exit codes: 0 done, 1 task failed, 2 usage or configuration error, 3 assertion or reproduction failed, \
4 data or weights unavailable, 130 interrupted.
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Format help to fit the terminal, with every default; the defaults for a run come from its configuration."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Show only arguments and required options; the list below has all options."""
        needed = [action for action in actions if action.required or not action.option_strings]
        options = argparse.Action([], "options", nargs="?", metavar="options")
        super().add_usage(usage, [options, *needed], [], prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each line; a long command continues after a backslash, so that it can be copied."""
        lines = []
        for line in text.splitlines():
            end = " \\" if line.startswith("  ttmbench ") else ""
            start = indent + re.match(" *", line)[0] + ("  " if end else "")  # type: ignore[index]
            joined = re.sub(r" (-\S+) (?=[^-])", " \\1\0", line)  # keep an option and its value together
            wrapped = textwrap.wrap(joined, width - len(end), subsequent_indent=start, break_on_hyphens=False)
            lines.append(f"{end}\n".join(wrapped).replace("\0", " "))
        return "\n".join(lines)

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

    def __init__(self, **about: Any) -> None:
        super().__init__(formatter_class=_Help, add_help=False, **about)
        for name in (None, "store"):
            self.register("action", name, _Store)
        self.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="Show this help and exit")

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

    An empty command line becomes ``--help``, and ``help COMMAND`` the help of that command.

    >>> normalise(["--model", "tiny-clip", "--batch-size=8"]), normalise(["help", "run"])
    (['run', '--model', 'tiny-clip', '--batch_size=8'], ['run', '--help'])
    """
    words = []
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    for word in arguments or ["--help"]:
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
        usage="ttmbench COMMAND [options]",
        description="Benchmark compositional image-text matching, with Test-Time Matching (TTM).",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--version", action="version", version=f"ttmbench {__version__}", help="Show the version and exit"
    )

    def parser_if_wanted(**about: Any) -> _Parser | None:  # twenty parsers cost more than the command's own options
        return _Parser(**about) if only in (None, about["prog"].rpartition(" ")[2]) else None

    wanted = cast(type[_Parser], parser_if_wanted)
    commands = parser.add_subparsers(prog="ttmbench", metavar="COMMAND", parser_class=wanted, help=argparse.SUPPRESS)
    commands.required = True
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}.",
            epilog="\n  ".join(["examples:", *EXAMPLES.get(name, ())]),
            allow_abbrev=False,
        )
        if command is not None:
            module = import_module(f"ttmbench.cli.{name}")
            module.add_options(command)
            command.set_defaults(execute=getattr(module, name))
    summaries = {action.dest: action for action in commands._get_subactions()}
    for title, group in COMMAND_GROUPS.items():  # argparse has no groups of subcommands
        parser.add_argument_group(title)._group_actions += [summaries[name] for name in group]
    return parser
