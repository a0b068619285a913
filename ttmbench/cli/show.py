"""``ttmbench show``: a page about one task, model, method or metric, and what is published about it."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable
from difflib import get_close_matches

from ttmbench._util.console import echo
from ttmbench.cli.method_page import as_json, print_page, print_short_page
from ttmbench.cli.options import add_task_files
from ttmbench.cli.pages import print_dataset, print_long_model, print_long_task, print_metric, print_model, print_task
from ttmbench.config import with_rate_note
from ttmbench.data.benchmarks import benchmark_of, benchmarks
from ttmbench.data.catalog import all_tasks, find_task
from ttmbench.data.task_chance import chance_of
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry, build_registry, load_target, metric_for
from ttmbench.types import Record


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench show``."""
    parser.add_argument("name", metavar="NAME", help="Task, benchmark, tag, model, test-time method or metric")
    parser.add_argument("--long", action="store_true", help="Print every detail, with tables of arguments")
    parser.add_argument("--published", action="store_true", help="List all published numbers")
    parser.add_argument("--json", action="store_true", help="Print JSON with every field")
    add_task_files(parser)


def show(options: argparse.Namespace) -> int:
    """Print a page about a task, a model, a method or a metric, or published numbers; or either as JSON."""
    registry = build_registry(options.include_path or [])
    name, is_long = options.name, options.long
    is_task = name in registry.task_files or name.endswith((".yaml", ".yml"))
    is_known = is_task or any(name in table for table in (registry.adapters, registry.methods, registry.metrics))
    if not (options.published or is_known) and (tasks := _dataset(name, registry)):
        _print(tasks, options, print_dataset)
    elif options.published or not is_known:
        _print_published(name, registry, options)
    elif is_task or name in registry.adapters:
        shown = (_task if is_task else _model)(name, registry, in_full=is_long or options.json)
        short, long = (print_task, print_long_task) if is_task else (print_model, print_long_model)
        _print(shown, options, long if is_long else short)
    elif name in registry.methods:
        method, plugin = registry.methods[name]
        page = print_page if is_long else print_short_page
        _print(as_json(method, plugin), options, lambda _: page(method, plugin))
    else:
        _print(_metric(name, registry), options, print_metric)
    return 0


def _print(shown: Record, options: argparse.Namespace, page: Callable[[Record], None]) -> None:
    if options.json:
        echo(json.dumps(shown, indent=2, ensure_ascii=False, default=str))
    else:
        page(shown)


def _task(name: str, registry: Registry, *, in_full: bool) -> Record:
    from ttmbench.cli.published_page import in_brief, in_few
    from ttmbench.reproduce.lookup import rows_of_task

    spec = find_task(registry, name).spec
    benchmark = benchmark_of(spec.task)
    metrics = {}
    for metric in map(registry.metric, spec.metrics):
        described = metric if spec.kind != "groups" else metric_for(metric, spec.shape)
        row = {"summary": described.summary, "chance": chance_of(described, spec), "track": described.track}
        metrics[metric.name] = row
    presets = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
    rows = rows_of_task(spec.task, registry)
    published = (in_brief if in_full else in_few)(rows, name, registry, is_task=True)
    notes = {"benchmark": benchmark and benchmark.title, "notes": list(benchmark.notes) if benchmark else []}
    return {**spec.model_dump(mode="json"), **notes, "metrics": metrics, "ttm": presets, "published": published}


def _model(name: str, registry: Registry, *, in_full: bool) -> Record:
    from ttmbench.cli.published_page import in_brief, in_few
    from ttmbench.reproduce.lookup import rows_of_model

    adapter, plugin = registry.adapters[name]
    card = None if adapter.card is None else vars(adapter.card)
    shown = {**vars(adapter), "card": card, "plugin": plugin}
    model_options = shown.pop("options")
    if model_options is not None:
        shown["arguments"] = load_target(model_options).described()
    rows = rows_of_model(adapter.name, registry)
    return {**shown, "published": (in_brief if in_full else in_few)(rows, name, registry, is_task=False)}


def _dataset(name: str, registry: Registry) -> Record | None:
    """The tasks of a benchmark or of a tag; None for another name."""
    benchmark = next((one for one in benchmarks() if name in (one.name, one.title)), None)
    specs = [file.spec for file in all_tasks(registry).values()]
    chosen = [spec for spec in specs if (benchmark.has(spec.task) if benchmark else name in spec.tag)]
    if not chosen:
        return None
    about = {"benchmark": benchmark.title, "about": benchmark.about} if benchmark else {"tag": name}
    tasks = {spec.task: {"shape": spec.extent, "groups": spec.group.n_groups} for spec in chosen}
    notes = list(benchmark.notes) if benchmark else []
    return {**about, "run": benchmark.run if benchmark else name, "tasks": tasks, "notes": notes}


def _metric(name: str, registry: Registry) -> Record:
    """A metric, with its definition from its function's docstring, and its chance level by size of a task."""
    metric, plugin = registry.metrics[name]
    chance, tasks = {}, []
    for task, file in all_tasks(registry).items():
        if name in file.spec.metrics:
            spec = file.spec
            bound = metric_for(metric, spec.shape) if spec.kind == "groups" else metric
            size = f"{spec.group.n_groups} groups of {spec.extent}" if metric.scope == "global" else spec.extent
            chance[size] = chance_of(bound, spec)
            tasks.append(task)
    function = getattr(metric.compute, "func", metric.compute)
    about = inspect.getdoc(function) or ""
    return {
        "metric": name,
        "summary": metric.summary,
        "definition": " ".join(about.partition("\n\n")[0].split()),
        **{key: getattr(metric, key) for key in ("scope", "track", "higher_is_better", "several_true")},
        "chance": chance,
        "tasks": tasks,
        "plugin": plugin,
    }


def _print_published(name: str, registry: Registry, options: argparse.Namespace) -> None:
    """Every published number of a name, which may be one that only the sources have."""
    from ttmbench.cli.published_page import print_all
    from ttmbench.reproduce.lookup import of_method, of_model, of_task, published_rows

    every = published_rows(registry)
    own = registry.adapters[name][0].name if name in registry.adapters else name
    if name.endswith((".yaml", ".yml")):
        own = find_task(registry, name).spec.task
    rows = of_task(every, own) or of_model(every, own) or of_method(every, own)
    known = [*registry.task_files, *registry.adapters, *registry.methods, *registry.metrics]
    if not rows and own == name and name not in known:
        names = {title for row in every for title in (*row.tasks, *row.models)}
        near = get_close_matches(name, names, n=1, cutoff=0.6)
        raise UsageError(registry.unknown("task, model, method or metric", name, [*known, *near]))
    if not rows and not options.json:
        echo(f"nothing is published about {name} here; `ttmbench reproduce` lists the tables")
        return
    print_all(rows, registry, as_json=options.json)
