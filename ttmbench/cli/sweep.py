"""``ttmbench sweep``: one run for each cell of a plan of models, tasks and settings."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import echo, warn
from ttmbench.cli.options import LIMIT, add_choice, add_machine, add_task_files, count, count_or_fraction
from ttmbench.cli.run import terminated_like_interrupted
from ttmbench.config import RunConfig, parse_pairs
from ttmbench.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from ttmbench.evaluator.executor import Executor
    from ttmbench.sweep.plan import PlannedCell


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench sweep``."""
    parser.add_argument("plan", metavar="PLAN.yaml", help="YAML file with models, tasks and settings")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="Directory for results and sweep.json")
    parser.add_argument("--dry_run", action="store_true", help="List the cells with their status and exit")
    parser.add_argument("--cell", metavar="K", type=count, help="Run only the cell with this number in --dry_run")
    on_error = "Continue with other cells after a failure, or start no new ones"
    add_choice(parser, "--on_error", "continue|raise", "continue", on_error)
    workers = parser.add_argument_group("options for workers")
    add_choice(workers, "--executor", "local|ray", "local", "Local processes, or Ray workers on a cluster")
    settings = "Settings: stall=SECONDS ends hung workers; for Ray also address, num_cpus, num_gpus, ..."
    workers.add_argument("--executor_args", metavar="K=V,...", help=settings)
    number = "Number of workers (default: one per GPU, else one)"
    workers.add_argument("--workers", metavar="N", type=count, help=number)
    over = parser.add_argument_group("options for every cell, which override the plan")
    add_task_files(over)
    over.add_argument("--limit", "-L", metavar="N", type=count_or_fraction, help=LIMIT)
    samples = "Write one JSON line per group (default: yes)"
    over.add_argument("--log_samples", action="store_true", default=None, help=samples)
    over.add_argument("--save_scores", action="store_true", default=None, help="Also write the score arrays")
    add_machine(over, over, seed="Seed for the bootstrap, and first test-time seed")


def sweep(options: argparse.Namespace) -> int:
    """Run a plan; exit code 1 if a cell failed, 130 if interrupted."""
    from ttmbench.sweep.plan import expand, read_plan

    names = RunConfig.model_fields.keys() - {"output_path", "on_error"}
    over = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    planned = expand(read_plan(Path(options.plan)), options.plan, over, ["ttmbench", *sys.argv[1:]])
    if options.cell is not None and options.cell > len(planned):
        raise UsageError(
            f"--cell must be at most {len(planned)}, the number of cells of {options.plan}, got {options.cell}"
        )
    if options.dry_run:
        chosen = planned if options.cell is None else [planned[options.cell - 1]]
        return _dry_run(chosen, None if options.output_path is None else Path(options.output_path))
    if options.output_path is None:
        raise UsageError("--output_path DIR is needed: a sweep writes its results there, and resumes from them")
    root = Path(options.output_path)
    if root.suffix == ".json" or root.is_file():
        raise UsageError(f"--output_path must be a directory for a sweep, got {root}")
    return (_sweep if options.cell is None else _one_cell)(options, planned, root)


def _sweep(options: argparse.Namespace, planned: Sequence[PlannedCell], root: Path) -> int:
    from ttmbench.sweep.driver import Driver, display
    from ttmbench.sweep.folder import SUMMARY, one_driver

    try:
        with terminated_like_interrupted(), one_driver(root):
            driver = Driver(planned, root, options.plan, options.on_error)
            if driver.left < len(planned):
                warn(f"{len(planned) - driver.left} of {len(planned)} cells are already done")
            with display() as shown:
                summary = driver.run(_executor(options, planned, root, driver.units), shown)
    except KeyboardInterrupt:
        warn(f"interrupted; {root / SUMMARY} has the status of every cell; run the same command again to resume")
        return INTERRUPTED
    states = Counter(cell.state for cell in summary.cells)
    echo(f"{len(planned)} cells: " + ", ".join(f"{number} {state}" for state, number in states.items()))
    for cell in summary.cells:
        if cell.state == "failed":
            echo(f"  {cell.number} {cell.cell}: {cell.error}")
    if summary.workers_hung:
        echo(f"workers stopped because they hung: {summary.workers_hung}")
    echo(f"cells: {root / SUMMARY}; `ttmbench report {root}` shows the results")
    return 1 if states["failed"] else 0


def _one_cell(options: argparse.Namespace, planned: Sequence[PlannedCell], root: Path) -> int:
    """Run one cell in this process."""
    from ttmbench.cli.run import show
    from ttmbench.sweep.driver import run_cell
    from ttmbench.sweep.folder import stages_left

    entry = planned[options.cell - 1]
    if not stages_left(root, entry):
        echo(f"cell {options.cell} is already done: {root / entry.cell.document}")
        return 0
    try:
        with terminated_like_interrupted():
            results = run_cell(root, options.plan, planned, options.cell)
    except KeyboardInterrupt as stop:
        show(getattr(stop, "results", None))
        warn("interrupted; finished tasks are saved; run the same command again to resume")
        return INTERRUPTED
    except Exception as error:
        show(getattr(error, "results", None))
        raise
    show(results)
    return 1 if results.failed else 0


def _executor(options: argparse.Namespace, planned: Sequence[PlannedCell], root: Path, units: int) -> Executor:
    arguments: dict[str, object] = {} if options.executor_args is None else parse_pairs(options.executor_args)
    from ttmbench.sweep.executor_options import LocalOptions, RayOptions

    if options.executor == "ray":
        from ttmbench.sweep.ray_executor import RayExecutor

        ray_options = RayOptions.read({"workers": options.workers, **arguments})
        return RayExecutor(root, ray_options, [entry.cell for entry in planned], units)
    from ttmbench.evaluator.local_executor import LocalExecutor, accelerators, worker_slots

    stall = LocalOptions.read(arguments).stall
    # A cell with a numbered device has to see all devices.
    any_device = all(entry.cell.config.device in ("auto", "cuda") for entry in planned)
    return LocalExecutor(root, worker_slots(options.workers, accelerators() if any_device else (), units), stall)


def _dry_run(planned: Sequence[PlannedCell], root: Path | None) -> int:
    """Print the cells, the remaining work, and its duration as estimated from results in the folder."""
    from ttmbench.evaluator.unit import units_of
    from ttmbench.report.table import TableColumn, print_table
    from ttmbench.sweep.estimate import rates, seconds_of, work_of
    from ttmbench.sweep.folder import stages_left

    rate_of = {} if root is None else rates(root)
    rows, times, has_methods = [], [], any(entry.cell.config.methods for entry in planned)
    for entry in planned:
        stages = units_of(entry.cell) if root is None else stages_left(root, entry)
        work = work_of(entry)
        seconds = seconds_of(work, rate_of.get(entry.cell.config.model_name))
        if stages:
            times.append(seconds)
        counts = ["-" if value is None else str(value) for value in (work.groups, work.images, work.captions)]
        training = f"{work.iterations} x {work.epochs}" if work.iterations else "-"
        duration = "-" if seconds is None or not stages else f"{seconds:.0f}"
        total, left = (sum(map(len, part)) for part in (units_of(entry.cell), stages))
        units = "done" if not left else str(total) if left == total else f"{left} of {total}"
        methods = [name if seeds == 1 else f"{name} x {seeds}" for name, seeds in work.methods.items()]
        of_methods = [", ".join(methods) or "-"] if has_methods else []
        rows.append([str(entry.cell.number), entry.cell.folder, *counts, training, *of_methods, units, duration])
    names = ("groups", "images", "captions", "TTM", *(["methods"] if has_methods else []), "units", "seconds")
    columns = [
        TableColumn("cell", "key"),
        TableColumn("folder", "key"),
        *(TableColumn(name, "number", int(name in ("units", "seconds"))) for name in names),
    ]
    caption = "TTM: iterations over all seeds x epochs. Unit: what a worker runs at a time."
    caption += " Methods: x seeds, where these give different scores." if has_methods else ""
    print_table(columns, rows, caption=caption)
    timed = [seconds for seconds in times if seconds is not None]
    echo()
    echo(f"{len(planned)} cells, {len(times)} to run")
    if timed:
        echo(
            f"about {sum(timed):.0f} s on one worker for {len(timed)} of them, estimated from groups and epochs in "
            f"results of the same models in {root}"
        )
    if len(timed) < len(times):
        where = "" if root is None else f" in {root}"
        echo(f"no estimate for {len(times) - len(timed)} of them: no results of their models{where} have times")
    return 0
