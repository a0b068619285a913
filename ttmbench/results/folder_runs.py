"""The runs of a folder of results, and which of them can be compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ttmbench.errors import DataError, UsageError
from ttmbench.results.comparison import NO_SAMPLES, StoredRun, check_same, stored_groups
from ttmbench.results.reader import walk_documents


def runs_in(folder: Path) -> tuple[list[StoredRun], dict[Path, str]]:
    """The runs with samples below a folder in the order of their paths, and why other JSON files are skipped.

    Args:
        folder: searched with all folders below it.

    Returns:
        The runs; path -> reason.
    """
    runs, skipped = [], dict[Path, str]()
    for found in walk_documents(folder):
        if found.document is None:
            skipped[found.path] = found.skipped or ""
            continue
        document = found.document.to_dict()
        try:
            groups = stored_groups(found.path.parent, document)
        except DataError as error:
            skipped[found.path] = str(error)
            continue
        if groups:
            runs.append(StoredRun(found.path, document, groups))
        else:
            skipped[found.path] = NO_SAMPLES
    return runs, skipped


def pairs_of(runs: Sequence[StoredRun], allow_different: bool) -> list[tuple[StoredRun, StoredRun]]:
    """Which runs are compared: each task of each run with the first run that has the same task and data.

    Args:
        runs: in order.
        allow_different: the same task with other data will do.

    Returns:
        (baseline, other run) for each pair, both with the tasks of this comparison alone.
    """
    first: dict[str, list[StoredRun]] = {}
    found = []
    for run in runs:
        tasks: dict[Path, tuple[StoredRun, list[str]]] = {}
        for task in run.groups:
            earlier = first.get(task, [])
            baseline = next((one for one in earlier if allow_different or _has_same_data(one, run, task)), None)
            if baseline is None:
                first.setdefault(task, []).append(run)
            else:
                tasks.setdefault(baseline.path, (baseline, []))[1].append(task)
        found += [(_only(baseline, names), _only(run, names)) for baseline, names in tasks.values()]
    return found


def _has_same_data(one: StoredRun, other: StoredRun, task: str) -> bool:
    try:
        check_same(one, other, task, "")
    except UsageError:
        return False
    return True


def _only(run: StoredRun, tasks: Sequence[str]) -> StoredRun:
    return replace(run, groups={task: run.groups[task] for task in tasks})
