"""``ttmbench run``: a model evaluated on tasks, with a table and files."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ttmbench._util.console import echo, warn
from ttmbench._util.option_values import split_names
from ttmbench.cli.options import add_assertions, add_how, add_ttm_settings, add_verbosity, add_what
from ttmbench.config import RunConfig, make_run_config, parse_pairs
from ttmbench.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from ttmbench.evaluator.eval_results import EvalResults

LISTINGS = {"list": "tasks", "list_tags": "tags", "list_groups": "tags"}  # value of --tasks -> what to list
_PAIRS = ("model_args", "task_args", "ttm_args", "method_args", "track_args", "rerank")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench run``."""
    data = parser.add_argument_group("model and data")
    ttm = parser.add_argument_group("test-time training")
    how = parser.add_argument_group("execution")
    out = parser.add_argument_group("output")
    add_what(parser, data)
    data.add_argument("--samples", metavar="FILE", help="JSON list with the group IDs to use")
    name = "Model name in results (default: last part of its path)"
    data.add_argument("--name", dest="model_name", metavar="NAME", help=name)
    rerank = "First retrieval stage: model=NAME selects k=N candidates to rerank"
    data.add_argument("--rerank", metavar="K=V,...", help=rerank)
    parser.add_argument("--ttm", action="store_true", default=None, help="Adapt the model with test-time matching")
    add_ttm_settings(parser)
    methods = "Test-time methods from `ttmbench ls methods`: ttm, tent, zero, ..."
    parser.add_argument("--methods", metavar="A,B", type=split_names, help=methods)
    each = "Settings for methods, such as tent.lr=1e-3,zero.share=0.3"
    ttm.add_argument("--method_args", metavar="NAME.K=V,...", help=each)
    switch = partial(ttm.add_argument, action="store_true", default=None)
    switch("--simple_match", help="Also fine-tune on the raw model's matchings (SimpleMatch)")
    switch("--oracle", help="Also report an upper bound: TTM with correct pseudo-labels only (uses labels)")
    controls = "Also train on control pseudo-labels: placebo, shuffle"
    ttm.add_argument("--ttm_controls", metavar="A,B", type=split_names, help=controls)
    holdout = "Also hold out this fraction of groups from adaptation and score it"
    ttm.add_argument("--ttm_holdout", metavar="X", type=float, help=holdout)
    ttm.add_argument("--ttm_also", metavar="A,B", type=split_names, help="Also evaluate adapted models on these tasks")
    switch("--audit_labels", help="Repeat with permuted captions; fail if selections change")
    ttm.add_argument("--save_adapted", metavar="DIR", help="New directory for adapted models' weights")
    add_how(parser, how)
    how.add_argument("--on_error", metavar="raise|continue", help="Stop or continue after a failed task")
    parser.add_argument("--output_path", "-o", metavar="DIR|x.json", help="Results directory or file")
    parser.add_argument("--log_samples", action="store_true", default=None, help="Also write one JSON line per group")
    parser.add_argument("--save_scores", action="store_true", default=None, help="Also write the score arrays")
    parser.add_argument("--dry_run", action="store_true", help="Check all settings, print the plan and exit")
    repeated = "Tasks from an earlier run to repeat (default: failed and missing)"
    out.add_argument("--overwrite", metavar="failed|missing|always|never", help=repeated)
    out.add_argument("--baseline", metavar="RESULT", help="Results file to compare with")
    trackers = "Experiment trackers: wandb, trackio, tensorboard"
    out.add_argument("--track", metavar="A,B", type=split_names, help=trackers)
    out.add_argument("--track_args", metavar="K=V,...", help="Tracker settings: project, name, dir, wandb.mode, ...")
    add_assertions(out)
    add_verbosity(out)


def run(options: argparse.Namespace) -> int:
    """Run the evaluation; exit code 1 if a task failed or is mostly undecided, 130 if interrupted."""
    if options.tasks in LISTINGS:
        from ttmbench.cli.ls import print_kind

        return print_kind(LISTINGS[options.tasks], options.include_path or [])
    config = make_run_config(settings_of(options), "options")
    from ttmbench.evaluator.settings import choose, plan

    if options.dry_run:
        echo(json.dumps(plan(config), indent=2))
        return 0
    chosen = choose(config)  # reports a wrong name before torch is imported, which takes seconds
    from ttmbench.evaluator.run import run as evaluate

    try:
        with terminated_like_interrupted():
            results = evaluate(config, command=["ttmbench", *sys.argv[1:]], chosen=chosen)
    except KeyboardInterrupt as stop:
        show(getattr(stop, "results", None))
        resume = "finished tasks are saved; run the same command again to resume"
        warn(f"interrupted; {resume if config.output_path else 'nothing was saved'}")
        return INTERRUPTED
    except Exception as error:
        show(getattr(error, "results", None))
        raise
    show(results)
    results.typed.check_baseline()
    if config.assertions:
        from ttmbench.results.assertions import check_assertions

        check_assertions(config.assertions, results.typed)
    return 1 if results.typed.errors or results.typed.undecided_tasks() else 0


def show(results: EvalResults | None) -> None:
    """Print the table of a run, if it has results, and where they are."""
    from ttmbench.report.terminal import print_results

    if results is None:
        return
    print_results(results.typed)
    if results.address is not None:
        echo(f"results: {results.address}")
    elif results.path is not None and results.path.exists():
        echo(f"results: {results.path}")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line or else in ``--config``."""
    settings = _read_config_file(Path(options.config)) if options.config else {}
    if not set(settings) <= set(RunConfig.model_fields):
        make_run_config(settings, f"--config {options.config}")  # names the unknown key, which explains what is missing
    for key in _PAIRS:
        if isinstance(settings.get(key), str):
            settings[key] = parse_pairs(settings[key])
    for key in ("tasks", "ttm_also", "methods"):
        if isinstance(settings.get(key), str):
            settings[key] = split_names(settings[key])
    for name in RunConfig.model_fields:
        value = getattr(options, name, None)
        if value is None:
            continue
        if name in _PAIRS:
            settings[name] = {**settings.get(name, {}), **parse_pairs(value)}
        elif name == "tasks":
            settings[name] = split_names(value)
        else:
            settings[name] = value
    for needed in ("model", "tasks"):
        if not settings.get(needed):
            kind = f"{needed.rstrip('s')}s"
            raise UsageError(f"--{needed} is needed; `ttmbench ls {kind}` lists the {kind}")
    return settings


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM acts as SIGINT; a second signal while results are saved ends the process.

    Where SIGINT is ignored, as for background processes of a script, it stays ignored until SIGTERM comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    ctrl_c = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # A signal, not an exception: asyncio lets running requests finish only if it sees the signal.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if ctrl_c == signal.SIG_IGN:
            signal.signal(signal.SIGINT, ctrl_c)


def _read_config_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file for ``--config``; UsageError if it is not a mapping."""
    from ttmbench._util.text import Unreadable, read_yaml  # yaml is for this alone

    try:
        content = read_yaml(path)
    except Unreadable as error:
        raise UsageError(f"--config {path}: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: must be a mapping of options")
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    if len(settings) < len(content):
        raise UsageError(f"--config {path}: an option is given twice, with dashes and with underscores")
    return settings
