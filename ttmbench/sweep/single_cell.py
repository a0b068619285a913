"""One cell of a sweep alone, in this process: for jobs that a cluster's own scheduler starts, side by side or not.

Each has its cell's folder for itself, as every run has; ``sweep.json`` they share, under a lock for the moment.
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

_PATIENCE = 30.0  # seconds for others that write the summary
_NAME = "this process"


class SingleCell:
    """A cell among those of its sweep.

    Args:
        root: the sweep's folder.
        plan: the plan's file, for the summary.
        planned: all cells.
        number: of the one to run, from 1.

    Attributes:
        done: whether it is done already.
        document: where its document is or will be.
    """

    def __init__(self, root: Path, plan: str, planned: Sequence[PlannedCell], number: int) -> None:
        self._root, self._plan, self._planned, self._cell = root, plan, planned, planned[number - 1].cell
        self.done = not stages_left(root, planned[number - 1])
        self.document = root / self._cell.document

    def run(self) -> EvalResults:
        """Runs it, and keeps the summary; errors as for `ttmbench.evaluator.run.run`, or UsageError beside a sweep."""
        with beside_other_cells(self._root):
            from ttmbench.evaluator.run import run

            config, began = self._cell.config_at(self._root), time.perf_counter()
            chosen = choose(config)
            self._note(state="running", worker=_NAME, attempts=1)
            try:
                results = run(config, command=self._cell.command, chosen=chosen)
            except Exception as error:
                self._note(state="failed", error=str(error) if isinstance(error, TtmbenchError) else error_line(error))
                raise
            except BaseException:
                self._note(state="waiting", error=None)
                raise
            self._note(state="done", seconds=time.perf_counter() - began, error=None)
            return results

    def _note(self, **changes: object) -> None:
        """Changes the cell's entry in the summary; whatever else is in there stays as others wrote it."""
        try:
            (self._root / OWN).mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(self._root / OWN / "summary.lock").acquire(timeout=_PATIENCE):
                summary = self._summary()
                place = self._cell.number - 1
                summary.cells[place] = summary.cells[place].model_copy(update=changes)
                states = {entry.state for entry in summary.cells}
                under_way = states & {"waiting", "running"}
                summary.status = "running" if under_way else "failed" if "failed" in states else "done"
                summary.write(self._root)
        except (filelock.Timeout, OSError, TtmbenchError) as error:
            warn(f"{self._root / SUMMARY} is not up to date ({error}); the cell's document is what counts")

    def _summary(self) -> SweepSummary:
        """The summary that is there, if it is of the same cells; else one that is made from the cells' documents."""
        cells = [planned.cell for planned in self._planned]
        try:
            summary = read_summary(self._root / SUMMARY)
            if [entry.cell for entry in summary.cells] == [cell.folder for cell in cells]:
                return summary
        except DataError:
            pass  # none yet, or a damaged one
        summary = new_summary(self._plan, cells, self._root)
        for entry, planned in zip(summary.cells, self._planned, strict=True):
            if not stages_left(self._root, planned):
                entry.state = "done"
        return summary
