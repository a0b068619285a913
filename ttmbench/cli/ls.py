"""``ttmbench ls``: tasks, models, test-time methods, parts of TTM and other registered names."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ttmbench._util.console import echo
from ttmbench.cli.parser import add_run_options
from ttmbench.data.task_file import TaskSpec, all_tasks
from ttmbench.plugins.registry import Registry, Table, build_registry
from ttmbench.types import AdapterSpec

Row = dict[str, object]
"""Column -> value."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench ls``."""
    parser.add_argument("kind", choices=tuple(_ROWS), metavar="KIND", help=f"One of {', '.join(_ROWS)}")
    parser.add_argument("--json", action="store_true", help="Print JSON, with more about each name")
    add_run_options(parser, "include_path", title="")


def ls(options: argparse.Namespace) -> int:
    """List names, one line each or as JSON."""
    return print_kind(options.kind, options.include_path or [], as_json=options.json)


def print_kind(kind: str, include_path: list[str], *, as_json: bool = False) -> int:
    """Print all names of a kind; returns the exit code."""
    registry = build_registry(include_path, quiet=kind == "plugins")
    rows = _by_benchmark(registry) if kind == "tasks" and not as_json else _ROWS[kind](registry)
    if as_json:
        echo(json.dumps(rows, indent=2))
    elif rows:
        from ttmbench.report.terminal import TableColumn, print_table  # rich is not needed for JSON

        names = _COLUMNS[kind]
        columns = [
            TableColumn(
                "method" if kind == "methods" and name == "name" else name,
                "number" if name in ("groups", "size") else "key" if name == names[0] else "text",
            )
            for name in names
        ]
        cells = [[_text(kind, name, row[name]) for name in (names if len(row) > 1 else row)] for row in rows]
        print_table(columns, cells)
    return 0


def _by_benchmark(registry: Registry) -> list[Row]:
    """Tasks and whether their data are available offline, below a row with the name of their benchmark."""
    from ttmbench.cli.doctor import check_task
    from ttmbench.data.benchmarks import benchmark_of, benchmarks
    from ttmbench.data.paths import data_folder

    tasks, folder = all_tasks(registry), data_folder()
    found = {name: benchmark_of(name) for name in tasks}
    listed: list[Row] = []
    for benchmark in (*benchmarks(), None):
        names = [name for name in tasks if found[name] == benchmark]
        if names:
            listed.append({"": "Other tasks" if benchmark is None else f"{benchmark.title}: {benchmark.tests}"})
        for name in names:
            listed.append({**_task(tasks[name].spec), "data": check_task(registry, tasks[name], folder).state})
    return listed


def _task(spec: TaskSpec) -> Row:
    return {
        "task": spec.task,
        "shape": "global" if spec.is_global else spec.extent,
        "kind": spec.kind,
        "groups": spec.group.n_groups,
        "gated": spec.gated,
        "tags": spec.tag,
        "description": spec.description,
    }


def _models(registry: Registry) -> list[Row]:
    table = registry.adapters
    specs = {spec.name: (spec, table.plugins[name]) for name, spec in table.items()}
    return [
        {
            "model": name,
            "aliases": list(spec.aliases),
            "plugin": plugin,
            "size": spec.card and spec.card.size,
            "license": spec.card and (spec.card.license or "none declared"),
            "gated": spec.card is not None and spec.card.gated,
            "extra": [need for need in spec.needs if need.startswith("ttmbench[")],
            "weights": _weights(spec),
            "summary": spec.summary,
            "note": spec.card and (spec.card.refused or spec.card.note),
        }
        for name, (spec, plugin) in sorted(specs.items())
    ]


def _weights(spec: AdapterSpec) -> str | None:
    """How a model gets its weights, in a word; None for kinds of models."""
    if spec.card is None:
        return None
    if not {"pretrained", "model"} & spec.model_args.keys():
        return "built in"
    return "unsafe file" if spec.card.refused else "manual" if spec.card.page else "automatic"


def _tags(registry: Registry) -> list[Row]:
    members: dict[str, list[str]] = {}
    for name, file in all_tasks(registry).items():
        for tag in file.spec.tag:
            members.setdefault(tag, []).append(name)
    return [{"tag": tag, "tasks": names} for tag, names in sorted(members.items())]


def _specs(table: str, head: str, *keys: str) -> Callable[[Registry], list[Row]]:
    """The rows of what a table of the registry holds: the name, some attributes, the plugin and the summary."""

    def rows(registry: Registry) -> list[Row]:
        found: Table[Any] = getattr(registry, table)
        return [
            {head: name, **{key: getattr(spec, key) for key in keys}, "plugin": plugin, "summary": spec.summary}
            for (name, spec), plugin in zip(found.items(), found.plugins.values(), strict=True)
        ]

    return rows


def _plugins(registry: Registry) -> list[Row]:
    broken = [(plugin.name, "broken", f"{plugin.target}: {plugin.reason}") for plugin in registry.broken]
    names = {name for name, _, _ in broken}
    loaded = [(name, "loaded", "") for name in registry.plugins if name not in names]
    return [{"plugin": name, "status": status, "detail": detail} for name, status, detail in loaded + broken]


_METHOD = ("needs", "scope", "trains", "reset", "reference", "track", "order_dependent", "assumes_matching")
_ROWS: dict[str, Callable[[Registry], list[Row]]] = {
    "tasks": lambda registry: [_task(file.spec) for file in all_tasks(registry).values()],
    "models": _models,
    "methods": _specs("methods", "name", *_METHOD),
    "parts": _specs("parts", "part"),
    "tags": _tags,
    "metrics": _specs("metrics", "metric", "scope", "track"),
    "schedules": _specs("schedules", "schedule"),
    "plugins": _plugins,
}
_COLUMNS = {
    "tasks": ("task", "shape", "groups", "data"),
    "models": ("model", "size", "weights", "summary"),
    "methods": ("name", "needs", "scope", "trains", "reference", "track"),
    "parts": ("part", "summary"),
    "tags": ("tag", "tasks"),
    "metrics": ("metric", "track", "summary"),
    "schedules": ("schedule", "summary"),
    "plugins": ("plugin", "status", "detail"),
}
"""Kind -> what its table shows; ``--json`` has more."""


def _text(kind: str, name: str, value: Any) -> str:
    """A cell of the table. That a method needs gradients too is said by the column ``trains``."""
    if name == "needs":
        value = [need for need in value if need != "gradients"] or value
    if isinstance(value, list | tuple):
        return str(len(value)) if kind == "tags" else ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removeprefix("arXiv:") if value not in (None, "") else "-"
