"""``ttmbench show``: all details of one task, model or method, and what is published about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from ttmbench._util.console import echo, one_line
from ttmbench.cli.method_page import as_json, print_page
from ttmbench.cli.options import add_task_files
from ttmbench.cli.pages import print_model, print_task
from ttmbench.config import with_rate_note
from ttmbench.data.benchmarks import benchmark_of
from ttmbench.data.catalog import find_task
from ttmbench.data.task_chance import chance_of
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry, build_registry, load_target, metric_for
from ttmbench.reproduce.lookup import (
    PublishedRow,
    chance,
    most_measured,
    of_method,
    of_model,
    of_task,
    published_rows,
    rows_of_model,
    rows_of_task,
)
from ttmbench.types import Record

LINES = 12  # of published numbers in a JSON document
_WIDTH = 72  # of such a line; the document adds 8 characters


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
    spec = find_task(registry, name).spec
    benchmark = benchmark_of(spec.task)
    metrics = {}
    for metric in map(registry.metric, spec.metrics):
        described = metric if spec.kind != "groups" else metric_for(metric, spec.shape)
        row = {"summary": described.summary, "chance": chance_of(described, spec), "track": described.track}
        metrics[metric.name] = row
    presets = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
    published = _in_brief(rows_of_task(spec.task, registry), name, registry, is_task=True)
    notes = {"benchmark": benchmark and benchmark.title, "notes": list(benchmark.notes) if benchmark else []}
    return {**spec.model_dump(mode="json"), **notes, "metrics": metrics, "ttm": presets, "published": published}


def _model(name: str, registry: Registry) -> Record:
    adapter, plugin = registry.adapters[name]
    card = None if adapter.card is None else vars(adapter.card)
    shown = {**vars(adapter), "card": card, "plugin": plugin}
    model_options = shown.pop("options")
    if model_options is not None:
        shown["arguments"] = load_target(model_options).described()
    published = _in_brief(rows_of_model(adapter.name, registry), name, registry, is_task=False)
    return {**shown, "published": published}


def _print_published(name: str, registry: Registry, options: argparse.Namespace) -> None:
    """Every published number of a name, which may be one that only the sources have."""
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
    _print_all(rows, registry, as_json=options.json)


def _in_brief(rows: Sequence[PublishedRow], name: str, registry: Registry, *, is_task: bool) -> Record:
    """How many numbers are published, the most measured ones as lines of text, and the command that lists all."""
    if not rows:
        return {"numbers": 0}
    other: Callable[[PublishedRow], str] = (lambda row: row.model) if is_task else (lambda row: row.task)
    exactly = [row for row in rows if row.task == name] if is_task else rows
    chosen = most_measured(exactly or rows, other, one_metric=is_task)[:LINES]
    cells = [
        ("percent", "chance", "metric", "model" if is_task else "task", "source"),
        *(
            (_percent(row.number.measured.value), _percent(chance(row, registry)), row.label, other(row), _source(row))
            for row in chosen
        ),
    ]
    sources = len({row.number.source for row in rows})
    about = f"{len(rows)} numbers of {sources} source{'s' * (sources > 1)}"
    shown = f"; those of the {'models' if is_task else 'tasks'} that most sources measured" * (len(chosen) < len(rows))
    command = f"ttmbench show {name} --published"
    return {"numbers": len(rows), "about": about + shown, "lines": _aligned(cells), "all": command}


def _aligned(cells: Sequence[tuple[str, str, str, str, str]]) -> list[str]:
    """Lines of equal columns; where they would be too long, without ``arXiv:``, and then with shorter names."""
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    room = _WIDTH - sum(widths) + widths[3] - 8
    if room < widths[3]:
        cells = [(*line[:4], line[4].removeprefix("arXiv:")) for line in cells]
        room += widths[4] - max(len(line[4]) for line in cells)
    width = max(12, min(widths[3], room))
    return [
        f"{value:>{widths[0]}}  {by_chance:>{widths[1]}}  {metric:{widths[2]}}  "
        f"{name if len(name) <= width else name[: width - 2] + '..':{width}}  {where}"
        for value, by_chance, metric, name, where in cells
    ]


def _print_all(rows: Sequence[PublishedRow], registry: Registry, *, as_json: bool) -> None:
    """Every number as a table, by task, model and metric; or as JSON."""
    rows = sorted(rows, key=lambda row: (row.task, row.model, row.label, row.number.source, row.number.table))
    if as_json:
        echo(json.dumps([_as_json(row, registry) for row in rows], indent=2, ensure_ascii=False))
        return
    from ttmbench.report.table import TableColumn, percent, print_table, spread  # rich is not needed for JSON

    columns = [TableColumn("task", "heading"), TableColumn("model", "key"), TableColumn("metric", "key")]
    columns += [TableColumn("percent", "number"), TableColumn("chance", "number"), TableColumn("source")]
    cells, above = [], ""
    for row in rows:
        task, measured = one_line(row.task, 200), row.number.measured
        numbers = (spread(measured.value, measured.std), percent(chance(row, registry)))
        cells.append(["" if task == above else task, row.model, row.label, *numbers, row.number.as_number().file])
        above = task
    print_table(columns, cells)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _source(row: PublishedRow) -> str:
    """Where a number was published, without its table; the name of a repository without its owner."""
    return one_line(row.number.source.partition(",")[0].rpartition("/")[2], 20)


def _as_json(row: PublishedRow, registry: Registry) -> Record:
    number = row.number
    return {
        "source": number.source,
        "table": number.table,
        "reproduce": row.table,
        "task": number.task,
        "model": number.model,
        "model_here": row.model if row.model != number.model else None,
        "method": number.column.name,
        "metric": row.label.partition(" (")[0],
        "value": number.measured.value,
        "std": number.measured.std,
        "of": number.of,
        "chance": chance(row, registry),
    }
