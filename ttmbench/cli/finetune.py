"""``ttmbench finetune``: ordinary finetuning on labelled groups of tasks, into a folder that other commands take."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import datetime

from ttmbench._util.console import echo, warn
from ttmbench.cli.options import add_machine, add_verbosity, add_what
from ttmbench.cli.run import settings_of
from ttmbench.config import RunConfig, make_run_config, parse_pairs
from ttmbench.errors import INTERRUPTED


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench finetune``."""
    more = parser.add_argument_group("more options")
    add_what(parser, more)
    more.add_argument("--samples", metavar="FILE", help="JSON list with the group IDs to use")
    parser.add_argument("--preset", metavar="NAME", help="Hyperparameters from a paper: colorswap")
    parser.add_argument(
        "--finetune_args",
        metavar="K=V,...",
        help="Hyperparameters: epochs, lr, schedule, weight_decay, batch; they override --preset",
    )
    add_machine(parser, more, seed="Seed for the pair order and dropout")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="New directory for the weights and their record")
    add_verbosity(more)


def finetune(options: argparse.Namespace) -> int:
    """Finetunes, says where the weights are and how to evaluate them; 130 if interrupted."""
    settings = settings_of(options)
    preset = options.preset or settings.get("preset")
    given = settings.pop("finetune_args", {})
    changes = {**(parse_pairs(given) if isinstance(given, str) else given), **parse_pairs(options.finetune_args or "")}
    settings.pop("preset", None)
    config = make_run_config(settings, "options")
    from ttmbench.evaluator.settings import choose

    choose(config)  # a wrong name is told before torch is imported, which takes seconds
    from ttmbench.cli.run import terminated_like_interrupted
    from ttmbench.evaluator.finetune import finetune_model

    command = ["ttmbench", *sys.argv[1:]]
    try:
        with terminated_like_interrupted():
            found = finetune_model(config, datetime.now().astimezone(), command, preset=preset, changes=changes)
    except KeyboardInterrupt:
        warn("interrupted; the same command goes on after the last epoch that was written down")
        return INTERRUPTED
    record = found.record
    if found.was_done:
        echo(f"{found.folder} is done already; name another --output_path to finetune again")
    epochs = record["epochs"]
    losses = f"loss {epochs[0]['loss']:.4g} after the first, {epochs[-1]['loss']:.4g} after the last"
    names = ", ".join(one["task"] for one in record["tasks"])
    echo(
        f"{record['base']['model_name']} finetuned on {names}: {record['pairs']} pairs, {len(epochs)} epochs, {losses}"
    )
    for note in record["notes"]:
        echo(f"note: {note}")
    echo(f"weights: {found.folder}")
    echo(f"evaluate them: {shlex.join(_command(config))} --tasks TASKS    # their results have the track supervised")
    return 0


def _command(config: RunConfig) -> list[str]:
    """How a run takes the weights."""
    from ttmbench.evaluator.adapters import loads_as
    from ttmbench.plugins.registry import build_registry

    target = build_registry(config.include_path).adapter(config.model).target
    name, arguments = loads_as(target, config.model, str(config.output_path))
    return ["ttmbench", "--model", name, "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())]
