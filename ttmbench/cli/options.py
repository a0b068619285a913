"""Options that several commands share, and the readers of option values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ttmbench._util.option_values import read_batch_size, read_limit

T = TypeVar("T")


class Options(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **option: Any) -> Any:
        """Add an option."""


LIMIT = "Use only the first N groups, or a fraction if below 1"
OFFLINE = "Use local files only; do not access the network"
USE_CACHE = "Score cache (default: TTMBENCH_CACHE, else the user cache)"
DATA_DIR = "Directory with data files (default: TTMBENCH_DATA, else the user cache)"


def add_what(common: Options, more: Options) -> None:
    """Add the options for models and tasks: the common ones to one group, the others to a second."""
    add = common.add_argument
    add("--model", "-M", "-m", metavar="NAME", help="Model name from `ttmbench ls models`")
    add("--model_args", "-a", metavar="K=V,...", help="Model arguments, such as pretrained=DIR,revision=main")
    add("--tasks", "-t", metavar="A,B", help="Task names, tags, globs or YAML files; see `ttmbench ls tasks`")
    add("--limit", "-L", metavar="N", type=count_or_fraction, help=LIMIT)
    add("--config", metavar="FILE", help="YAML file with options; the command line takes precedence")
    more.add_argument("--task_args", metavar="K=V,...", help="Overrides for the tasks' source, such as seed=3")
    add_task_files(more)


def add_ttm_settings(group: Options) -> None:
    """Add the settings for test-time training."""
    add = group.add_argument
    add("--ttm_args", metavar="K=V,...", help="TTM settings: lr, epochs, iterations, schedule, tau_start, ...")
    add("--ttm_preset", metavar="auto|paper", help="TTM preset; paper uses the task's settings and four seeds")
    add("--seeds", metavar="0,1,2,3", type=seeds, help="Test-time training seeds (default: one seed)")


def add_how(common: Options, more: Options) -> None:
    """Add the options for execution and intervals: the common ones to one group, the others to a second."""
    add_machine(common, more, seed="Seed for the bootstrap, and first test-time seed")
    more.add_argument("--compile", action="store_true", default=None, help="Compile the model with torch.compile")
    add_interval(more, default=None)


def add_machine(common: Options, more: Options, seed: str) -> None:
    """Add the options for every command that runs a model; ``seed`` is the help text for ``--seed``."""
    add = common.add_argument
    add("--batch_size", "-b", metavar="N|auto", type=count_or_auto, help="Batch size; auto finds one that fits")
    add("--device", metavar="NAME", help="Device: auto, cpu, cuda, cuda:1, mps; `run` accepts several: cuda:0,1")
    add("--dtype", metavar="fp32|tf32|bf16|fp16", help="Compute dtype; scores are always float32")
    add("--use_cache", metavar="DIR|off", help=USE_CACHE)
    add("--offline", action="store_true", default=None, help=OFFLINE)
    add("--data_dir", metavar="DIR", help=DATA_DIR)
    more.add_argument("--seed", metavar="N", type=int, help=seed)
    bitwise = "Bitwise identical results on one machine; uses one thread"
    more.add_argument("--deterministic", action="store_true", default=None, help=bitwise)
    more.add_argument("--trust_remote_code", action="store_true", default=None, help="Run code from the Hub repository")


def add_interval(group: Options, default: int | None) -> None:
    """Add the options for intervals; ``default`` is the number of resamples, None to leave both to the run."""
    summary = "Confidence interval: Wilson's, or a bootstrap over groups (default: wilson)"
    add_choice(group, "--interval", "wilson|percentile|bca", None if default is None else "wilson", summary)
    resamples = "Bootstrap resamples; 0 disables intervals"
    group.add_argument("--bootstrap_iters", metavar="N", type=int, default=default, help=resamples)


def add_assertions(parser: Options) -> None:
    """Add ``--assert``."""
    condition = "Required result: task.metric,filter>=0.9"
    parser.add_argument("--assert", dest="assertions", metavar="COND", action="append", help=condition)


def add_task_files(parser: Options) -> None:
    """Add ``--include_path``."""
    parser.add_argument("--include_path", metavar="DIR", action="append", help="Directory with additional task files")


def add_data_files(parser: Options) -> None:
    """Add ``--data_dir`` and ``--include_path``."""
    parser.add_argument("--data_dir", metavar="DIR", help=DATA_DIR)
    add_task_files(parser)


def add_verbosity(parser: Options) -> None:
    """Add ``--verbosity``, which every command has: the parser adds it where a command does not place it itself."""
    add_choice(parser, "--verbosity", "info|debug", "info", "Log level; debug shows tracebacks")


def add_choice(group: Options, name: str, choices: str, default: str | None, summary: str) -> None:
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


def count_or_auto(text: str) -> int | str:
    """A count, or the word auto, also as ``auto:4``."""
    return "auto" if read_batch_size(text) == "auto" else count(text)


def count_or_fraction(text: str) -> int | float:
    """A count, or a fraction between 0 and 1."""
    try:
        return float(read_limit(text)) if "." in text else count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _list_of(read: Callable[[str], T], what: str) -> Callable[[str], list[T]]:
    """A reader of values between commas."""

    def read_list(text: str) -> list[T]:
        try:
            return [read(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {what} separated by commas, got {text}") from None

    return read_list


numbers = _list_of(float, "numbers")
seeds = _list_of(int, "whole numbers")
