"""``ttmbench show``: all details of one task, model or method."""

from __future__ import annotations

import argparse
import json

import numpy as np

from ttmbench._util.console import echo
from ttmbench.cli.method_page import as_json, print_page
from ttmbench.cli.options import add_task_files
from ttmbench.config import with_rate_note
from ttmbench.data.catalog import find_task
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import build_registry, load_target, metric_for
from ttmbench.results.ranks import Ranks
from ttmbench.types import MetricSpec


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench show``."""
    parser.add_argument("name", metavar="TASK|MODEL|METHOD", help="Task, model or test-time method")
    parser.add_argument("--json", action="store_true", help="Print JSON; tasks and models are always JSON")
    add_task_files(parser)


def show(options: argparse.Namespace) -> int:
    """Print a task or a model as JSON, and a method as a page or as JSON."""
    registry = build_registry(options.include_path or [])
    name = options.name
    if name in registry.task_files or name.endswith((".yaml", ".yml")):
        spec = find_task(registry, name).spec
        metrics = {}
        for metric in map(registry.metric, spec.metrics):
            described = metric if spec.kind != "groups" else metric_for(metric, spec.shape)
            row = {"summary": described.summary, "chance": chance_of(described, spec), "track": described.track}
            metrics[metric.name] = row
        presets = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
        shown = {**spec.model_dump(mode="json"), "metrics": metrics, "ttm": presets}
        echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif name in registry.adapters:
        adapter, plugin = registry.adapters[name]
        card = None if adapter.card is None else vars(adapter.card)
        shown = {**vars(adapter), "card": card, "plugin": plugin}
        model_options = shown.pop("options")
        if model_options is not None:
            shown["arguments"] = load_target(model_options).described()
        echo(json.dumps(shown, indent=2, default=list))
    elif name in registry.methods:
        method, plugin = registry.methods[name]
        if options.json:
            echo(json.dumps(as_json(method, plugin), indent=2, ensure_ascii=False, default=str))
        else:
            print_page(method, plugin)
    else:
        known = [*registry.task_files, *registry.adapters, *registry.methods]
        raise UsageError(registry.unknown("task, model or method", name, known))
    return 0


def chance_of(metric: MetricSpec, spec: TaskSpec) -> float | None:
    """The value of a metric for random scores, as a fraction.

    None where it is unknown or depends on more than the task file. Where images have different numbers of captions,
    each is taken to have the mean number, rounded down.
    """
    if metric.chance is None or metric.scope == "global":
        return None
    if spec.kind == "groups":
        shape = (spec.shape.images, spec.shape.captions)
        return metric.chance(*shape) if metric.defined(*shape) else None
    images = spec.group.n_groups
    texts = spec.group.n_captions if spec.classes is None else spec.classes.n_classes
    if images is None or texts is None:
        return None
    correct = texts // images if metric.scope == "i2t" else 1
    candidates = images if metric.scope == "t2i" else texts
    query = np.zeros(1, np.int64)
    return metric.chance(Ranks(query, None, None, np.full(1, correct), candidates))
