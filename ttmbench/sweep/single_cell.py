"""Runs one cell of a sweep in this process, for jobs that a cluster's own scheduler starts, also at the same time.

Each cell has a folder of its own; ``sweep.json`` is shared and changed under a lock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.settings import choose
from ttmbench.sweep.folder import beside_other_cells, stages_left
from ttmbench.sweep.plan import PlannedCell
from ttmbench.sweep.summary import SUMMARY, SweepSummary, new_summary, read_summary

if TYPE_CHECKING:
    from ttmbench.evaluator.eval_results import EvalResults

_PATIENCE = 30.0  # seconds to wait for others that write the summary


def run_cell(root: Path, plan: str, planned: Sequence[PlannedCell], number: int) -> EvalResults:
    """Runs a cell and updates the summary.

    Args:
        root: the sweep's folder.
        plan: the plan's file, for the summary.
        planned: all cells.
        number: of the one to run, from 1.

    Raises:
        UsageError: a sweep is writing to the folder; other errors as for `ttmbench.evaluator.run.run`.
    """
    with beside_other_cells(root):
        from ttmbench.evaluator.run import run

        def update(**changes: object) -> None:
            _update_summary(root, plan, planned, number, changes)

        cell, began = planned[number - 1].cell, time.perf_counter()
        config = cell.config_at(root)
        chosen = choose(config)
        update(state="running", worker="this process", attempts=1)
        try:
            results = run(config, command=cell.command, chosen=chosen)
        except Exception as error:
            update(state="failed", error=str(error) if isinstance(error, TtmbenchError) else error_line(error))
            raise
        except BaseException:
            update(state="waiting", error=None)
            raise
        update(state="done", seconds=time.perf_counter() - began, error=None)
        return results


def _update_summary(
    root: Path, plan: str, planned: Sequence[PlannedCell], number: int, changes: dict[str, object]
) -> None:
    """Changes a cell's entry in the summary; other entries stay as others wrote them."""
    try:
        (root / OWN).mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / OWN / "summary.lock").acquire(timeout=_PATIENCE):
            summary = _summary(root, plan, planned)
            summary.cells[number - 1] = summary.cells[number - 1].model_copy(update=changes)
            states = {entry.state for entry in summary.cells}
            unfinished = states & {"waiting", "running"}
            summary.status = "running" if unfinished else "failed" if "failed" in states else "done"
            summary.write(root)
    except (filelock.Timeout, OSError, TtmbenchError) as error:
        warn(f"{root / SUMMARY} is not up to date ({error}); the cell's document is what counts")


def _summary(root: Path, plan: str, planned: Sequence[PlannedCell]) -> SweepSummary:
    """The existing summary, if it is of the same cells; else a new one from the cells' documents."""
    cells = [one.cell for one in planned]
    try:
        summary = read_summary(root / SUMMARY)
        if [entry.cell for entry in summary.cells] == [cell.folder for cell in cells]:
            return summary
    except DataError:
        pass  # none yet, or a damaged one
    summary = new_summary(plan, cells, root)
    for entry, one in zip(summary.cells, planned, strict=True):
        if not stages_left(root, one):
            entry.state = "done"
    return summary
