"""``ttmbench score``: every metric from stored scores, ranks or per-sample results, without model and data."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.parser import add_run_options, count
from ttmbench.cli.run import show
from ttmbench.config import RunConfig

_OPTIONS = ("metrics", "output_path", "include_path", "interval", "bootstrap_iters", "seed", "assertions")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench score``."""
    add = parser.add_argument
    add("scores", nargs="+", metavar="FILE", help="Scores, ranks or per-sample results (JSONL, CSV, npz, safetensors)")
    add("--task", metavar="NAME", help="Task that the scores belong to (default: shape from the file)")
    add("--logit_scale", metavar="X", type=float, default=1.0, help="Scale for embedding products")
    add("--choice", action="store_true", help="Read per-sample results as forced choices, not as scores")
    add("--limit", metavar="N", type=count, help="Number of groups in the file, from the start of the task")
    add_run_options(parser, *_OPTIONS, title="")


def score(options: argparse.Namespace) -> int:
    """Compute the metrics, print and write them, and check the assertions."""
    from ttmbench.evaluator.score_files import score_stored

    given = {name: value for name in RunConfig.model_fields if (value := getattr(options, name, None)) is not None}
    given |= {"logit_scale": options.logit_scale, "limit": options.limit, "choice": options.choice}
    sources = [Path(name) for name in options.scores]
    results = score_stored(sources, options.task, command=["ttmbench", *sys.argv[1:]], **given)
    if options.task is None:
        about = results["datasets"]["scores"]
        images, captions = about["shape"]
        echo(f"{sources[0]}: {about['n_groups']} groups of {images} x {captions} (images x captions)")
    show(results)
    results.typed.check(given.get("assertions", []))
    return 0
