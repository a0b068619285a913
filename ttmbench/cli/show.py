"""``ttmbench show``: everything about one task or model."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from typing import Any

from ttmbench._util.console import echo
from ttmbench.cli.chances import chance_of
from ttmbench.cli.options import add_verbosity
from ttmbench.config import with_rate_note
from ttmbench.data.catalog import find_task
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry, build_registry, load_target, metric_for


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench show``."""
    parser.add_argument("name", metavar="TASK|MODEL", help="Task or model name")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="Directory with additional task files")
    add_verbosity(parser)


def show(options: argparse.Namespace) -> int:
    """Prints everything about a task or a model as JSON."""
    registry = build_registry(options.include_path or [])
    name = options.name
    if name in registry.task_files or name.endswith((".yaml", ".yml")):
        spec = find_task(registry, name).spec
        metrics = {metric: _metric_row(registry, metric, spec) for metric in spec.metrics}
        presets = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
        shown = {**spec.model_dump(mode="json"), "metrics": metrics, "ttm": presets}
        echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return 0
    if name in registry.adapters:
        adapter, plugin = registry.adapters[name]
        card = None if adapter.card is None else vars(adapter.card)
        shown = {**vars(adapter), "card": card, "plugin": plugin}
        takes = shown.pop("options")
        if takes is not None:
            shown["arguments"] = load_target(takes).described()
        echo(json.dumps(shown, indent=2, default=list))
        return 0
    known = sorted({*registry.task_files, *registry.adapters})
    near = get_close_matches(name, known, n=2)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
    raise UsageError(f"no task or model is named '{name}'; {hint}")


def _metric_row(registry: Registry, name: str, task: TaskSpec) -> dict[str, Any]:
    metric = registry.metric(name) if task.kind != "groups" else metric_for(registry.metric(name), task.shape)
    return {"summary": metric.summary, "chance": chance_of(metric, task), "track": metric.track}
