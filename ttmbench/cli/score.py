"""``ttmbench score``: every metric from stored scores, ranks, answers or per-sample results, without model and data."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.options import add_assertions, add_interval, add_task_files, count
from ttmbench.report.terminal import print_results
from ttmbench.results.assertions import check_assertions, check_names, parse_assertion
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import SLASH, split_key


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench score``."""
    files = "Scores, ranks, answers or per-sample results (JSONL, JSON, CSV, npz, npy, safetensors)"
    parser.add_argument("scores", nargs="+", metavar="FILE", help=files)
    parser.add_argument("--task", metavar="NAME", help="Task that the scores belong to (default: shape from the file)")
    parser.add_argument("--output_path", "-o", metavar="DIR|x.json", help="Results directory or file")
    parser.add_argument("--logit_scale", metavar="X", type=float, default=1.0, help="Scale for embedding products")
    choice = "Read per-sample results as forced choices, not as scores"
    parser.add_argument("--choice", action="store_true", help=choice)
    add_task_files(parser)
    limit = "Number of groups in the file, from the start of the task"
    parser.add_argument("--limit", metavar="N", type=count, help=limit)
    add_interval(parser, default=1000)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="Seed for the bootstrap")
    add_assertions(parser)


def score(options: argparse.Namespace) -> int:
    """Compute the metrics, print and write them, and check the assertions."""
    from ttmbench.evaluator.eval_results import sample_lines
    from ttmbench.evaluator.resume import archive_existing, open_run_files
    from ttmbench.evaluator.score_files import score_stored

    assertions = options.assertions or []
    for assertion in assertions:
        parse_assertion(assertion)
    sources = [Path(name) for name in options.scores]
    started = datetime.now().astimezone()
    name = "+".join(source.stem for source in sources)
    files = open_run_files(options.output_path, name, started) if options.output_path else None
    results = score_stored(
        sources,
        options.task,
        include_path=options.include_path or [],
        logit_scale=options.logit_scale,
        limit=options.limit,
        bootstrap_iters=options.bootstrap_iters,
        interval=options.interval,
        seed=options.seed,
        command=["ttmbench", *sys.argv[1:]],
        choice=options.choice,
    )
    document = results.document
    known = {task: list(metrics) for task, metrics in document["higher_is_better"].items()}
    for task, means in document.get("tag_means", {}).items():
        known |= {f"{task}{SLASH}{mean}": known[task] for mean in means}
    filters = [split_key(key)[1] for numbers in document["results"].values() for key in numbers]
    check_names(assertions, known, list(dict.fromkeys(filters)))
    if options.task is None:
        about = document["datasets"]["scores"]
        images, captions = about["shape"]
        echo(f"{sources[0]}: {about['n_groups']} groups of {images} x {captions} (images x captions)")
    print_results(document)
    if files is not None:
        archive_existing(files)
        for result in results.tasks.values():
            files.write_lines("samples", result.spec.task, sample_lines(result))
        files.write_results({**document, "artifacts": dict(files.artifacts)})
        echo(f"results: {files.results}")
    check_assertions(assertions, ResultsDocument.of(document))
    return 0
