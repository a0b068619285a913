"""The argparse parser of the command line; the options of a command come from its module."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from ttmbench._util.console import note, one_line, put
from ttmbench._util.option_values import is_address, read_place
from ttmbench._version import __version__
from ttmbench.cli.options import add_verbosity
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError

EXAMPLES = {
    "run": (
        "ttmbench --model tiny-clip --tasks shapes_color --ttm",
        "ttmbench run --model siglip-b16 --tasks winoground,whatsup_a --ttm --ttm_preset paper --output_path results",
        "ttmbench run -m hf -a pretrained=./my-model,dtype=bfloat16 -t colorswap -b auto -L 0.1",
    ),
    "sweep": (
        "ttmbench sweep plan.yaml -o board --dry_run",
        "ttmbench sweep plan.yaml -o board",
        "ttmbench sweep plan.yaml -o board --cell 7",
    ),
    "score": (
        "ttmbench score clip.jsonl --task winoground",
        "ttmbench score embeddings.npz --task winoground --logit_scale 100",
    ),
    "analyze": (
        "ttmbench analyze thresholds --model siglip-b16 --tasks winoground",
        "ttmbench analyze lr --model tiny-clip --tasks shapes_color --lrs 1e-4,1e-3",
        "ttmbench analyze transfer --model tiny-clip --tasks shapes_color,shapes_place --seeds 0,1",
    ),
    "finetune": (
        "ttmbench finetune --model clip-b32 --tasks colorswap_train --preset colorswap --output_path clip-colorswap",
        "ttmbench finetune --model blip-itm --tasks colorswap_train --finetune_args epochs=5,lr=1e-5 -o blip-colorswap",
    ),
    "compare": (
        "ttmbench compare a.json b.json",
        "ttmbench compare a.json --filters none,ttm --output_path comparison.md",
    ),
    "leaderboard": ("ttmbench leaderboard results", "ttmbench leaderboard results --published all --site site"),
    "report": ("ttmbench report results", "ttmbench report results --output_path page.html --title 'Spatial tasks'"),
    "export": ("ttmbench export results --to csv", "ttmbench export run.json --to latex --output_path table.tex"),
    "submit": ("ttmbench submit results/siglip-b16", "ttmbench submit run.json --repository ../ttmbench"),
    "reproduce": (
        "ttmbench reproduce",
        "ttmbench reproduce ttm_table1 --models siglip-b16 --runs results --run",
    ),
    "ls": ("ttmbench ls tasks", "ttmbench ls methods", "ttmbench ls models --json"),
    "show": ("ttmbench show winoground", "ttmbench show siglip-b16 --published", "ttmbench show ttm"),
    "validate": (
        "ttmbench validate my_task.yaml",
        "ttmbench validate 'shapes_*' --offline",
        "ttmbench validate run.json results/submissions",
    ),
    "download": (
        "ttmbench download sugarcrepe whatsup --dry_run",
        "ttmbench download --model siglip-b16 --tasks winoground --data_dir data",
    ),
    "cache": ("ttmbench cache ls", "ttmbench cache prune --older_than 30 --dry_run"),
    "doctor": ("ttmbench doctor", "ttmbench doctor winoground siglip-b16"),
    "new": ("ttmbench new task my_colors", "ttmbench new method my_method"),
}

NOT_TAKEN = {
    "--num_fewshot": "every task is zero-shot; omit it",
    "-f": "every task is zero-shot; omit it",
    "--apply_chat_template": "chat models always use their own template; omit it",
    "--system_instruction": "vqascore takes the question as --model_args template=...",
    "--gen_kwargs": "only forced choices generate text; --model_args max_tokens=N limits an answer",
    "--max_batch_size": "--batch_size auto finds a size that fits",
    "--predict_only": "--save_scores and --log_samples save the outputs; `ttmbench score` evaluates them later",
    "-x": "--save_scores and --log_samples save the outputs; `ttmbench score` evaluates them later",
    "--write_out": "`ttmbench validate TASK` shows a group",
    "-w": "`ttmbench validate TASK` shows a group",
    "--show_config": "--dry_run prints all settings",
    "--check_integrity": "`ttmbench validate TASK` checks a task's data",
    "--cache_requests": "raw scores are always cached; --use_cache DIR|off sets where",
    "--wandb_args": "--track wandb, with --track_args project=...,name=...",
    "--hf_hub_log_args": "`ttmbench export RESULTS --to evaluation-results` writes results for the Hub",
    "--metadata": "--task_args K=V,... changes the source of the tasks",
    "-c": "use --use_cache DIR",
    "-s": "use --log_samples",
    "-v": "use --verbosity debug",
    "-E": "use --samples FILE",
}
"""Options of lm-evaluation-harness that ttmbench does not have -> what to use instead."""


COMMAND_GROUPS = {
    "evaluate": {
        "run": "Evaluate a model on tasks; --ttm adapts it at test time",
        "score": "Compute every metric from stored scores, ranks or answers",
        "sweep": "Run many models, tasks and settings from one plan file",
        "finetune": "Fine-tune a model on labelled groups",
        "analyze": "Compute the TTM paper's analyses for a model and a task",
    },
    "data and models": {
        "ls": "List tasks, models, methods, metrics and other names",
        "show": "Print a page about a task, model, method or metric",
        "download": "Download the data and weights that --offline needs",
        "validate": "Check task files and their data, or results",
        "doctor": "Check which tasks and models are available locally",
        "cache": "Inspect and clean the score cache",
    },
    "results": {
        "compare": "Compare runs group by group, with paired tests",
        "reproduce": "Compare a paper's table with your own runs",
        "report": "Write an HTML page with results, TTM curves and groups",
        "leaderboard": "Write tables or a website from many runs",
        "export": "Convert results for lm-eval, mteb, the Hub, CSV or LaTeX",
        "submit": "Check a run and copy it into the leaderboard's repository",
    },
    "extend": {
        "new": "Create a task, model adapter, method or plugin from a template",
    },
}
"""Heading of `ttmbench --help` -> its commands; a command is a module here with `add_options` and a function."""
COMMANDS = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}

READ = {
    **{"report": "path", "leaderboard": "folder", "compare": "runs", "export": "runs", "validate": "tasks"},
    "score": "scores",
}
"""Command -> the option that names what it reads, which may be an address."""
WEB_PAGES = ("source_url", "docs")
"""Options whose values are shown and not read: addresses of pages, and texts that may hold some."""

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


def fetch_addresses(command: str, options: argparse.Namespace) -> None:
    """Replaces addresses that a command of `READ` reads by local copies; UsageError if it would write into one."""
    value = getattr(options, READ.get(command, ""), None)
    paths = value if isinstance(value, list) else [value]
    if not any(map(is_address, paths)):
        return
    from ttmbench._util.remote import fetched

    if command in ("report", "leaderboard") and not (options.output_path or getattr(options, "site", None)):
        raise UsageError(f"{command} of an address needs --output_path: a local place for what it writes")
    paths = [str(fetched(path, command)) if is_address(path) else path for path in paths]
    setattr(options, READ[command], paths if isinstance(value, list) else paths[0])


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal and shows every default, those of a run from `RunConfig`."""

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *more: Any, **others: Any) -> None:
        """Show only arguments and required options; the list below has all options."""
        needed = [action for action in actions if action.required or not action.option_strings]
        options = argparse.Action([], "options", nargs="?", metavar="options")
        super().add_usage(usage, [options, *needed], [])

    def add_argument(self, action: argparse.Action) -> None:
        """Add an option with its default."""
        text, default = action.help or "", action.default
        if default is None and action.option_strings:
            field = RunConfig.model_fields.get(action.dest)
            default = None if field is None or field.is_required() else field.default
        is_shown = isinstance(default, str | int | float) and default is not False and default != argparse.SUPPRESS
        if is_shown and "default" not in text and text != argparse.SUPPRESS:
            action.help = f"{text} (default: {str(default).replace('%', '%%')})".lstrip()
        super().add_argument(action)


def _wrapped(text: str) -> str:
    """Wrap each line; a long command continues after a backslash, so that it can be copied."""
    lines, width = [], _width()
    for line in text.splitlines():
        end = " \\" if line.startswith("  ttmbench ") else ""
        start = " " * (len(line) - len(line.lstrip())) + ("  " if end else "")
        joined = re.sub(r" (-\S+) (?=[^-])", " \\1\0", line)  # keep an option and its value together
        wrapped = textwrap.wrap(joined, width - len(end), subsequent_indent=start, break_on_hyphens=False)
        lines.append(f"{end}\n".join(wrapped).replace("\0", " "))
    return "\n".join(lines)


def _width() -> int:
    return shutil.get_terminal_size().columns - 2


_ONCE = {  # options that may be given once -> what to do instead
    "model": "one run has one model; run the command once for each",
    "models": "separate names by commas",
    "tasks": "separate names by commas",
    "model_args": "separate arguments by commas",
    "task_args": "separate arguments by commas",
    "ttm_args": "separate settings by commas",
    "output_path": "a run writes to one location",
}


class _Store(argparse.Action):
    """Stores a value; rejects a second one where one is expected, and addresses where a path is expected."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option: str | None = None,
    ) -> None:
        """Set the attribute of the namespace."""
        before = getattr(namespace, self.dest, None)
        if option and self.dest in _ONCE and before not in (None, self.default, values):
            shown = [",".join(value) if isinstance(value, list) else value for value in (before, values)]
            parser.error(f"{option} is given twice ({shown[0]} and {shown[1]}): {_ONCE[self.dest]}")
        command = parser.prog.partition(" ")[2]
        may_be_address = self.dest == ("output_path" if command == "run" else READ.get(command))
        try:
            if self.dest not in WEB_PAGES:
                paths = values if isinstance(values, list) else [values]
                read = [read_place(option or self.dest, value, may_be_address) for value in paths]
                values = read if isinstance(values, list) else read[0]
        except UsageError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """A parser with one-line errors that suggest the nearest option."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog,
            None,
            _wrapped(description),
            _wrapped(epilog),
            formatter_class=_Help,
            add_help=False,
            allow_abbrev=False,
        )
        for name in (None, "store"):
            self.register("action", name, _Store)
        self.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="Show this help and exit")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; an unknown argument is an error of the command that got it, which knows the nearest option."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._reject(unknown[0])
        return parsed, unknown

    def _reject(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        if name in NOT_TAKEN:
            self.error(f"{name} is not supported: {NOT_TAKEN[name]}")
        if not name.startswith("-"):
            self.error(f"unexpected argument '{word}'; separate several names by commas")
        near = get_close_matches(word, re.findall(r"(?<![\w-])--?\w+", self.format_help()), n=1)
        self.error(f"unknown option {word}" + (f"; did you mean {near[0]}?" if near else ""))

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        for kind, words in (("int", "a whole number"), ("float", "a number")):
            message = re.sub(rf"invalid {kind} value: '(.*)'", rf"must be {words}, got \1", message)
        note(one_line(f"{self.prog}: {_with_near_choice(message)} (see {self.prog} --help)"))
        raise SystemExit(2)


def _with_near_choice(message: str) -> str:
    """The message of argparse about a wrong choice, with the nearest choice in place of the list.

    >>> _with_near_choice("argument X: invalid choice: 'tsk' (choose from 'task', 'plugin')")
    "argument X: invalid choice: 'tsk'; did you mean 'task'?"
    """
    problem, _, choices = message.partition(" (choose from ")
    near = get_close_matches(problem.rpartition(" ")[2].strip("'"), re.findall(r"[\w-]+", choices), n=1)
    return f"{problem}; did you mean '{near[0]}'?" if near else message


def normalise(arguments: Sequence[str]) -> list[str]:
    """The words that the parser gets: ``run`` added where no command is named, ``--some-option`` as ``--some_option``.

    An empty command line becomes ``--help``, and ``help COMMAND`` becomes ``COMMAND --help``.

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
    return words


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line of `normalise`; ``execute`` is the function of its command.

    SystemExit after help, the version or an error was printed.
    """
    command, *rest = words
    if command in COMMANDS:
        return build_parser(command).parse_args(rest)
    if command in ("-h", "--help"):
        put(_overview())
    elif command == "--version":
        put(f"ttmbench {__version__}\n")
    else:
        near = get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        note(one_line(f"ttmbench: unknown command '{command}'{hint} (see ttmbench --help)"))
        raise SystemExit(2)
    raise SystemExit(0)


def _overview() -> str:
    about = "Benchmark compositional image-text matching, with Test-Time Matching (TTM)."
    parts = ["usage: ttmbench COMMAND [options]", _wrapped(about)]
    options = {"-h, --help": "Show this help and exit", "--version": "Show the version and exit"}
    for title, group in {"options": options, **COMMAND_GROUPS}.items():
        lines = (
            textwrap.fill(f"  {name:<14}{text}", _width(), subsequent_indent=" " * 16) for name, text in group.items()
        )
        parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join([*parts, _wrapped(EPILOG)]) + "\n"


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    summary, module = f"{COMMANDS[command]}.", import_module(f"ttmbench.cli.{command}")
    parser = _Parser(f"ttmbench {command}", summary, "\n  ".join(["examples:", *EXAMPLES.get(command, ())]))
    module.add_options(parser)
    with suppress(argparse.ArgumentError):  # a command may place it itself
        add_verbosity(parser)
    parser.set_defaults(execute=getattr(module, command))
    return parser
