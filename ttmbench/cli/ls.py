"""``ttmbench ls``: what there is, by name."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ttmbench._util.console import echo
from ttmbench.cli.options import add_verbosity
from ttmbench.data.catalog import all_tasks
from ttmbench.plugins.registry import Registry, build_registry


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench ls``."""
    kinds = ("tasks", "models", "tags", "metrics", "schedules", "plugins")
    parser.add_argument("kind", choices=kinds, metavar="KIND", help=", ".join(kinds))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    add_verbosity(parser)


def ls(options: argparse.Namespace) -> int:
    """Lists names with one line each, or as JSON."""
    rows = _ROWS[options.kind](build_registry(options.include_path or [], quiet=options.kind == "plugins"))
    if options.json:
        echo(json.dumps(rows, indent=2))
        return 0
    if not rows:
        return 0
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in [columns, *cells]) for index in range(len(columns))]
    for line in [columns, *cells]:
        echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
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
        for name, file in all_tasks(registry).items()
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
    for name, file in all_tasks(registry).items():
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
    names = set(registry.plugins.names) - {plugin.name for plugin in registry.plugins.broken}
    loaded = [{"plugin": n, "status": "loaded", "detail": ""} for n in registry.plugins.names if n in names]
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


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)
