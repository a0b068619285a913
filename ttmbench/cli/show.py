"""``ttmbench show``: what the files say of a task, model, method or metric, and what is published about it."""

from __future__ import annotations

import argparse
import inspect
import json
import textwrap
from collections.abc import Mapping
from difflib import get_close_matches

from ttmbench._util.console import console, echo, plain
from ttmbench.cli.parser import add_run_options
from ttmbench.config import with_rate_note
from ttmbench.data.benchmarks import benchmark_of, benchmarks
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import TaskFile, all_tasks, find_task
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.methods.settings import arguments
from ttmbench.plugins.registry import Registry, build_registry, load_target, metric_for, unknown
from ttmbench.results.numbers import COLUMNS
from ttmbench.stats import smallest_difference
from ttmbench.types import MethodSpec, ModelCard, Record

Facts = Mapping[str, object]  # name -> text
Page = tuple[Record, Facts]  # as JSON, and what a page prints, of which the first fact is its title
MOST_CAPTIONS = 4  # of the group that a page shows
_SCOPES = {  # of a method -> what an answer depends on
    **{"row": "one image and its captions", "group": "one group", "batch": "the groups of one batch"},
    **{"stream": "the groups so far", "task": "the whole task"},
}
_RESTORED = {"group": "before each group", "batch": "before each batch", "never": "when the method has ended"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench show``."""
    parser.add_argument("name", metavar="NAME", help="Task, benchmark, tag, model, test-time method or metric")
    parser.add_argument("--published", action="store_true", help="List all published numbers")
    parser.add_argument("--json", action="store_true", help="Print JSON with every field")
    add_run_options(parser, "include_path", title="")


def show(options: argparse.Namespace) -> int:
    """Print a page about a task, a model, a method or a metric, or published numbers; or either as JSON."""
    registry = build_registry(options.include_path or [])
    name, page = options.name, None
    if options.published:
        pass
    elif name in registry.task_files or name.endswith((".yaml", ".yml")):
        page = _task(name, registry)
    elif name in registry.adapters:
        page = _model(name, registry)
    elif name in registry.methods:
        page = _method(registry.methods[name], registry.methods.plugins[name])
    elif name in registry.metrics:
        page = _metric(name, registry)
    else:
        page = _dataset(name, registry)
    if page is None:
        return _print_published(name, registry, as_json=options.json)
    shown, facts = page
    if options.json:
        echo(json.dumps(shown, indent=2, ensure_ascii=False, default=str))
    else:
        _print_page(shown, facts)
    return 0


def _print_page(shown: Record, facts: Facts) -> None:
    title = next(iter(facts))
    _print_facts({f"{title}:": facts[title]})
    echo()
    _print_facts({name: text for name, text in facts.items() if name != title})
    if shown.get("arguments"):
        from ttmbench.report.terminal import TableColumn, print_table

        echo()
        rows = [[each["name"], _default(each), each["meaning"].replace("``", "")] for each in shown["arguments"]]
        columns = [TableColumn("argument", "key"), TableColumn("default"), TableColumn("meaning")]
        print_table(columns, rows, title=shown["option"])


def _print_facts(facts: Facts) -> None:
    """Name and text of each fact in two columns, at most 120 characters wide; facts without a text are skipped."""
    known = {name: plain(str(text), "\n") for name, text in facts.items() if text not in (None, "", [], ())}
    name_width, width = max(map(len, known), default=0) + 1, min(console().width, 120)
    for name, text in known.items():
        indent = " " * name_width
        echo(textwrap.fill(f"{name:<{name_width}}{text}", width, subsequent_indent=indent, break_on_hyphens=False))


def _default(argument: Record) -> str:
    if argument["required"]:
        return "required"
    value = argument["default"]
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _task(name: str, registry: Registry) -> Page:
    file = find_task(registry, name)
    spec, benchmark = file.spec, benchmark_of(file.spec.task)
    metrics, by_chance = dict[str, Record](), dict[float | None, list[str]]()
    for metric in map(registry.metrics.__getitem__, spec.metrics):
        described = metric if spec.kind != "groups" else metric_for(metric, spec.shape)
        chance = chance_of(described, spec)
        metrics[metric.name] = {"summary": described.summary, "chance": chance, "track": described.track}
        by_chance.setdefault(chance, []).append(metric.name)
    notes = {"benchmark": benchmark and benchmark.title, "notes": list(benchmark.notes) if benchmark else []}
    rates = {model: with_rate_note(settings) for model, settings in spec.ttm.items()}
    more = {"metrics": metrics, "ttm": rates, "first_group": _first_group(registry, file)}
    task: Record = {**spec.model_dump(mode="json"), **notes, **more}
    source, group, classes = task["source"], task["group"], task["classes"] or {}
    while "of" in source:
        source = source["of"][0]
    size = f"{group['n_groups'] or 'unknown number of'} groups of {'x'.join(map(str, group['shape'] or ()))}"
    if task["kind"] != "groups":
        others = f"{classes.get('count')} classes" if classes else f"{group.get('n_captions')} captions"
        size = f"{group['n_groups'] or 'unknown number of'} images, {others}"
    elif group["n_groups"] is not None:
        smallest = smallest_difference(group["n_groups"])
        size += "; smallest significant difference: " + ("none" if smallest is None else f"{100 * smallest:.2f} points")
    presets = [model for model in task["ttm"] if model != "defaults"]
    first = task["first_group"] or {"captions": [], "images": []}
    return task, {
        task["task"]: task["description"],
        "paper": task["reference"],
        "size": size,
        "data": " ".join(str(source[key]) for key in ("kind", "path", "file", "split", "revision") if source.get(key)),
        "licence": f"{'gated; ' * task['gated']}{task['license'] or 'not stated'}",
        "metrics": "; ".join(
            ", ".join(names) + ("" if chance is None else f" (chance {100 * chance:.2f})")
            for chance, names in by_chance.items()
        ),
        "images": task["images_needed"],
        "labels": task["label_errors"].replace("`", ""),
        "defects": "; ".join(map(str, group.get("known_defects") or [])),
        "template": task.get("caption_template"),
        "evidence": ", ".join(f"{what}: {certainty}" for what, certainty in task["evidence"].items()),
        "notes": " ".join(task["notes"]).replace("`", ""),
        "tags": ", ".join(task["tag"]),
        "first group": " | ".join(first["captions"][:MOST_CAPTIONS]),
        "its images": ", ".join(first["images"]),
        "TTM": f"the paper's settings for {', '.join(presets)} (--ttm_preset paper)" if presets else None,
        "citation": " ".join(str(task["citation"] or "").split()),
    }


def _first_group(registry: Registry, task: TaskFile) -> Record | None:
    """The captions and image names of a task's first group; None where its data are not here."""
    try:
        group = load_task_data(registry, task, limit=1, offline=True).groups[0]
    except (TtmbenchError, IndexError):
        return None
    names = [image.name for image in group.images]
    return {"group_id": group.group_id, "captions": list(group.captions), "images": names}


def _model(name: str, registry: Registry) -> Page:
    adapter, plugin = registry.adapters[name], registry.adapters.plugins[name]
    shown = {**vars(adapter), "card": None if adapter.card is None else vars(adapter.card), "plugin": plugin}
    model_options = shown.pop("options")
    if model_options is not None:
        described = load_target(model_options).described().items()
        rows = [{"name": key, "default": None, "required": "default" not in about, **about} for key, about in described]
        shown |= {"option": "--model_args NAME=VALUE", "arguments": rows}
    card = shown["card"] or {}
    trained_on, captions = card.get("trained_on"), card.get("captions")
    size = ModelCard("", card["bytes"]).size if card.get("bytes") else None
    if isinstance(captions, Mapping):
        captions = ", ".join(f"{name} {'none' if value is None else value}" for name, value in captions.items())
    elif not card.get("refused"):
        captions = "how they are read: `captions` of the fingerprint in each result"
    return shown, {
        shown["name"]: shown["summary"],
        "sets": ", ".join(f"{key}={value}" for key, value in shown["model_args"].items()),
        "weights": ", ".join(str(fact) for fact in (card.get("weights"), size, card.get("license")) if fact),
        "gated": "yes: accept the terms on its page first" if card.get("gated") else None,
        "captions": captions,
        "trained on": trained_on if trained_on is None else ", ".join(trained_on) or "nothing",
        **{key: card.get(key) for key in ("page", "note", "refused")},
        "aliases": ", ".join(shown["aliases"]),
        "needs": ", ".join(shown["needs"]),
        "code": f"{shown['target']} (plugin {shown['plugin']})",
    }


def _method(spec: MethodSpec, plugin: str) -> Page:
    """A method with its settings, and what its function's docstring says."""
    has_column = any(column.method == spec.name for column in COLUMNS)  # TTM itself, its bound and its controls
    option = "--ttm_args NAME=VALUE" if has_column else f"--method_args {spec.name}.NAME=VALUE"
    rows = [
        {
            **{key: getattr(each, key) for key in ("name", "allowed", "default", "source")},
            "required": each.is_required,
            "meaning": "; ".join(filter(None, (each.allowed, each.source))),
        }
        for each in arguments(spec)
    ]
    shown = {**vars(spec), "track": spec.track, "trains": spec.trains, "plugin": plugin, "arguments": rows}
    shown["option"] = "ttmbench finetune --finetune_args NAME=VALUE" if spec.track == "supervised" else option
    text = inspect.getdoc(load_target(spec.target)) or ""
    return shown, {
        spec.name: spec.summary or "-",
        "definition": " ".join(text.partition("\n\nArgs:")[0].replace("``", "`").split()),
        "paper": spec.reference or "none stated",
        "needs": ", ".join(spec.needs),
        "answers": f"depend on {_SCOPES[spec.scope]}" + ", and on the order of the groups" * spec.order_dependent,
        "assumes": "that each caption belongs to one image" if spec.assumes_matching else None,
        "restored": _RESTORED[spec.reset] if spec.reset else None,
        "scores": f"taken {'before' if spec.scores_before_update else 'after'} a group is trained on"
        if spec.trains
        else None,
        "units": None if spec.gives_logits else "no logits, so calibration errors mean nothing",
        "track": spec.track or "none: a control, which ranks nowhere",
        "baseline": "SimpleMatch (group_match,none) for every metric: its scores use the matching"
        if spec.track == "matching"
        else "the raw model, same metric (METRIC,none); for group match SimpleMatch",
        "code": f"{spec.target} (plugin {plugin})",
    }


def _dataset(name: str, registry: Registry) -> Page | None:
    """The tasks of a benchmark or of a tag; None for another name."""
    benchmark = next((one for one in benchmarks() if name in (one.name, one.title)), None)
    specs = [file.spec for file in all_tasks(registry).values()]
    chosen = [spec for spec in specs if (benchmark.has(spec.task) if benchmark else name in spec.tag)]
    if not chosen:
        return None
    about = {"benchmark": benchmark.title, "about": benchmark.about} if benchmark else {"tag": name}
    tasks = {spec.task: {"shape": spec.extent, "groups": spec.group.n_groups} for spec in chosen}
    notes = list(benchmark.notes) if benchmark else []
    dataset: Record = {**about, "run": benchmark.run if benchmark else name, "tasks": tasks, "notes": notes}
    names = [f"{name} ({size['shape']}, {size['groups'] or '?'})" for name, size in dataset["tasks"].items()]
    return dataset, {
        str(dataset.get("benchmark", dataset.get("tag"))): dataset.get("about", "a tag of tasks"),
        "run": f"--tasks {dataset['run']}",
        "tasks": f"{len(names)} (shape, size): {', '.join(names)}",
        "notes": " ".join(dataset["notes"]).replace("`", ""),
    }


def _metric(name: str, registry: Registry) -> Page:
    """A metric, with its definition from its function's docstring, and its chance level by size of a task."""
    metric, chance, tasks = registry.metrics[name], dict[str, float | None](), list[str]()
    for task, file in all_tasks(registry).items():
        if name in file.spec.metrics:
            spec = file.spec
            bound = metric_for(metric, spec.shape) if spec.kind == "groups" else metric
            size = f"{spec.group.n_groups} groups of {spec.extent}" if metric.scope == "global" else spec.extent
            chance[size] = chance_of(bound, spec)
            tasks.append(task)
    about = inspect.getdoc(getattr(metric.compute, "func", metric.compute)) or ""
    shown = {
        "metric": name,
        "summary": metric.summary,
        "definition": " ".join(about.partition("\n\n")[0].split()),
        **{key: getattr(metric, key) for key in ("scope", "track", "higher_is_better", "several_true")},
        "chance": chance,
        "tasks": tasks,
        "plugin": registry.metrics.plugins[name],
    }
    sizes: dict[str, list[str]] = {}
    for extent, value in sorted(chance.items(), key=lambda one: -(one[1] or 0)):
        sizes.setdefault("unknown" if value is None else f"{100 * value:.2f}", []).append(extent)
    return shown, {
        name: metric.summary,
        "definition": shown["definition"],
        "chance": "; ".join(f"{value} for {', '.join(of)}" for value, of in sizes.items()),
        "scope": metric.scope,
        "better": "higher" if metric.higher_is_better else "lower",
        "track": metric.track,
        "tasks": f"{len(tasks)}, such as {', '.join(tasks[:4])}" if tasks else "none",
    }


def _print_published(name: str, registry: Registry, *, as_json: bool) -> int:
    """Every published number of a name, which may be one that only the sources have."""
    from ttmbench.reproduce.tables import named, print_all, published_rows

    every = published_rows(registry)
    own = registry.adapters[name].name if name in registry.adapters else name
    if name.endswith((".yaml", ".yml")):
        own = find_task(registry, name).spec.task
    rows = named(every, own)
    known = [*registry.task_files, *registry.adapters, *registry.methods, *registry.metrics]
    if not rows and own == name and name not in known:
        names = {title for row in every for of in (row.printed, row.number) for title in (of.task, of.model)}
        near = get_close_matches(name, names, n=1, cutoff=0.6)
        raise UsageError(unknown("task, model, method or metric", name, [*known, *near], registry.broken))
    if rows or as_json:
        print_all(rows, as_json=as_json)
    else:
        echo(f"nothing is published about {name} here; `ttmbench reproduce` lists the tables")
    return 0
