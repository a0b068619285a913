"""``ttmbench finetune``: supervised fine-tuning on labelled groups, into a folder that other commands can load."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from ttmbench._util.console import echo, warn
from ttmbench.cli.parser import MACHINE, WHAT, add_run_options
from ttmbench.cli.run import settings_of, terminated_like_interrupted
from ttmbench.config import make_run_config, parse_pairs
from ttmbench.errors import INTERRUPTED
from ttmbench.results.models import command_line


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench finetune``."""
    add_run_options(parser, *WHAT, "samples", *MACHINE)
    parser.add_argument("--preset", metavar="NAME", help="Hyperparameters from a paper: colorswap")
    hyperparameters = "Hyperparameters: epochs, lr, schedule, weight_decay, batch; they override --preset"
    parser.add_argument("--finetune_args", metavar="K=V,...", help=hyperparameters)
    parser.add_argument("--output_path", "-o", metavar="DIR", help="New directory for the weights and their record")


def finetune(options: argparse.Namespace) -> int:
    """Fine-tune a model and print how to evaluate it; 130 if interrupted."""
    config = make_run_config(settings_of(options), "options")
    changes = parse_pairs(options.finetune_args or "")
    from ttmbench.evaluator.evaluate import resolve

    chosen = resolve(config)  # reports a wrong name before torch is imported, which takes seconds
    from ttmbench.evaluator.adapters import loads_as
    from ttmbench.evaluator.supervised import finetune_model

    command = ["ttmbench", *sys.argv[1:]]
    try:
        with terminated_like_interrupted():
            finetuned = finetune_model(
                config, datetime.now().astimezone(), command, preset=options.preset, changes=changes
            )
    except KeyboardInterrupt:
        warn("interrupted; run the same command again to resume after the last saved epoch")
        return INTERRUPTED
    record = finetuned.record
    if finetuned.was_done:
        echo(f"{finetuned.folder} is already fine-tuned; choose another --output_path to fine-tune again")
    epochs = record["epochs"]
    losses = f"loss {epochs[0]['loss']:.4g} after the first and {epochs[-1]['loss']:.4g} after the last"
    names = ", ".join(task["task"] for task in record["tasks"])
    echo(
        f"{record['base']['model_name']} fine-tuned on {names}: {record['pairs']} pairs, {len(epochs)} epochs, {losses}"
    )
    for note in record["notes"]:
        echo(f"note: {note}")
    echo(f"weights: {finetuned.folder}")
    model, given = loads_as(chosen.registry.adapters[config.model].target, config.model, str(config.output_path))
    again = command_line(["ttmbench"], {"model": model, "model_args": given, "tasks": ["TASKS"]})
    echo(f"evaluate: {again}    # results are in the supervised track")
    return 0
