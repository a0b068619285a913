"""``ttmbench download``: fetches and checks everything that a later run with ``--offline`` needs: data and weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, warn
from ttmbench.cli.options import DATA_DIR, add_verbosity, count, names
from ttmbench.config import parse_pairs, split_names
from ttmbench.data.catalog import select_tasks
from ttmbench.data.download.http import Web
from ttmbench.data.fetch import Downloads, FetchLine, ask_again, fetch_model, plans, preview, preview_model
from ttmbench.data.paths import data_folder
from ttmbench.errors import INTERRUPTED, DataError, UsageError
from ttmbench.plugins.registry import build_registry

WIDTH = 40


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench download``."""
    parser.add_argument("names", nargs="*", metavar="TASKS", help="Task names, tags, globs or YAML files")
    parser.add_argument("--tasks", "-t", metavar="A,B", type=names, help="Tasks, separated by commas")
    parser.add_argument("--model", "-M", metavar="NAME", help="Also download this model's weights and tokenizer")
    parser.add_argument(
        "--model_args", "-a", metavar="K=V,...", help="Model arguments, such as pretrained=ID,revision=main"
    )
    parser.add_argument("--trust_remote_code", action="store_true", help="Also download code from the Hub repository")
    parser.add_argument("--data_dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--include_path", metavar="DIR", action="append", help="Directory with additional task files")
    parser.add_argument("--alternative", metavar="N", type=count, help="Download each task from its N-th source only")
    parser.add_argument("--retry", action="store_true", help="Retry single images that were unavailable before")
    parser.add_argument("--dry_run", action="store_true", help="List the downloads with their sizes and exit")
    add_verbosity(parser)


def download(options: argparse.Namespace) -> int:
    """Fetches what a model and tasks need, one line a file; 4 if anything is missing at the end."""
    registry = build_registry(options.include_path or [])
    names = [name for given in [*options.names, *(options.tasks or [])] for name in split_names(given)]
    if not names and options.model is None:
        raise UsageError("nothing is named: `ttmbench download TASKS`, or --model NAME, or both")
    model = None if options.model is None else registry.adapter(options.model)
    tasks = select_tasks(registry, names)
    folder = data_folder(Path(options.data_dir) if options.data_dir else None)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--data_dir {folder} is no folder")
    if options.data_dir and not options.dry_run:  # a later run with it expects one, even if nothing had to go there
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--data_dir {folder} cannot be made ({error.strerror or error})") from None
    model_args = parse_pairs(options.model_args or "")
    if options.trust_remote_code:
        model_args["trust_remote_code"] = True
    planned = plans(registry, tasks, folder, options.alternative)
    web = Web()
    if options.dry_run:
        for line in dict.fromkeys(line for plan in planned for line in preview(plan, web)):
            _say(line)
        if model is not None:
            _say(preview_model(model, model_args))
        return 0
    if options.retry:
        ask_again(planned)
    downloads = Downloads(registry, folder, web, _say)
    try:
        missing = [] if model is None or fetch_model(model, model_args, _say) else [f"model {model.name}"]
        missing += [plan.name for plan in planned if not downloads.fetch(plan)]
    except KeyboardInterrupt:
        warn("interrupted; the same command goes on where it stopped")
        return INTERRUPTED
    if missing:
        raise DataError(f"not everything could be fetched for {', '.join(missing)}; the lines above say why")
    return 0


def _say(line: FetchLine) -> None:
    name = f"{line.name}:" if line.is_task else line.name
    echo(f"{name:<{WIDTH}}  {line.status:<11}  {line.detail}".rstrip(), flush=True)
