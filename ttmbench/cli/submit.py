"""``ttmbench submit``: a run, checked and copied to where the leaderboard's repository has submissions."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from ttmbench._util.console import echo, warn
from ttmbench._util.file_io import safe_name
from ttmbench.cli.parser import add_run_options
from ttmbench.errors import AssertionNotMet, UsageError

MOST_BYTES = 10_000_000  # of a file in the repository
PLACE = Path("results") / "submissions"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench submit``."""
    add = parser.add_argument
    add("result", metavar="RESULT", help="Results file, or directory with one, of a run with --save_scores")
    add("--repository", metavar="DIR", default=".", help="Checkout or directory to copy the run to")
    add_run_options(parser, "data_dir", "include_path", title="")


def submit(options: argparse.Namespace) -> int:
    """Copy a run with the files beside it if every number of it is computed again from what it stored."""
    from ttmbench.cli.validate import check_results, documents_in
    from ttmbench.plugins.registry import build_registry
    from ttmbench.results.reader import read_document

    path, *others = documents_in(Path(options.result))
    if others:
        raise UsageError(f"{options.result} has {1 + len(others)} results documents; name one, such as {path}")
    options.schema_only = False
    if check_results([path], build_registry(options.include_path or []), options, complete=True) != 0:
        raise AssertionNotMet(f"{path} is not submitted: `ttmbench validate --complete` has to pass first")
    document = read_document(path)
    large = [name for name, about in document.artifacts.items() if about.bytes > MOST_BYTES]
    if large:
        raise UsageError(f"{', '.join(large)}: above {MOST_BYTES // 10**6} MB; submit a run of the other tasks")
    folder = Path(options.repository) / PLACE / safe_name(document.model_name)
    if (folder / path.name).exists() and (folder / path.name).read_bytes() != path.read_bytes():
        raise UsageError(f"{folder / path.name} is another document; give the run's file another name")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (path.name, *document.artifacts):
        if (folder / name).resolve() != (path.parent / name).resolve():
            shutil.copyfile(path.parent / name, folder / name)
        echo(str(folder / name))
    limited = [task for task in document.results if document.extent(task).limited]
    if limited:
        warn(f"{', '.join(limited)}: of a part of the groups, so these rows rank nowhere")
    for name, about in document.artifacts.items():
        if name.endswith(".jsonl") and about.kind in ("samples", "also_samples") and about.task in document.datasets:
            warn(f"{name} holds captions of {about.task} ({document.datasets[about.task].license})")
    echo(f"next, in a checkout: git switch -c NAME; git add {folder}; git commit; then push and open a pull request")
    return 0
