"""``ttmbench validate``: is a task file right, and is its data what it says?"""

from __future__ import annotations

import argparse

from ttmbench.errors import DataError, TtmbenchError
from ttmbench.registry import Registry, build_registry
from ttmbench.scoring import open_upright
from ttmbench.taskfile import TaskFile


def validate(options: argparse.Namespace) -> int:
    """Prints one line a task; the exit code is that of the worst finding."""
    registry = build_registry(options.include_path or [])
    names = options.tasks or sorted(registry.task_files)
    worst = 0
    for name in names:
        try:
            print(f"{name}: {_check(registry, name, options.schema_only, options.offline)}", flush=True)
        except TtmbenchError as error:
            print(str(error) if str(error).startswith(name) else f"{name}: {error}", flush=True)
            worst = max(worst, error.exit_code)
    return worst


def _check(registry: Registry, name: str, schema_only: bool, offline: bool) -> str:
    task = registry.task(name)
    spec = task.spec
    chances = []
    for metric_name in spec.metrics:
        metric = registry.metric(metric_name)
        if not metric.defined(spec.shape.images, spec.shape.captions):
            raise DataError(f"metric {metric_name} is undefined for {spec.shape} groups")
        if metric.chance is not None and metric.scope == "group":
            chances.append(f"{metric_name} {100 * (metric.chance(spec.shape.images, spec.shape.captions) or 0):.2f}")
    summary = f"ok, version {spec.version}, {spec.shape}, chance in percent: {', '.join(chances) or 'none'}"
    if schema_only:
        return f"{summary}; data not read"
    return f"{summary}; {_check_data(registry, task, offline)}"


def _check_data(registry: Registry, task: TaskFile, offline: bool) -> str:
    groups = registry.load_groups(task, offline=offline)
    seen: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
    for group in groups:
        if len(set(group.captions)) < len(group.captions):
            raise DataError(f"group {group.group_id} has the same caption twice, so it can only tie")
        key = (tuple(image.name for image in group.images), group.captions)
        if key in seen:
            raise DataError(f"groups {seen[key]} and {group.group_id} are the same")
        seen[key] = group.group_id
        for image in group.images:
            open_upright(image, group.group_id)
    note = ""
    if task.spec.is_global:
        every = [caption for group in groups for caption in group.captions]
        repeated = len(every) - len(set(every))
        note = f", {repeated} captions repeat an earlier one and can only tie" if repeated else ""
    first = groups[0]
    sizes = ", ".join("x".join(map(str, open_upright(image, first.group_id).size)) for image in first.images)
    shown = f"{first.group_id} ({sizes} px) {' | '.join(first.captions)}"
    return f"{len(groups)} groups, all images decode{note}; first: {shown}"
