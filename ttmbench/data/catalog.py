"""Tasks by name, tag, glob or file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ttmbench._util.console import warn
from ttmbench.data.kinds import SCOPES
from ttmbench.data.memory import Task
from ttmbench.data.task_file import AlreadyRead, TaskFile, load_task
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import ENDINGS, Registry


def find_task(registry: Registry, name: str, read: AlreadyRead | None = None) -> TaskFile:
    """A task by name, or by the path of its file; ``read`` as for `load_task`.

    Raises:
        UsageError: no such task, or its file is wrong.
    """
    if name.endswith(ENDINGS) and (name not in registry.task_files):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"task file {name} does not exist")
        return _checked(registry, load_task(path))
    return _checked(registry, load_task(registry.get(registry.task_files, name, "task"), read=read))


def all_tasks(registry: Registry) -> dict[str, TaskFile]:
    """Every registered task by name, sorted.

    A wrong one of an installed plugin is left out, with a warning; UsageError naming file and key for any other.
    """
    found, read = {}, AlreadyRead()
    for name in sorted(registry.task_files):
        try:
            found[name] = find_task(registry, name, read)
        except UsageError as error:
            plugin = registry.task_files[name][1]
            if plugin not in registry.plugins.installed:
                raise
            warn(f"task '{name}' of plugin '{plugin}' is left out: {error}")
    return found


def is_named(registry: Registry, word: str) -> bool:
    """Whether a word names one task or task file; if not, it is a tag or a glob."""
    return word in registry.task_files or word.endswith(ENDINGS)


def select_tasks(registry: Registry, patterns: Sequence[str]) -> dict[str, TaskFile]:
    """Tasks by name, tag, glob or file, each once, in the order asked for.

    Args:
        registry: what plugins registered.
        patterns: what ``--tasks`` lists.

    Returns:
        name -> task.

    Raises:
        UsageError: a pattern that fits nothing, with near names; or a wrong file.
    """
    chosen: dict[str, TaskFile] = {}
    for pattern in patterns:
        if is_named(registry, pattern):
            task = find_task(registry, pattern)
            chosen.setdefault(task.spec.task, task)
            continue
        everything = all_tasks(registry)
        fitting = [name for name, task in everything.items() if pattern in task.spec.tag or fnmatchcase(name, pattern)]
        if not fitting:
            tags = {tag for task in everything.values() for tag in task.spec.tag}
            raise UsageError(registry.unknown("task", pattern, [*everything, *tags]))
        for name in fitting:
            chosen.setdefault(name, everything[name])
    return chosen


def take_in(registry: Registry, tasks: Sequence[Task]) -> dict[str, Task]:
    """Tasks in memory by name; UsageError for an unknown metric, or a name that another task has."""
    found: dict[str, Task] = {}
    for task in tasks:
        if task.name in registry.task_files or task.name in found:
            raise UsageError(f"two tasks are named '{task.name}'; give the one in memory another name")
        _check_metrics(registry, task)
        found[task.name] = task
    return found


def _check_metrics(registry: Registry, task: TaskFile) -> None:
    for metric in task.spec.metrics:
        scope = registry.get(registry.metrics, metric, f"task {task.spec.task}: metric").scope
        if scope not in SCOPES[task.spec.kind]:
            kind = next(kind for kind, scopes in SCOPES.items() if scope in scopes)
            raise UsageError(
                f"task {task.spec.task}: metric '{metric}' is one of kind {kind}, the task is of kind {task.spec.kind}"
            )


def _checked(registry: Registry, task: TaskFile) -> TaskFile:
    spec = task.spec
    _check_metrics(registry, task)
    for kind in _kinds(spec.source):
        registry.get(registry.sources, kind, f"task {spec.task}: source kind")
    for settings in spec.ttm.values():
        if "schedule" in settings:
            registry.get(registry.schedules, settings["schedule"], f"task {spec.task}: schedule")
    return task


def _kinds(source: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of a source and of those that it combines."""
    if isinstance(source.get("kind"), str):
        yield source["kind"]
    inner = source.get("of")
    for one in inner if isinstance(inner, list) else ():
        if isinstance(one, dict):
            yield from _kinds(one)
