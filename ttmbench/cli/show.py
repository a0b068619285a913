"""``ttmbench show``: all details of one task, model or method, and what is published about it."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches

from ttmbench._util.console import echo
from ttmbench.cli.method_page import as_json, print_page
from ttmbench.cli.options import add_task_files
from ttmbench.cli.pages import print_model, print_task
from ttmbench.config import with_rate_note
from ttmbench.data.catalog import find_task
from ttmbench.data.task_chance import chance_of
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry, build_registry, load_target, metric_for
from ttmbench.types import Record


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench show``."""
    parser.add_argument("name", metavar="TASK|MODEL|METHOD", help="Task, model or test-time method")
    parser.add_argument("--published", action="store_true", help="List all published numbers")
    parser.add_argument("--json", action="store_true", help="Print JSON with every field")
    add_task_files(parser)


def show(options: argparse.Namespace) -> int:
    """Print a page about a task, a model or a method, or published numbers as a table; or either as JSON."""
    registry = build_registry(options.include_path or [])
    name = options.name
    is_task = name in registry.task_files or name.endswith((".yaml", ".yml"))
    if options.published or not (is_task or name in registry.adapters or name in registry.methods):
        _print_published(name, registry, options)
    elif name in registry.methods and not is_task and name not in registry.adapters:
        method, plugin = registry.methods[name]
        if options.json:
            echo(json.dumps(as_json(method, plugin), indent=2, ensure_ascii=False, default=str))
        else:
            print_page(method, plugin)
    else:
        shown = _task(name, registry) if is_task else _model(name, registry)
        if options.json:
            echo(json.dumps(shown, indent=2, ensure_ascii=False, default=list))
        else:
            (print_task if is_task else print_model)(shown)
    return 0


def _task(name: str, registry: Registry) -> Record:
    from ttmbench.cli.published_page import in_brief
    from ttmbench.data.benchmarks import benchmark_of
    from ttmbench.reproduce.lookup import rows_of_task

    spec = find_task(registry, name).spec
    benchmark = benchmark_of(spec.task)
    metrics = {}
    for metric in map(registry.metric, spec.metrics):
        described = metric if spec.kind != "groups" else metric_for(metric, spec.shape)
        row = {"summary": described.summary, "chance": chance_of(described, spec), "track": described.track}
        metrics[metric.name] = row
    presets = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
    published = in_brief(rows_of_task(spec.task, registry), name, registry, is_task=True)
    notes = {"benchmark": benchmark and benchmark.title, "notes": list(benchmark.notes) if benchmark else []}
    return {**spec.model_dump(mode="json"), **notes, "metrics": metrics, "ttm": presets, "published": published}


def _model(name: str, registry: Registry) -> Record:
    from ttmbench.cli.published_page import in_brief
    from ttmbench.reproduce.lookup import rows_of_model

    adapter, plugin = registry.adapters[name]
    card = None if adapter.card is None else vars(adapter.card)
    shown = {**vars(adapter), "card": card, "plugin": plugin}
    model_options = shown.pop("options")
    if model_options is not None:
        shown["arguments"] = load_target(model_options).described()
    published = in_brief(rows_of_model(adapter.name, registry), name, registry, is_task=False)
    return {**shown, "published": published}


def _print_published(name: str, registry: Registry, options: argparse.Namespace) -> None:
    """Every published number of a name, which may be one that only the sources have."""
    from ttmbench.cli.published_page import print_all
    from ttmbench.reproduce.lookup import of_method, of_model, of_task, published_rows

    every = published_rows(registry)
    own = registry.adapters[name][0].name if name in registry.adapters else name
    if name.endswith((".yaml", ".yml")):
        own = find_task(registry, name).spec.task
    rows = of_task(every, own) or of_model(every, own) or of_method(every, own)
    known = [*registry.task_files, *registry.adapters, *registry.methods]
    if not rows and own == name and name not in known:
        names = {title for row in every for title in (*row.tasks, *row.models)}
        near = get_close_matches(name, names, n=1, cutoff=0.6)
        raise UsageError(registry.unknown("task, model or method", name, [*known, *near]))
    if not rows and not options.json:
        echo(f"nothing is published about {name} here; `ttmbench reproduce` lists the tables")
        return
    print_all(rows, registry, as_json=options.json)
