"""``ttmbench run``: a model evaluated on tasks, with a table and files."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from ttmbench._util.console import echo, warn
from ttmbench.cli.parser import add_run_options
from ttmbench.config import RunConfig, make_run_config, parse_pairs
from ttmbench.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from ttmbench.evaluator.eval_results import EvalResults

MOST_TASKS = 5  # that a dry run lists
LISTINGS = {"list": "tasks", "list_tags": "tags", "list_groups": "tags"}  # value of --tasks -> what to list


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench run``."""
    add_run_options(parser, overwrite="failed and missing")
    parser.add_argument("--dry_run", action="store_true", help="Check model, data and settings, print a plan and exit")
    parser.add_argument("--json", action="store_true", help="With --dry_run: print all settings as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the evaluation; exit code 1 if a task failed or is mostly undecided, 130 if interrupted."""
    if options.tasks in LISTINGS:
        from ttmbench.cli.ls import print_kind

        return print_kind(LISTINGS[options.tasks], options.include_path or [])
    config = make_run_config(settings_of(options), "options")
    if config.seeds and options.seeds == str(seed := config.seeds[0]) and seed > 1:
        warn(f"--seeds {seed} is one run with seed {seed}; {seed} runs are --seeds {','.join(map(str, range(seed)))}")
    from ttmbench.evaluator.evaluate import evaluate, resolve

    if options.json and not options.dry_run:
        raise UsageError("--json is for --dry_run; a run writes its results as JSON to --output_path")
    chosen = resolve(config)  # reports a wrong name before torch is imported, which takes seconds
    if options.dry_run:
        from ttmbench.evaluator.dry_run import check

        steps = check(config, chosen)
        echo(json.dumps(steps, indent=2) if options.json else "\n".join(plan_lines(config, steps)))
        return 0
    try:
        with terminated_like_interrupted():
            results = evaluate(config, chosen, command=["ttmbench", *sys.argv[1:]])
    except KeyboardInterrupt as stop:
        show(getattr(stop, "results", None))
        resume = "finished tasks are saved; run the same command again to resume"
        warn(f"interrupted; {resume if config.output_path else 'nothing was saved'}")
        return INTERRUPTED
    except Exception as error:
        show(getattr(error, "results", None))
        raise
    show(results)
    if config.assertions or config.baseline:
        results.typed.check(config.assertions)
    return 1 if results.typed.errors or results.typed.undecided_tasks() else 0


def show(results: EvalResults | None) -> None:
    """Print the table of a run, if it has results, and where they are."""
    from ttmbench.report.terminal import print_results

    if results is None:
        return
    print_results(results.typed)
    if place := results.address or results.path:
        echo(f"results: {place}")


def plan_lines(config: RunConfig, steps: Mapping[str, Any]) -> list[str]:
    """What a dry run found, in about ten lines."""
    from ttmbench.data.availability import amount

    tasks, lines = steps["tasks"], [f"model    {config.model_name}: {'; '.join(steps['model_files']) or 'ready'}"]
    for name, about in list(tasks.items())[:MOST_TASKS]:
        size, found = about.get("bytes_to_fetch"), "not read by this model"
        if "groups" in about:
            found = f"{about['groups']:,} groups, data are here"
        elif size is not None:
            found = f"data are to be downloaded ({'size unknown' if size < 0 else amount(size)})"
        lines.append(f"task     {name}: {found}")
    lines += [f"task     and {len(tasks) - MOST_TASKS} more"] if len(tasks) > MOST_TASKS else []
    known, seeds = [about for about in tasks.values() if "groups" in about], ", ".join(map(str, config.run_seeds))
    images, captions = (sum(about[what] for about in known) for what in ("images", "captions"))
    lines.append(f"cost     {images:,} images and {captions:,} captions{' known' if len(known) < len(tasks) else ''}")
    for method in config.methods:
        of = [(about["groups"], about["methods"][method]) for about in known]
        passes = len(config.run_seeds) * sum(n * how.get("iterations", 1) * how.get("epochs", 1) for n, how in of)
        rates = {f"{how['lr']:g}": None for _, how in of if how.get("lr")}
        rate = f"lr {' or '.join(rates)}, " if rates else ""
        lines.append(f"method   {method}: {rate}at most {passes:,} passes of a group, seeds {seeds}")
    lines.append(f"results  {steps['results'] or 'are printed only: no --output_path'}")
    return lines


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line or else in ``--config``."""
    settings = _read_config_file(Path(options.config)) if options.config else {}
    for name, field in RunConfig.model_fields.items():
        value = getattr(options, name, None)
        if value is None:
            continue
        if get_origin(field.annotation) is dict:
            value = {**parse_pairs(settings.get(name, {})), **parse_pairs(value)}
        settings[name] = value
    for needed in ("model", "tasks"):
        if not settings.get(needed):
            raise UsageError(f"--{needed} is needed; `ttmbench ls {needed.rstrip('s')}s` lists what there is")
    return settings


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM acts as Ctrl-C, also for background processes of a script, where SIGINT is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_config_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file for ``--config``; UsageError if it is not a mapping."""
    from ttmbench._util.file_io import read_yaml  # with yaml, which --help does without

    content = read_yaml(path, "--config ")
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: must be a mapping of options")
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    if len(settings) < len(content):
        raise UsageError(f"--config {path}: an option is given twice, with dashes and with underscores")
    if not settings.keys() <= RunConfig.model_fields.keys():
        make_run_config(settings, f"--config {path}")  # names the unknown key, which explains what is missing
    return settings
