"""The command line: its words become the options of a command, whose function runs; errors become an exit code."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
import warnings
from collections import ChainMap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Literal, NoReturn, get_args, get_origin

from ttmbench._util.console import SAID, SPELT, clear_bars, echo, one_line, print_traceback, put, warn
from ttmbench._util.third_party import error_line, near_name
from ttmbench._version import __version__
from ttmbench.config import RENAMED, RunConfig, TTMConfig, is_address, refuse_address, refuse_password
from ttmbench.errors import INTERRUPTED, TtmbenchError, UsageError

EXAMPLES = {
    "run": (
        "ttmbench --model tiny-clip --tasks shapes_color --ttm",
        "ttmbench run --model siglip-b16 --tasks winoground,whatsup_a --ttm --ttm_preset paper --output_path results",
        "ttmbench run -m hf -a pretrained=./my-model,dtype=bfloat16 -t colorswap -b auto -L 0.1",
    ),
    "sweep": ("ttmbench sweep plan.yaml -o board --dry_run", "ttmbench sweep plan.yaml -o board"),
    "score": ("ttmbench score clip.jsonl --task winoground",),
    "analyze": (
        "ttmbench analyze thresholds --model siglip-b16 --tasks winoground",
        "ttmbench analyze lr --model tiny-clip --tasks shapes_color --lrs 1e-4,1e-3",
    ),
    "finetune": (
        "ttmbench finetune --model clip-b32 --tasks colorswap_train --preset colorswap --output_path clip-colorswap",
        "ttmbench finetune --model blip-itm --tasks colorswap_train --finetune_args epochs=5,lr=1e-5 -o blip-colorswap",
    ),
    "compare": ("ttmbench compare a.json b.json",),
    "leaderboard": ("ttmbench leaderboard results", "ttmbench leaderboard results --published all --site site"),
    "report": ("ttmbench report results", "ttmbench report results --output_path page.html --title 'Spatial tasks'"),
    "export": ("ttmbench export results --to csv", "ttmbench export run.json --to latex --output_path table.tex"),
    "submit": ("ttmbench submit results/siglip-b16", "ttmbench submit run.json --repository ../ttmbench"),
    "reproduce": ("ttmbench reproduce", "ttmbench reproduce ttm_table1 --models siglip-b16 --runs results --run"),
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
    "--apply_chat_template": "chat models always use their own template; omit it",
    "--system_instruction": "vqascore takes the question as --model_args template=...",
    "--gen_kwargs": "only forced choices generate text; --model_args max_tokens=N limits an answer",
    "--max_batch_size": "--batch_size auto finds a size that fits",
    "--predict_only": "--save_scores and --log_samples save the outputs; `ttmbench score` evaluates them later",
    "--write_out": "`ttmbench validate TASK` shows a group",
    "--show_config": "--dry_run --json prints all settings",
    "--check_integrity": "`ttmbench validate TASK` checks a task's data",
    "--cache_requests": "raw scores are always cached; --use_cache DIR|off sets where",
    "--wandb_args": "--track wandb, with --track_args project=...,name=...",
    "--hf_hub_log_args": "`ttmbench export RESULTS --to model-index` writes a model card's metadata for the Hub",
    "--metadata": "--task_args K=V,... changes the source of the tasks",
    "-c": "use --use_cache DIR",
    "-s": "use --log_samples",
    "-v": "use --verbosity debug",
    "-E": "use --samples FILE",
}
"""Options of lm-evaluation-harness that ttmbench does not have -> what to use instead."""
NOT_TAKEN |= {"-f": NOT_TAKEN["--num_fewshot"], "-x": NOT_TAKEN["--predict_only"], "-w": NOT_TAKEN["--write_out"]}

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
    "extend": {"new": "Create a task, model adapter, method or plugin from a template"},
}
"""Heading of `ttmbench --help` -> its commands; a command is a module here with `add_options` and a function."""
COMMANDS: dict[str, str] = dict(ChainMap(*reversed(COMMAND_GROUPS.values())))

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

`ttmbench help COMMAND` lists the options for a command. `run` is the default command.
Options may be written with dashes or underscores.

Exit codes: 0 done, 1 task failed, 2 usage or configuration error, 3 assertion or reproduction failed, \
4 data or weights unavailable, 130 interrupted.
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal and shows every default."""

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *more: Any, **others: Any) -> None:
        """Show only arguments and required options; the list below has all options."""
        needed = [action for action in actions if action.required or not action.option_strings]
        options = argparse.Action([], "options", nargs="?", metavar="options")
        super().add_usage(usage, [options, *needed], [])

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_shown = isinstance(action.default, str | int | float) and action.default is not False
        is_said = "default" in (action.help or "") or action.default == argparse.SUPPRESS
        return f"{action.help} (default: %(default)s)" if is_shown and not is_said else action.help


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


class _Once(argparse.Action):
    """Stores the value of an option; rejects a second one where it would drop a list, a model or an output."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Set the attribute of the namespace."""
        is_list, before = "," in str(self.metavar), getattr(namespace, self.dest, None)
        if option and (is_list or self.dest in ("model", "output_path")) and before not in (None, self.default, values):
            how = "separate several values by commas" if is_list else "give one of them"
            parser.error(f"{option} is given twice ({before} and {values}); {how}")
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """A parser with one-line errors that suggest the nearest option."""

    def format_help(self) -> str:
        """The help, its description and examples wrapped to the terminal."""
        self.description, self.epilog = _wrapped(self.description or ""), _wrapped(self.epilog or "")
        return super().format_help()

    def reject(self, word: str) -> NoReturn:
        """Report an unknown argument."""
        name = word.partition("=")[0]
        if name in NOT_TAKEN:
            self.error(f"{name} is not supported: {NOT_TAKEN[name]}")
        if name[2:] in RENAMED:
            self.error(f"{name} is now --{RENAMED[name[2:]]}")
        known = re.findall(r"(?<![\w-])--?\w+", self.format_help())
        if word.isdecimal() and "--seeds" in known:
            self.error(f"unexpected argument '{word}'; several seeds are separated by commas: --seeds 0,1,2")
        if not name.startswith("-"):
            self.error(f"unexpected argument '{word}'; separate several names by commas")
        takes = {"--ttm_args": TTMConfig.takes(name[2:]), "--model_args": name[2:] in ("pretrained", "revision")}
        for option in (option for option, is_taken in takes.items() if is_taken and option in known):
            self.error(f"unknown option {name}; it is written {option} {name[2:]}=VALUE")
        near = get_close_matches(word, known, n=1)
        self.error(f"unknown option {word}" + (f"; did you mean {near[0]}?" if near else ""))

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        for kind, words in (("int", "a whole number"), ("float", "a number")):
            message = re.sub(rf"invalid {kind} value: '(.*)'", rf"must be {words}, got \1", message)
        problem, _, choices = message.partition(" (choose from ")  # the nearest choice in place of the list
        near = get_close_matches(problem.rpartition(" ")[2].strip("'"), re.findall(r"[\w-]+", choices), n=1)
        message = f"{problem}; did you mean '{near[0]}'?" if near else message
        echo(one_line(f"{self.prog}: {message} (see {self.prog} --help)"), sys.stderr)
        raise SystemExit(2)


WHAT = ("model", "model_args", "tasks", "limit", "task_args", "include_path")
MACHINE = (
    *("batch_size", "device", "dtype", "use_cache", "offline", "data_dir"),
    *("seed", "deterministic", "trust_remote_code"),
)
"""Options of `RunConfig` for every command that runs a model."""


def add_run_options(parser: argparse.ArgumentParser, *names: str, title: str | None = None, **defaults: object) -> None:
    """Add options of a run (by default all), and ``--config`` to those of a model on tasks.

    ``title`` is of one group for all of them, empty for that of the common options; ``defaults`` are what ``--help``
    shows in place of a run's.
    """
    groups: dict[str, Any] = {"": parser}
    for name, field in RunConfig.model_fields.items():
        if names and name not in names:
            continue
        extra: Any = field.json_schema_extra
        long = [flag for flag in extra["flags"] if flag.startswith("--")] or [f"--{name}"]
        group = extra["group"] if title is None else title
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        text = str(field.description).partition("\n")[0].replace("%", "%%")
        default = defaults.get(name, field.default)
        if isinstance(default, str | int) and default is not False and "default" not in text:
            text += f" (default: {default})"
        kind: Any = get_origin(field.annotation)
        metavar = extra["metavar"]
        if field.annotation is bool:
            how: dict[str, Any] = {"action": "store_true", "default": None}
        elif kind is list and metavar and "," not in metavar:
            how = {"action": "append", "metavar": metavar}
        elif kind is Literal:
            how = {"metavar": "|".join(get_args(field.annotation))}
        else:
            how = {"metavar": metavar or {dict: "K=V,...", list: "A,B"}.get(kind, "X")}
        shorts = [flag for flag in extra["flags"] if not flag.startswith("--")]
        groups[group].add_argument(*long, *shorts, dest=name, help=text, **how)
    if not names or {"model", "tasks", "batch_size"} <= set(names):
        parser.add_argument(
            "--config", metavar="FILE", help="YAML file with options; the command line takes precedence"
        )


def add_choice(group: Any, name: str, choices: str, default: str, summary: str) -> None:
    """Add an option whose value is one of ``choices``, separated by bars."""
    values = choices.split("|")
    group.add_argument(name, metavar=choices, choices=values, type=str.lower, default=default, help=summary)


def count(text: str) -> int:
    """A whole number of at least 1."""
    try:
        if (value := int(text)) >= 1:
            return value
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}") from None
    raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``execute`` is the function of its ``command``, by default ``run``.

    SystemExit after help, the version or an error was printed.
    """
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    words = []
    for word in arguments or ["--help"]:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + equals + value
        words.append(word)
    if words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        words.insert(0, "run")
    command, *rest = words
    if command not in COMMANDS:
        raise SystemExit(_without_command(command))
    module = import_module(f"ttmbench.cli.{command}")
    parser = _Parser(
        f"ttmbench {command}",
        description=f"{COMMANDS[command]}.",
        epilog="\n  ".join(["examples:", *EXAMPLES[command]]),
        formatter_class=_Help,
        add_help=False,
        allow_abbrev=False,
    )
    parser.register("action", None, _Once)
    parser.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="Show this help and exit")
    module.add_options(parser)
    log: dict[str, Any] = {"metavar": "info|debug", "choices": ("info", "debug"), "default": "info", "type": str.lower}
    parser.add_argument("--verbosity", help="Log level; debug shows tracebacks", **log)
    options, unknown = parser.parse_known_args(rest)
    if unknown:
        parser.reject(unknown[0])
    options.command, options.execute = command, getattr(module, command)
    return options


def _without_command(word: str) -> int:
    """Print the help, the version, or that a word is no command; the exit code."""
    if word in ("-h", "--help"):
        put(_overview())
    elif word == "--version":
        put(f"ttmbench {__version__}\n")
    else:
        now = {"power": "show TASK", "prepare": "download TASK", "schema": "validate"}.get(word)
        hint = f"; its work is done by `ttmbench {now}`" if now else near_name(word, COMMANDS, "")
        echo(one_line(f"ttmbench: unknown command '{word}'{hint} (see ttmbench --help)"), sys.stderr)
        return 2
    return 0


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


def read_places(options: argparse.Namespace) -> None:
    """Fetches what lies at addresses that a command of `READ` reads; UsageError for other addresses.

    Also where a command would write into the address that it reads.
    """
    command = options.command
    for name, value in vars(options).items():
        paths, reads = value if isinstance(value, list) else [value], name == READ.get(command)
        for address in filter(is_address, () if name in WEB_PAGES else paths):
            refuse_address(f"--{name}", address, reads)
            if command in ("report", "leaderboard") and not (options.output_path or getattr(options, "site", None)):
                raise UsageError(f"{command} of an address needs --output_path: a local place for what it writes")
            from ttmbench._util.remote import fetched

            paths = [str(fetched(path, command)) if path == address else path for path in paths]
        setattr(options, name, paths if isinstance(value, list) else paths[0])


def command() -> NoReturn:
    """Run the command line of this process, and end the process with its exit code."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit code that ``--help`` explains."""
    # A library's notices are for us (the weekly workflow), a hook's are for plugins. Filters of the user come first.
    warnings.filterwarnings("ignore", "(?!ttmbench_)", FutureWarning, append=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=SPELT)
    argv, debug = list(sys.argv[1:] if arguments is None else arguments), False
    shown, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    SAID.clear()
    try:
        refuse_password("the command", argv)
        try:
            options = parse(argv)
        except SystemExit as stop:  # argparse has printed the error or the help
            code = stop.code if isinstance(stop.code, int) else 2
        else:
            debug = options.verbosity == "debug"
            from ttmbench._util.file_io import limit

            limit("yaml_bytes")  # a wrong TTMBENCH_LIMITS is an error at once
            if options.command != "run":
                read_places(options)
            code = options.execute(options)
        put("", flush=True)  # what cannot be written is an error here
        return code
    except TtmbenchError as error:
        if debug:
            print_traceback()
        warn(str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        warn(f"interrupted {error}".strip())  # names the plugin whose code was interrupted
        return INTERRUPTED
    except BaseException as error:
        if debug:
            print_traceback()
        warn(f"{error_line(error)} (--verbosity debug shows the traceback)")
        return 1
    finally:
        warnings.formatwarning = shown


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    clear_bars()
    return f"ttmbench: warning: {one_line(str(message))}\n"
