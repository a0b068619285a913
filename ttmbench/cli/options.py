"""Options that several commands share, and what their values are read as. What one command has alone is beside it."""

from __future__ import annotations

import argparse
from typing import Any

from ttmbench._util.spellings import read_batch_size, read_limit

DATA_DIR = "where data files lie (default: TTMBENCH_DATA, else a cache)"
USE_CACHE = "where raw scores are kept for later runs (default: TTMBENCH_CACHE, else a cache)"


def add_what(group: Any) -> None:
    """What is run: a model, tasks, and changes to both."""
    group.add_argument("--model", "-M", "-m", metavar="NAME", help="see `ttmbench ls models`")
    group.add_argument("--model_args", "-a", metavar="K=V,...", help="arguments of the model")
    group.add_argument(
        "--tasks", "-t", metavar="A,B", help="names, tags, globs or YAML files by commas or blanks; list shows all"
    )
    group.add_argument("--task_args", metavar="K=V,...", help="changes to the tasks' source, such as seed=3")
    group.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    group.add_argument(
        "--limit", "-L", metavar="N", type=count_or_share, help="the first N groups only; below 1 a share of them"
    )
    group.add_argument("--config", metavar="FILE", help="YAML file of these options; the command line wins")


def add_ttm_settings(group: Any) -> None:
    """Settings of the test-time stage."""
    group.add_argument("--ttm_args", metavar="K=V,...", help="lr, epochs, iterations, schedule, tau_start, ...")
    group.add_argument("--ttm_preset", metavar="auto|paper", help="paper: the task's preset for this model, four seeds")
    group.add_argument("--seeds", metavar="0,1,2,3", type=seeds, help="seeds of the test-time stage (default: one)")


def add_how(group: Any) -> None:
    """How it is run: batches, device, seeds, intervals, where things are kept."""
    add_machine(group, seed="of the bootstrap, and the first of --seeds")
    group.add_argument("--compile", action="store_true", default=None, help="run the model through torch.compile")
    add_interval(group, default=None)


def add_machine(group: Any, seed: str) -> None:
    """Batches, device, seed (and what it is of), and where things are kept: of all that has a model at work."""
    group.add_argument(
        "--batch_size",
        "-b",
        metavar="N|auto",
        type=count_or_auto,
        help="scored at a time; moves scores by rounding at most",
    )
    group.add_argument("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps; of `run` several: cuda:0,1")
    group.add_argument(
        "--dtype", metavar="fp32|bf16|fp16", help="of the model's arithmetic, also as float32, ...; scores are fp32"
    )
    group.add_argument(
        "--deterministic", action="store_true", default=None, help="the same bits every time on one machine; one thread"
    )
    group.add_argument("--seed", metavar="N", type=int, help=seed)
    group.add_argument("--use_cache", metavar="DIR|off", help=USE_CACHE)
    group.add_argument("--offline", action="store_true", default=None, help="use what is on this machine only")
    group.add_argument("--data_dir", metavar="DIR", help=DATA_DIR)
    group.add_argument("--trust_remote_code", action="store_true", default=None, help="run code that a hub model ships")


def add_interval(group: Any, default: int | None) -> None:
    """How intervals are made; ``default`` is the number of resamples, None to leave both unsaid."""
    group.add_argument(
        "--interval",
        metavar="wilson|percentile|bca",
        choices=("wilson", "percentile", "bca"),
        default=None if default is None else "wilson",
        help="Wilson's interval (default), or a bootstrap over groups",
    )
    group.add_argument(
        "--bootstrap_iters", metavar="N", type=int, default=default, help="resamples, 0 for no intervals at all"
    )


def add_assertions(parser: Any) -> None:
    """Conditions that the numbers have to meet."""
    parser.add_argument("--assert", dest="assertions", metavar="COND", action="append", help="task.metric,filter>=0.9")


def add_verbosity(parser: Any) -> None:
    """Whether tracebacks are shown."""
    parser.add_argument(
        "--verbosity",
        type=str.lower,
        choices=("info", "debug"),
        default="info",
        metavar="info|debug",
        help="debug: show tracebacks",
    )


def count(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def count_or_auto(text: str) -> int | str:
    """A count, or the word auto, also as ``auto:4``."""
    size = read_batch_size(text)
    return "auto" if size == "auto" else count(text)


def count_or_share(text: str) -> int | float:
    """A count, or a share between 0 and 1."""
    try:
        return float(read_limit(text)) if "." in text else count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names(text: str) -> list[str]:
    """Words between commas, without the blanks around them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, got {text}") from None


def seeds(text: str) -> list[int]:
    """Whole numbers between commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, got {text}") from None
