"""Finds and reads task files: one YAML a task, in which ``include:`` shares fields between variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ttmbench._util.console import warn
from ttmbench._util.option_values import refuse_password
from ttmbench._util.text import Unreadable, read_yaml
from ttmbench._util.third_party_errors import describe
from ttmbench.data.task_file import SCOPES, TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import ENDINGS, Registry, unknown

MAX_INCLUDES = 8
AlreadyRead = dict[str, object]
"""Path -> content of a task file, for tasks of one folder that include the same."""
AnyTask = TypeVar("AnyTask", bound=TaskFile)


def find_task(registry: Registry, name: str, read: AlreadyRead | None = None) -> TaskFile:
    """A task by name, or by the path of its file; ``read`` as for `load_task`. UsageError for none or a wrong file."""
    if name.endswith(ENDINGS) and (name not in registry.task_files):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"task file {name} does not exist")
        return _checked(registry, load_task(path))
    return _checked(registry, load_task(registry.task_files[name], read))


def all_tasks(registry: Registry) -> dict[str, TaskFile]:
    """Every registered task by name, sorted; UsageError for a wrong one, but of an installed plugin only a warning."""
    tasks: dict[str, TaskFile] = {}
    read: AlreadyRead = {}
    for name in sorted(registry.task_files):
        try:
            tasks[name] = find_task(registry, name, read)
        except UsageError as error:
            plugin = registry.task_files.plugins[name]
            if plugin not in registry.installed:
                raise
            warn(f"task '{name}' of plugin '{plugin}' is skipped: {error}")
    return tasks


def is_named(registry: Registry, word: str) -> bool:
    """Whether a word names one task or task file, and not a tag or a glob."""
    return word in registry.task_files or word.endswith(ENDINGS)


def select_tasks(registry: Registry, patterns: Sequence[str]) -> dict[str, TaskFile]:
    """Tasks by name, tag, glob or file as ``--tasks`` lists them: name -> task, each once, in the given order.

    UsageError for a pattern that fits nothing, with similar names, or an invalid file.
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
            raise UsageError(unknown("task", pattern, [*everything, *tags], registry.broken))
        for name in fitting:
            chosen.setdefault(name, everything[name])
    return chosen


def take_in(registry: Registry, tasks: Sequence[AnyTask]) -> dict[str, AnyTask]:
    """Tasks in memory by name; UsageError for an unknown metric, or a name that another task has."""
    named: dict[str, AnyTask] = {}
    for task in tasks:
        name = task.spec.task
        if name in registry.task_files or name in named:
            raise UsageError(f"two tasks are named '{name}'; give the one in memory another name")
        _checked(registry, task, in_memory=True)
        named[name] = task
    return named


def _checked(registry: Registry, task: TaskFile, in_memory: bool = False) -> TaskFile:
    """The task; UsageError unless its metrics, sources and schedules are registered."""
    spec = task.spec
    try:
        metrics = {metric: registry.metrics[metric].scope for metric in spec.metrics}
        for kind in () if in_memory else _kinds(spec.source):
            registry.sources[kind]
        for settings in spec.ttm.values():
            if "schedule" in settings:
                registry.schedules[settings["schedule"]]
    except UsageError as error:
        raise UsageError(f"task {spec.task}: {error}") from None
    for metric, scope in metrics.items():
        if scope not in SCOPES[spec.kind]:
            kind = next(kind for kind, scopes in SCOPES.items() if scope in scopes)
            raise UsageError(
                f"task {spec.task}: metric '{metric}' is one of kind {kind}, the task is of kind {spec.kind}"
            )
    return task


def _kinds(source: Mapping[str, object]) -> Iterator[str]:
    """The kinds of a source and of those that it combines."""
    kind = source.get("kind")
    if isinstance(kind, str):
        yield kind
    inner = source.get("of")
    for part in inner if isinstance(inner, list) else ():
        if isinstance(part, dict):
            yield from _kinds(part)


def load_task(path: Traversable, read: AlreadyRead | None = None) -> TaskFile:
    """The task of a file, whose name must be that of the task. ``read``: `AlreadyRead`.

    UsageError, with file and key, if it cannot be read, is no YAML mapping, or has a wrong or unknown key.
    """
    try:
        spec = TaskSpec(**_read(path, 0, {} if read is None else read))
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, TaskSpec)}") from None
    except TypeError as error:
        raise UsageError(f"{path}: keys must be words ({error})") from None
    stem = path.name.rsplit(".", 1)[0]
    if spec.task != stem:
        raise UsageError(f"{path}: 'task' is '{spec.task}' but the file is named '{stem}'; they must be equal")
    return TaskFile(spec, path.parent if isinstance(path, Path) else None)


def _read(path: Traversable, depth: int, read: AlreadyRead) -> dict[str, object]:
    """The fields of a file and of those that it includes; the including file's fields win."""
    if depth > MAX_INCLUDES:
        raise UsageError(f"{path}: 'include' goes more than {MAX_INCLUDES} files deep (does a file include itself?)")
    if str(path) not in read:
        try:
            read[str(path)] = read_yaml(path)
        except Unreadable as error:
            raise UsageError(f"{path}: {error}") from None
    content = read[str(path)]
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a task file is a mapping of keys, got {type(content).__name__}")
    refuse_password(str(path), content)
    merged: dict[str, object] = {}
    for name, without in _includes(path, content.get("include", [])):
        included = _read(_beside(path, name), depth + 1, read)
        absent = [key for key in without if key not in included]
        if absent:
            raise UsageError(f"{path}: 'include' leaves out '{absent[0]}', which {name} does not have")
        merged = _merge(merged, {key: value for key, value in included.items() if key not in without})
    return _merge(merged, {key: value for key, value in content.items() if key != "include"})


def _beside(path: Traversable, name: str) -> Traversable:
    """A YAML file of the same folder; UsageError if there is none."""
    parent = getattr(path, "parent", None)
    file = None if parent is None or set(name) & set("/\\") else parent / name
    if file is None or not name.endswith(ENDINGS) or not file.is_file():
        raise UsageError(f"{path}: 'include' names '{name}', which is not a file of the same folder")
    return file


def _includes(path: Traversable, value: object) -> Iterator[tuple[str, list[str]]]:
    """Names of included files, each with the keys to leave out."""
    for entry in value if isinstance(value, list) else [value]:
        match entry:
            case str():
                yield entry, []
            case {"file": str(name), "without": list(without), **more} if not more:
                yield name, without
            case {"file": str(name), **more} if not more:
                yield name, []
            case _:
                raise UsageError(
                    f"{path}: 'include' must be a file name, {{file: name, without: [keys]}}, or a list of these, "
                    f"got {entry!r:.80}"
                )


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """The fields of both; nothing is shared with either, so that a file read once can be included again."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, dict):
            underneath = merged.get(key)
            merged[key] = _merge(underneath if isinstance(underneath, dict) else {}, value)
        elif isinstance(value, list):
            merged[key] = [_merge({}, item) if isinstance(item, dict) else item for item in value]
        else:
            merged[key] = value
    return merged
