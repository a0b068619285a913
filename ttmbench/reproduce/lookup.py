"""What is published about a task, a model or a method: every number of the shipped tables by all its names.

``show`` prints them; leaderboards and reports show them beside runs, under our names, with chance and intervals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import harmonic_mean

from ttmbench import stats
from ttmbench._util.console import echo, one_line
from ttmbench.data.rows import csv_rows
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import AlreadyRead, TaskSpec, find_task
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.report.leaderboard import Leaderboard, Published, PublishedSource
from ttmbench.report.terminal import TableColumn, number_text, percent, print_table
from ttmbench.reproduce.tables import (
    CELL,
    SHIPPED,
    TRACKS,
    ModelEntry,
    PublishedNumber,
    PublishedTable,
    published_tables,
    read_published,
)
from ttmbench.results.document import mapping
from ttmbench.results.numbers import CHOICE, NO_MODEL, SLASH, Extent, Number, Origin
from ttmbench.types import MetricSpec

# Arguments of a model behind a server that change no answer.
_HOW_ASKED = frozenset(
    ("api_key_env", "backoff", "cache", "concurrency", "max_cost", "price_in", "price_out", "retries", "timeout")
)


@dataclass(frozen=True)
class PublishedRow:
    """A published number: as printed, and under the names that it has here."""

    table: PublishedTable
    printed: PublishedNumber
    number: Number
    parts: Mapping[str, TaskSpec | None]  # the tasks that it is of; None for one that is not here
    tasks: frozenset[str]  # every name that the task has
    models: frozenset[str]  # every name that the model has


def published_rows(registry: Registry, tables: Iterable[PublishedTable] | None = None) -> list[PublishedRow]:
    """Every number of some tables; by default of the shipped tables that others published."""
    names, read, rows = dict[str, str](), AlreadyRead(), list[PublishedRow]()
    for name, adapter in registry.adapters.items():  # first the name itself, then its aliases
        names.setdefault(_weights_of(name, {}, registry), adapter.name)

    @cache  # the numbers of a table are of a few tasks
    def spec_of(task: str) -> TaskSpec | None:
        return find_task(registry, task, read).spec if task in registry.task_files else None

    for table in published_tables() if tables is None else tables:
        models = {name: _models(name, entry, names, registry) for name, entry in table.spec.models.items()}
        for printed in table.numbers:
            entry, base, known = table.spec.entry(printed.task), printed.task.partition(" (")[0], models[printed.model]
            parts = {part: spec_of(part) for part in entry.parts or [base]}
            number = _number(printed, table, parts, known[0], registry)
            tasks = frozenset([printed.task, base, *parts, *filter(None, [entry.row])])
            rows.append(PublishedRow(table, printed, number, parts, tasks, frozenset(known)))
    return rows


def named(rows: Sequence[PublishedRow], name: str) -> list[PublishedRow]:
    """The numbers of a task, also those over its groups and others'; else of a model; else of a test-time method."""
    return (
        [row for row in rows if name in row.tasks]
        or [row for row in rows if name in row.models]
        or [row for row in rows if name in (row.printed.method, row.number.method)]
    )


def print_all(rows: Iterable[PublishedRow], *, as_json: bool) -> None:
    """Every number as a table, by task, model and metric; or as JSON."""
    numbers = sorted((row.number for row in rows), key=lambda row: (row.task, row.model, row.metric, row.origin.file))
    if as_json:
        echo(json.dumps([number.row() for number in numbers], indent=2, ensure_ascii=False))
        return
    columns = [TableColumn("model", "key"), TableColumn("metric", "key")]
    columns += [TableColumn("percent", "number"), TableColumn("chance", "number"), TableColumn("source")]
    cells = list[list[str]]()
    for task, of_task in groupby(numbers, lambda number: number.task):
        cells.append([task])
        for number in of_task:
            metric = number.metric if number.column == "raw" else f"{number.metric} ({number.column})"
            cells.append([number.model, metric, number_text(number), percent(number.chance), number.origin.file])
    print_table(columns, cells)


def _models(published: str, entry: ModelEntry, names: Mapping[str, str], registry: Registry) -> list[str]:
    """The names of a published model: the name here, the repository of its weights, the published one.

    ``names`` has what is loaded by each name of the registry. A finetuned model has its published name alone.
    """
    if entry.model is None or entry.finetuned is not None:
        return [published]
    weights = _weights_of(entry.model, entry.model_args, registry)
    repository = str(json.loads(weights)[1].get("pretrained"))
    known = [names.get(weights), repository if "/" in repository else None, published]
    return [name for name in known if name is not None]


def _weights_of(model: str, arguments: dict[str, object], registry: Registry) -> str:
    """What loads a model and its arguments, whichever commit of the repository is read."""
    target, given = model_identity({"model": model, "model_args": arguments}, registry) or (model, arguments)
    return json.dumps([target, {key: given[key] for key in sorted(given) if key != "revision"}], default=str)


def model_identity(config: Mapping[str, object], registry: Registry) -> tuple[str, dict[str, object]] | None:
    """What loads a model, and with which arguments: the same for a name, an alias, and the weights' own name."""
    name = config.get("model")
    if not isinstance(name, str):
        return None
    arguments = {key: value for key, value in mapping(config.get("model_args")).items() if key not in _HOW_ASKED}
    if not is_known_model(name, registry):
        return name, arguments
    spec = registry.adapters[name]
    if spec.card is not None and spec.card.page:  # weights that are downloaded by hand: any file, under this name alone
        arguments.pop("pretrained", None)
        return f"{spec.target} {spec.name}", {**spec.model_args, **arguments}
    return spec.target, {**spec.model_args, **arguments}


def is_known_model(name: str, registry: Registry) -> bool:
    """Whether a model of this name is registered."""
    try:
        registry.adapters[name]
    except UsageError:
        return False
    return True


_TIES = {
    "first": "the first of equal scores is chosen, where a tie is wrong here",
    "right": "a tie counts as correct, where it is wrong here",
    "by_name": "equal scores are ordered by the names of the documents, where a tie is wrong here",
}


def published_numbers(names: Sequence[str]) -> list[Number]:
    """The numbers that ``--published`` names; see `published_beside_runs`."""
    return list(published_beside_runs(names).numbers)


def published_beside_runs(names: Sequence[str]) -> Published:
    """The rows that ``--published`` names (built-in tables, ``all``, or your own CSV), marked as published.

    Rows of built-in tables have our names of tasks, metrics and registered models, the chance level, the number of
    groups, and a Wilson interval from value and number of groups. DataError naming file and line if a CSV is wrong.
    """
    decimals_of: dict[Number, int] = {}  # with its printed digits; a table that is named twice counts once
    sources: dict[str, PublishedSource] = {}
    configs: dict[str, Mapping[str, object]] = {}
    parameters: dict[str, float] = {}
    notes: dict[tuple[str, str], str] = {}
    for name in names:
        registry, tables = build_registry(), published_tables(name)
        for row in published_rows(registry, tables):
            spec, number, model = row.table.spec, row.number, row.table.spec.models[row.printed.model]
            decimals_of[number] = row.printed.decimals
            ties = {"ties": _TIES[spec.ties]} if spec.ties in _TIES else {}
            sources[number.origin.file] = PublishedSource(spec.paper, spec.address, {**ties, **spec.rules})
            configs.setdefault(number.task, _config(row))
            if size := _parameters(model, row.printed.model, registry):
                parameters[number.model] = size
            if model.note:
                notes[number.origin.file, number.model] = model.note
        for printed in [] if tables else read_published(Path(name)):
            if printed.of_model is None:
                known = ", ".join(TRACKS)
                raise DataError(f"{printed.where}: states no track; the column 'track' must be one of {known}")
            decimals_of[_as_printed(printed)] = printed.decimals
    return Published(_with_disagreements(decimals_of), sources, configs, parameters, notes)


def under_names_of_runs(board: Leaderboard, published: Published) -> tuple[Leaderboard, Published]:
    """A leaderboard and its published numbers where a repository or tag has the name that a run of it has."""
    names: dict[str, str] = {}
    for run in board.runs:
        config = run.document.config
        arguments = mapping(config.get("model_args"))
        keys = {"hf": ("pretrained",), "open_clip": ("model", "pretrained")}.get(str(config.get("model")), ())
        is_plain = bool(keys) and {*keys} <= arguments.keys() <= {*keys, "revision"} and not run.document.finetuned
        if is_plain and run.ranked and not run.ranked[0].setting:
            names[" ".join(str(arguments[key]) for key in keys)] = run.model

    def here(model: str) -> str:
        return names.get(model, model)

    rows = [replace(row, model=here(row.model)) if row.origin.published_as else row for row in board.rows]
    parameters = {here(model): size for model, size in published.parameters.items()}
    notes = {(file, here(model)): note for (file, model), note in published.notes.items()}
    return replace(board, rows=rows), replace(published, parameters=parameters, notes=notes)


def _as_printed(number: PublishedNumber) -> Number:
    """A number under the source's names, which are made fit for a cell."""
    return Number(
        task=one_line(number.task, CELL),
        metric=one_line(number.metric, CELL),
        method=number.column.filter,
        track=number.track,
        value=number.measured.value,
        seed_std=number.measured.std,
        model=one_line(number.model, CELL),
        origin=Origin(number.place, published=True),
    )


def _number(
    printed: PublishedNumber,
    table: PublishedTable,
    parts: Mapping[str, TaskSpec | None],
    model_here: str,
    registry: Registry,
) -> Number:
    """A published number under the names that task, metric and model have here."""
    number, entry, model = _as_printed(printed), table.spec.entry(printed.task), table.spec.models[printed.model]
    task = entry.row or (entry.parts[0] if len(entry.parts) == 1 else printed.task)
    metric_name, mean = table.spec.metric(printed.task, printed.metric)
    metric = registry.metrics.get(metric_name)
    if model_here == printed.model and model.model == "open_clip":  # one without a name: its architecture and tag
        model_here = " ".join(str(model.model_args[key]) for key in ("model", "pretrained") if key in model.model_args)
    # A repository names a model only where it has one scorer.
    is_known = model.finetuned is None and (model_here in registry.adapters or model.model in ("hf", "open_clip"))
    number = replace(
        number,
        task=f"{task}/{mean}" if mean else task,
        metric=metric_name,
        model=one_line(model_here, CELL) if is_known else number.model,
        origin=replace(number.origin, published_as=number.model if is_known else "", date=table.spec.published_on),
        higher_is_better=metric is None or metric.higher_is_better,
    )
    here = next((part for part in parts.values() if part is not None), None)
    if number.track != NO_MODEL and here is not None and metric is not None:
        number = replace(number, chance=_chance(here, metric, number.method))
    if printed.of or entry.groups or not entry.parts:
        size = printed.of or entry.groups or (here.group.n_groups if here is not None and entry.why is None else None)
        sizes = [size]
    else:
        stated = {name: table.spec.entry(name).groups for name in parts}
        sizes = [stated[name] or (part.group.n_groups if part else None) for name, part in parts.items()]
    known = [size for size in sizes if size is not None]
    if mean or len(known) < len(sizes):
        return number
    # Of an unweighted mean over tasks, the size that gives a proportion its variance.
    worth = sum(known) if len(known) == 1 or entry.pool_of else len(known) * harmonic_mean(known)
    interval = stats.proportion_interval(printed.measured.value, worth)
    return replace(number, interval=interval, extent=Extent(sum(known), sum(known)))


def _chance(spec: TaskSpec, metric: MetricSpec, method: str) -> float | None:
    """The expected value of a metric for random scores on a task, or for random choices; None where it is unknown."""
    if method == CHOICE:
        from ttmbench.scoring.choice_arrays import choice_chance  # with scipy

        shape = spec.shape if spec.kind == "groups" else None
        return None if shape is None else choice_chance(shape.images, shape.captions).get(metric.name)
    return chance_of(metric_for(metric, spec.shape) if spec.kind == "groups" else metric, spec)


def _config(row: PublishedRow) -> Mapping[str, object]:
    """What the page of a task states, under the keys of its task file; of a mean over tasks the shape of the first."""
    entry, known = row.table.spec.entry(row.printed.task), next(filter(None, row.parts.values()), None)
    if known is None:
        return {"description": entry.why or ""}
    about: dict[str, object] = {key: getattr(known, key) for key in ("kind", "matching", "metrics")}
    about["group"] = {"shape": known.group.shape}
    if len(row.parts) > 1:
        how = "All groups of" if entry.pool_of else "The mean over"
        return about | {"description": f"{how} {', '.join(row.parts)}."}
    about |= {key: getattr(known, key) for key in ("description", "reference", "license", "label_errors")}
    _, _, mean = row.number.task.partition(SLASH)
    if entry.why:
        about["description"] = f"Not the same as {known.task}: {entry.why}."
    elif mean:
        about["description"] = f"The mean over values of tags, {mean}, of this task: {known.description}"
    return about


def _parameters(model: ModelEntry, published: str, registry: Registry) -> float | None:
    """How many parameters a published model has, by its architecture, its repository, or its published name."""
    arguments = (model_identity({"model": model.model, "model_args": model.model_args}, registry) or ("", {}))[1]
    names = (arguments.get("model"), arguments.get("pretrained"), published)
    return next((_stated_parameters()[str(name)] for name in names if str(name) in _stated_parameters()), None)


@cache
def _stated_parameters() -> dict[str, float]:
    """Architecture of open_clip or repository -> parameters, from open_clip's and mteb's documentation."""
    path = SHIPPED / "_parameters.csv"
    rows = csv_rows(path.read_text(encoding="utf-8"), str(path))
    return {str(row.cells["name"]): 1e6 * float(str(row.cells["millions"])) for row in rows}


def _with_disagreements(decimals_of: Mapping[Number, int]) -> list[Number]:
    """The numbers; of those under one name that differ by more than their printed digits, each names the others."""

    def known_as(number: Number) -> tuple[str | None, ...]:
        return (number.model, number.task, number.metric, number.column, number.track)

    same: dict[tuple[str | None, ...], list[tuple[Number, int]]] = {}
    for number, decimals in decimals_of.items():
        same.setdefault(known_as(number), []).append((number, decimals))
    numbers = []
    for number, decimals in decimals_of.items():
        others = [
            f"{100 * (other.value or 0):.{min(digits, 2)}f} in {other.origin.file}"
            for other, digits in same[known_as(number)]
            if abs((other.value or 0) - (number.value or 0)) > (10.0**-decimals + 10.0**-digits) / 200 + 1e-9
        ]
        origin = replace(number.origin, disagrees="; ".join(others) or None)
        numbers.append(replace(number, origin=origin))
    return numbers
