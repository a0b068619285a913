"""A task's data found again, read as the run of a results document read them; never from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.option_values import groups_of
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_groups
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.report.load import ReportedRun

if TYPE_CHECKING:
    from ttmbench.data.task_file import TaskSpec
    from ttmbench.types import Group


def load_again(
    run: ReportedRun, task: str, data_dir: str | None, include_path: Sequence[str]
) -> tuple[TaskSpec, dict[str, Group]]:
    """Reads a task: its task file, the run's numbers for the source (a seed, say) and its limit.

    A results document may come from anyone, so none of its paths is followed: the task is registered here or lies in
    ``include_path``, and its files lie in the data folder that is named here.

    Args:
        run: whose data they are.
        task: name.
        data_dir: the data folder; by default that of this machine.
        include_path: folders of further task files.

    Returns:
        The task as its file states it now, and group id -> group.

    Raises:
        DataError: the data are not at hand, with the reason.
    """
    from ttmbench.plugins.registry import build_registry

    config: Mapping[str, Any] = run.document.get("config") or {}
    try:
        if task.endswith((".yaml", ".yml")):
            raise DataError(f"'{task}' is a file; --include_path names folders to look in")
        registry = build_registry(list({Path(path).resolve(): path for path in include_path}.values()))
        numbers = {
            name: value for name, value in (config.get("task_args") or {}).items() if isinstance(value, int | float)
        }
        source = find_task(registry, task).with_source(numbers)
        limit = config.get("limit") if config.get("samples") is None else None
        wanted = groups_of(float(limit), source.spec.group.n_groups) if limit else None
        groups = load_groups(registry, source, wanted, offline=True, data_dir=data_dir)
    except (TtmbenchError, OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        raise DataError(" ".join(str(error).split())) from None
    found = {group.group_id: group for group in groups}
    if source.spec.kind == "retrieval":  # a caption is a query of its own, with a samples line
        for group in groups:
            for place, caption in enumerate(group.captions):
                found.setdefault(f"{group.group_id}/{place}", replace(group, captions=(caption,)))
    return source.spec, found
