"""``ttmbench sweep``: one run for each cell of a plan of models, tasks and settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import echo, warn
from ttmbench._util.file_io import to_json, write_text
from ttmbench.cli.parser import MACHINE, add_choice, add_run_options, count
from ttmbench.cli.run import terminated_like_interrupted
from ttmbench.config import RunConfig, parse_pairs
from ttmbench.errors import INTERRUPTED, UsageError
from ttmbench.results.models import SWEEP_FILE

if TYPE_CHECKING:
    from ttmbench.sweep.plan import Cell


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench sweep``."""
    parser.add_argument("plan", metavar="PLAN.yaml", help="YAML file with models, tasks and settings")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="Directory for results and sweep.json")
    parser.add_argument("--dry_run", action="store_true", help="List the cells with their status and exit")
    parser.add_argument("--cell", metavar="K", type=count, help="Run only the cell with this number in --dry_run")
    workers = parser.add_argument_group("options for workers")
    add_choice(workers, "--executor", "local|ray", "local", "Local processes, or tasks of a Ray cluster")
    settings = "For Ray: address, and options of its tasks, such as num_cpus=4,num_gpus=1"
    workers.add_argument("--executor_args", metavar="K=V,...", help=settings)
    number = "Cells at a time (default: one per GPU, else one; with Ray as many as fit)"
    workers.add_argument("--workers", metavar="N", type=count, help=number)
    title = "options for every cell, which override the plan"
    add_run_options(parser, "include_path", "limit", "log_samples", "save_scores", *MACHINE, title=title)


def sweep(options: argparse.Namespace) -> int:
    """Run a plan; exit code 1 if a cell failed, 130 if interrupted."""
    from ttmbench.sweep.plan import expand, read_plan

    root = None if options.output_path is None else Path(options.output_path)
    if root is not None and (root.suffix == ".json" or root.is_file()):
        raise UsageError(f"--output_path must be a directory for a sweep, got {root}")
    if root is None and not options.dry_run:
        raise UsageError("--output_path DIR is needed: a sweep writes its results there, and resumes from them")
    if options.executor_args is not None and options.executor == "local":
        raise UsageError("--executor_args is for --executor ray")
    names = RunConfig.model_fields.keys() - {"output_path"}
    over = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    cells = expand(read_plan(Path(options.plan)), options.plan, over, root or Path())
    if options.cell is not None and options.cell > len(cells):
        raise UsageError(
            f"--cell must be at most {len(cells)}, the number of cells of {options.plan}, got {options.cell}"
        )
    chosen = cells if options.cell is None else [cells[options.cell - 1]]
    left = [cell for cell in chosen if root is None or not cell.is_done()]
    if options.dry_run:
        return _dry_run(chosen, left)
    assert root is not None, "a sweep has a folder"
    write_text(
        root / SWEEP_FILE, to_json({"kind": "sweep", "plan": options.plan, "cells": [one.folder for one in cells]})
    )
    if options.cell is None:
        return _run(options, cells, left, root)
    if not left:
        echo(f"cell {options.cell} is already done: {chosen[0].document}")
        return 0
    from ttmbench.cli import main
    from ttmbench.sweep.execute import write_run

    return main(["run", "--config", str(write_run(chosen[0]))])


def _run(options: argparse.Namespace, cells: Sequence[Cell], left: Sequence[Cell], root: Path) -> int:
    """Run the cells that are left, and print how each ends."""
    from ttmbench.sweep.execute import run_locally, run_on_ray

    arguments, outcomes = parse_pairs(options.executor_args or ""), run_locally(left, options.workers)
    if options.executor == "ray":
        outcomes = run_on_ray(left, root, options.workers, **arguments)
    done, failed = len(cells) - len(left), 0
    if done:
        warn(f"{done} of {len(cells)} cells are already done")
    try:
        with terminated_like_interrupted():
            for cell, why in outcomes if left else ():
                done, failed = done + (why is None), failed + (why is not None)
                warn(f"{done + failed}/{len(cells)} {cell.folder} " + ("done" if why is None else f"failed: {why}"))
    except KeyboardInterrupt:
        warn("interrupted; run the same command again to resume")
        return INTERRUPTED
    echo(f"{len(cells)} cells: {done} done, {failed} failed; `ttmbench report {root}` shows the results")
    return 1 if failed else 0


def _dry_run(cells: Sequence[Cell], left: Sequence[Cell]) -> int:
    """Print the cells and which of them are done."""
    from ttmbench.report.terminal import TableColumn, print_table

    rows = [[str(cell.number), cell.folder, "to run" if cell in left else "done"] for cell in cells]
    print_table([TableColumn("cell", "key"), TableColumn("folder", "key"), TableColumn("status", "key")], rows)
    echo()
    echo(f"{len(cells)} cells, {len(left)} to run")
    return 0
