"""``ttmbench download``: the data and weights that a later run with ``--offline`` needs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, warn
from ttmbench._util.option_values import split_names
from ttmbench.cli.options import add_data_files, count
from ttmbench.config import parse_pairs
from ttmbench.data.catalog import select_tasks
from ttmbench.data.download.http import Web
from ttmbench.data.fetch import Downloads, FetchLine, ask_again, fetch_model, plans, preview, preview_model
from ttmbench.data.paths import data_folder
from ttmbench.errors import INTERRUPTED, DataError, UsageError
from ttmbench.plugins.registry import build_registry

WIDTH = 40


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench download``."""
    add = parser.add_argument
    add("names", nargs="*", metavar="TASKS", help="Task names, tags, globs or YAML files")
    add("--tasks", "-t", metavar="A,B", type=split_names, help="Tasks, separated by commas")
    add("--model", "-M", metavar="NAME", help="Also download this model's weights and tokenizer")
    add("--model_args", "-a", metavar="K=V,...", help="Model arguments, such as pretrained=ID,revision=main")
    add("--trust_remote_code", action="store_true", help="Also download code from the Hub repository")
    add_data_files(parser)
    add("--alternative", metavar="N", type=count, help="Download each task from its N-th source only")
    add("--retry", action="store_true", help="Retry single images that were unavailable before")
    add("--dry_run", action="store_true", help="List the downloads with their sizes and exit")


def download(options: argparse.Namespace) -> int:
    """Download the files of tasks and a model, one line each; exit code 4 if any is missing at the end."""
    registry = build_registry(options.include_path or [])
    names = [name for text in [*options.names, *(options.tasks or [])] for name in split_names(text)]
    if not names and options.model is None:
        raise UsageError("download needs tasks, --model NAME or both, such as `ttmbench download winoground`")
    model = None if options.model is None else registry.adapter(options.model)
    tasks = select_tasks(registry, names)
    folder = data_folder(Path(options.data_dir) if options.data_dir else None)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--data_dir must be a directory, and {folder} is a file")
    if options.data_dir and not options.dry_run:  # a later run expects it, even if nothing had to be written
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--data_dir {folder} cannot be created ({error.strerror or error})") from None
    model_args = parse_pairs(options.model_args or "")
    if options.trust_remote_code:
        model_args["trust_remote_code"] = True
    planned = plans(registry, tasks, folder, options.alternative)
    web = Web()
    if options.dry_run:
        for line in dict.fromkeys(line for plan in planned for line in preview(plan, web)):
            _print(line)
        if model is not None:
            _print(preview_model(model, model_args))
        return 0
    if options.retry:
        ask_again(planned)
    downloads = Downloads(registry, folder, web, _print)
    try:
        missing = [] if model is None or fetch_model(model, model_args, _print) else [f"model {model.name}"]
        missing += [plan.name for plan in planned if not downloads.fetch(plan)]
    except KeyboardInterrupt:
        warn("interrupted; run the same command again to resume")
        return INTERRUPTED
    if missing:
        raise DataError(f"the download is incomplete for {', '.join(missing)}; the lines above give the reasons")
    return 0


def _print(line: FetchLine) -> None:
    name = f"{line.name}:" if line.is_task else line.name
    echo(f"{name:<{WIDTH}}  {line.status:<11}  {line.detail}".rstrip(), flush=True)
