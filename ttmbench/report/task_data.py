"""A task's data found again, read as the run of a results document read them; never from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.spellings import groups_of
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_groups
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.report.gather import ReportedRun

if TYPE_CHECKING:
    from ttmbench.data.task_file import TaskSpec
    from ttmbench.types import Group


def load_again(
    run: ReportedRun, task: str, data_dir: str | None, include_path: Sequence[str]
) -> tuple[TaskSpec, dict[str, Group]]:
    """Reads a task: its task file, the run's changes to the source, its limit and its data folder.

    What is read is said by a task file on this machine: one that is registered, or that the run named by its path. The
    source that stands in the results document is not followed.

    Args:
        run: whose data they are.
        task: name.
        data_dir: the data folder; by default that of the run.
        include_path: folders of further task files, beside those of the run.

    Returns:
        The task as its file states it now, and group id -> group.

    Raises:
        DataError: the data are not at hand, with the reason.
    """
    from ttmbench.plugins.registry import build_registry

    config: Mapping[str, Any] = run.document.get("config") or {}
    try:
        theirs = [str(path) for path in config.get("include_path") or () if Path(str(path)).is_dir()]
        # A folder may be named by both, and no task may be defined twice.
        folders = {Path(path).resolve(): path for path in (*include_path, *theirs)}
        registry = build_registry(list(folders.values()))
        files = [Path(str(name)) for name in config.get("tasks") or () if str(name).endswith((".yaml", ".yml"))]
        named = next((str(path) for path in files if path.stem == task and path.is_file()), task)
        source = find_task(registry, named).with_source(dict(config.get("task_args") or {}))
        limit = config.get("limit") if config.get("samples") is None else None
        folder = data_dir or config.get("data_dir")
        wanted = groups_of(float(limit), source.spec.group.n_groups) if limit else None
        groups = load_groups(registry, source, wanted, offline=True, data_dir=folder)
    except (TtmbenchError, OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise DataError(" ".join(str(error).split())) from None
    return source.spec, {group.group_id: group for group in groups}
