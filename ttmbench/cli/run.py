"""``ttmbench run``: options -> configuration -> results, table and files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ttmbench._util.console import complain, say
from ttmbench.config import RunConfig, make_run_config, parse_pairs, read_config_file, split_names
from ttmbench.errors import UsageError
from ttmbench.results.assertions import check_assertions

_PAIRS = ("model_args", "task_args", "ttm_args", "track_args")


def run(options: argparse.Namespace) -> int:
    """Runs what the options say and prints the table; 1 if a task failed, 130 if it was interrupted."""
    config = make_run_config(settings_of(options), "options")
    if options.dry_run:
        return _dry_run(config)
    from ttmbench.cli.interrupts import INTERRUPTED, terminated_like_interrupted
    from ttmbench.evaluator.baseline import check_baseline
    from ttmbench.evaluator.run import run as evaluate
    from ttmbench.report.terminal import print_results

    try:
        with terminated_like_interrupted():
            results = evaluate(config, command=["ttmbench", *sys.argv[1:]])
    except KeyboardInterrupt:
        kept = "what was finished is saved, and the same command goes on" if config.output_path else "nothing was kept"
        complain(f"interrupted; {kept}")
        return INTERRUPTED
    print_results(results.document)
    if results.path is not None:
        say(f"results: {results.path}")
    check_baseline(results.document)
    check_assertions(config.assertions, results.document)
    return 1 if results.failed else 0


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Command line over ``--config``; what neither sets is left to the defaults."""
    settings = read_config_file(Path(options.config)) if options.config else {}
    for key in _PAIRS:
        if isinstance(settings.get(key), str):
            settings[key] = parse_pairs(settings[key])
    if isinstance(settings.get("tasks"), str):
        settings["tasks"] = split_names(settings["tasks"])
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
            raise UsageError(f"--{needed} is needed; `ttmbench ls {needed.rstrip('s')}s` lists what there is")
    return settings


def _dry_run(config: RunConfig) -> int:
    from ttmbench.evaluator.settings import plan

    say(json.dumps(plan(config), indent=2))
    return 0
