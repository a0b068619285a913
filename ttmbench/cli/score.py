"""``ttmbench score``: every metric from stored scores, ranks, answers or per-sample results, without model and data."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.parser import add_run_options, count
from ttmbench.config import RunConfig, make_run_config
from ttmbench.report.terminal import print_results
from ttmbench.results.document import check_names, parse_assertion
from ttmbench.results.numbers import SLASH

_OPTIONS = ("output_path", "include_path", "interval", "bootstrap_iters", "seed", "assertions")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench score``."""
    files = "Scores, ranks, answers or per-sample results (JSONL, JSON, CSV, npz, npy, safetensors)"
    parser.add_argument("scores", nargs="+", metavar="FILE", help=files)
    parser.add_argument("--task", metavar="NAME", help="Task that the scores belong to (default: shape from the file)")
    parser.add_argument("--logit_scale", metavar="X", type=float, default=1.0, help="Scale for embedding products")
    choice = "Read per-sample results as forced choices, not as scores"
    parser.add_argument("--choice", action="store_true", help=choice)
    limit = "Number of groups in the file, from the start of the task"
    parser.add_argument("--limit", metavar="N", type=count, help=limit)
    add_run_options(parser, *_OPTIONS, title="")


def score(options: argparse.Namespace) -> int:
    """Compute the metrics, print and write them, and check the assertions."""
    from ttmbench.evaluator.eval_results import sample_lines
    from ttmbench.evaluator.resume import archive_existing, open_run_files
    from ttmbench.evaluator.score_files import score_stored

    given = {name: value for name in RunConfig.model_fields if (value := getattr(options, name, None)) is not None}
    config = make_run_config({**given, "model": "scores", "tasks": ["scores"]}, "options")
    for assertion in config.assertions:
        parse_assertion(assertion)
    sources = [Path(name) for name in options.scores]
    started = datetime.now().astimezone()
    name = "+".join(source.stem for source in sources)
    files = open_run_files(config.output_path, name, started) if config.output_path else None
    results = score_stored(
        sources,
        options.task,
        include_path=config.include_path,
        logit_scale=options.logit_scale,
        limit=options.limit,
        bootstrap_iters=config.bootstrap_iters,
        interval=config.interval,
        seed=config.seed,
        command=["ttmbench", *sys.argv[1:]],
        choice=options.choice,
    )
    document = results.document
    known = {task: list(metrics) for task, metrics in document["higher_is_better"].items()}
    for task, means in document.get("tag_means", {}).items():
        known |= {f"{task}{SLASH}{mean}": known[task] for mean in means}
    check_names(config.assertions, known, list(dict.fromkeys(number.method for number in results.typed.numbers)))
    if options.task is None:
        about = document["datasets"]["scores"]
        images, captions = about["shape"]
        echo(f"{sources[0]}: {about['n_groups']} groups of {images} x {captions} (images x captions)")
    print_results(results.typed)
    if files is not None:
        archive_existing(files)
        for result in results.tasks.values():
            files.write_lines("samples", result.spec.task, sample_lines(result))
        files.write_results({**document, "artifacts": dict(files.artifacts)})
        echo(f"results: {files.results}")
    results.typed.check(config.assertions)
    return 0
