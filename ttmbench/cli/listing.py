"""``ttmbench ls``, ``show`` and ``schema``: what there is, by name."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ttmbench.errors import UsageError
from ttmbench.registry import Registry, build_registry
from ttmbench.results import schema as results_schema
from ttmbench.terminal import say
from ttmbench.ttmconfig import with_rate_note


def ls(options: argparse.Namespace) -> int:
    """Lists names with one line each, or as JSON."""
    rows = _ROWS[options.kind](build_registry(options.include_path or []))
    if options.json:
        say(json.dumps(rows, indent=2))
        return 0
    if not rows:
        return 0
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in [columns, *cells]) for index in range(len(columns))]
    for line in [columns, *cells]:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def show(options: argparse.Namespace) -> int:
    """Prints everything about a task or a model as JSON."""
    registry = build_registry(options.include_path or [])
    name = options.name
    if name in registry.task_files or name.endswith((".yaml", ".yml")):
        spec = registry.task(name).spec
        metrics = {
            metric: _metric_row(registry, metric, spec.shape.images, spec.shape.captions) for metric in spec.metrics
        }
        presets = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
        shown = {**spec.model_dump(mode="json"), "metrics": metrics, "ttm": presets}
        say(json.dumps(shown, indent=2, ensure_ascii=False))
        return 0
    if name in registry.adapters:
        adapter, plugin = registry.adapters[name]
        card = None if adapter.card is None else vars(adapter.card)
        say(json.dumps({**vars(adapter), "card": card, "plugin": plugin}, indent=2, default=list))
        return 0
    from difflib import get_close_matches

    known = sorted({*registry.task_files, *registry.adapters})
    near = get_close_matches(name, known, n=2)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
    raise UsageError(f"no task or model is named '{name}'; {hint}")


def schema(options: argparse.Namespace) -> int:
    """Prints a JSON Schema."""
    say(json.dumps(results_schema(options.name), indent=2))
    return 0


def _tasks(registry: Registry) -> list[dict[str, Any]]:
    return [
        {
            "task": name,
            "shape": "global" if file.spec.is_global else str(file.spec.shape),
            "groups": file.spec.group.n_groups,
            "gated": file.spec.gated,
            "tags": file.spec.tag,
            "description": file.spec.description,
        }
        for name, file in registry.all_tasks().items()
    ]


def _models(registry: Registry) -> list[dict[str, Any]]:
    specs = sorted({spec.name: (spec, plugin) for spec, plugin in registry.adapters.values()}.items())
    return [
        {
            "model": name,
            "aliases": list(spec.aliases),
            "plugin": plugin,
            "size": None if spec.card is None else spec.card.size,
            "license": None if spec.card is None else spec.card.license or "none declared",
            "gated": spec.card is not None and spec.card.gated,
            "extra": [need for need in spec.needs if need.startswith("ttmbench[")],
            "summary": spec.summary,
        }
        for name, (spec, plugin) in specs
    ]


def _tags(registry: Registry) -> list[dict[str, Any]]:
    members: dict[str, list[str]] = {}
    for name, file in registry.all_tasks().items():
        for tag in file.spec.tag:
            members.setdefault(tag, []).append(name)
    return [{"tag": tag, "tasks": names} for tag, names in sorted(members.items())]


def _metrics(registry: Registry) -> list[dict[str, Any]]:
    return [
        {"metric": name, "scope": spec.scope, "track": spec.track, "plugin": plugin, "summary": spec.summary}
        for name, (spec, plugin) in registry.metrics.items()
    ]


def _schedules(registry: Registry) -> list[dict[str, Any]]:
    return [
        {"schedule": name, "plugin": plugin, "summary": spec.summary}
        for name, (spec, plugin) in registry.schedules.items()
    ]


def _plugins(registry: Registry) -> list[dict[str, Any]]:
    loaded = [{"plugin": name, "status": "loaded", "detail": ""} for name in registry.plugins.names]
    broken = [
        {"plugin": plugin.name, "status": "broken", "detail": f"{plugin.target}: {plugin.reason}"}
        for plugin in registry.plugins.broken
    ]
    return loaded + broken


_ROWS = {
    "tasks": _tasks,
    "models": _models,
    "tags": _tags,
    "metrics": _metrics,
    "schedules": _schedules,
    "plugins": _plugins,
}


def _metric_row(registry: Registry, name: str, images: int, captions: int) -> dict[str, Any]:
    spec = registry.metric(name)
    known = spec.chance is not None and spec.scope == "group" and spec.defined(images, captions)
    chance = spec.chance(images, captions) if known and spec.chance else None
    return {"summary": spec.summary, "chance": chance, "track": spec.track}


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)
