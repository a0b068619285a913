"""What is published about a task, a model or a method: every number of the shipped tables by all its names.

``show`` prints some or all; leaderboards and reports show them beside runs, under our names, with chance and intervals.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from statistics import harmonic_mean

from ttmbench import stats
from ttmbench._util.console import echo, one_line
from ttmbench.data.row_files import csv_rows
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import AlreadyRead, TaskSpec, find_task
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.report.leaderboard import Leaderboard, Published, PublishedSource
from ttmbench.report.table import TableColumn, percent, print_table, spread
from ttmbench.reproduce.tables import (
    CELL,
    SHIPPED,
    TRACKS,
    ModelEntry,
    PublishedNumber,
    PublishedTable,
    TableSpec,
    TaskEntry,
    published_tables,
    read_published,
)
from ttmbench.results.document import mapping
from ttmbench.results.numbers import CHOICE, NO_MODEL, SLASH, Extent, Number
from ttmbench.types import Record

# Arguments of a model behind a server that change no answer.
_HOW_ASKED = frozenset(
    ("api_key_env", "backoff", "cache", "concurrency", "max_cost", "price_in", "price_out", "retries", "timeout")
)


@dataclass(frozen=True)
class PublishedRow:
    """A published number by the names that it has here."""

    table: str  # the shipped table
    number: PublishedNumber
    here: str  # the task here whose groups it is over, or the first of several; the source's if there is none
    tasks: frozenset[str]  # every name that the task has
    metric: str  # the metric here, or the source's if there is none
    mean: str  # which mean over tags; empty for the mean over groups
    model: str  # the name here; else the repository of its weights, if a kind of model here reads it; else the source's
    models: frozenset[str]  # every name that the model has

    @property
    def task(self) -> str:
        """The source's name of the task."""
        return self.number.task

    @property
    def label(self) -> str:
        """The metric, and the method unless it is the raw model."""
        metric = f"{self.metric}{SLASH}{self.mean}" if self.mean else self.metric
        return metric if self.number.method == "raw" else f"{metric} ({self.number.column.name})"


def published_rows(registry: Registry, tables: Sequence[PublishedTable] | None = None) -> list[PublishedRow]:
    """Every number of some tables; by default of the shipped tables that others published."""
    known, rows = _names(registry), []
    for table in published_tables() if tables is None else tables:
        models = {name: _models(name, entry, known, registry) for name, entry in table.spec.models.items()}
        for number in table.numbers:
            entry, (metric, mean) = table.spec.entry(number.task), table.spec.metric(number.task, number.metric)
            base, names = number.task.partition(" (")[0], models[number.model]
            tasks = frozenset([number.task, base, *entry.parts, *filter(None, [entry.row])])
            here = entry.parts[0] if entry.parts else base
            rows.append(PublishedRow(table.name, number, here, tasks, metric, mean, names[0], frozenset(names)))
    return rows


def chance(row: PublishedRow, registry: Registry) -> float | None:
    """The expected value of random scores, or of random choices; None where it is unknown."""
    if row.here not in registry.task_files or row.metric not in registry.metrics:
        return None
    return chance_level(find_task(registry, row.here).spec, row.metric, row.number.column.filter, registry)


def chance_level(spec: TaskSpec, metric_name: str, filter_: str, registry: Registry) -> float | None:
    """The expected value of a metric for random scores on a task, or for random choices; None where it is unknown."""
    if filter_ == CHOICE:
        from ttmbench.scoring.choice_arrays import choice_chance  # with scipy

        shape = spec.shape if spec.kind == "groups" else None
        return None if shape is None else choice_chance(shape.images, shape.captions).get(metric_name)
    metric = registry.metrics[metric_name]
    return chance_of(metric_for(metric, spec.shape) if spec.kind == "groups" else metric, spec)


def of_task(every: Iterable[PublishedRow], name: str) -> list[PublishedRow]:
    """The numbers on a task, by any of its names, also those over its groups and others'."""
    return [row for row in every if name in row.tasks]


def of_model(every: Iterable[PublishedRow], name: str) -> list[PublishedRow]:
    """The numbers of a model, by any of its names."""
    return [row for row in every if name in row.models]


def of_method(every: Iterable[PublishedRow], name: str) -> list[PublishedRow]:
    """The numbers of a test-time method."""
    return [row for row in every if name in (row.number.method, row.number.column.filter)]


def most_measured(
    rows: Sequence[PublishedRow], subject: Callable[[PublishedRow], str], *, one_metric: bool
) -> list[PublishedRow]:
    """One metric of each subject: the subjects that most sources measured first, each number with its source.

    Args:
        rows: of a task, or of a model.
        subject: the model of a row, or its task.
        one_metric: the same metric for all, which most sources have of most subjects; else each subject's own.
    """
    together: dict[str, list[PublishedRow]] = {}
    for row in rows:
        together.setdefault(subject(row), []).append(row)
    shared = _usual(rows, subject) if one_metric else None
    chosen = []
    for name, same in together.items():
        metric = shared or _usual(same, subject)
        kept = sorted((row for row in same if row.label == metric), key=lambda row: row.number.measured.value)
        chosen.append((-len({row.number.source for row in kept}), name, kept))
    return [row for _, _, kept in sorted(chosen, key=lambda choice: choice[:2]) for row in kept]


def _usual(rows: Sequence[PublishedRow], subject: Callable[[PublishedRow], str]) -> str:
    counts = Counter(label for label, _, _ in {(row.label, row.number.source, subject(row)) for row in rows})
    order = {label: at for at, label in enumerate(("group_score", "text_score", "image_score"))}
    return min(counts, key=lambda label: (-counts[label], order.get(label, len(order)), label))


def _names(registry: Registry) -> dict[str, str]:
    """What is loaded by each name of the registry -> the name."""
    names: dict[str, str] = {}  # first the name itself, then its aliases
    for name, spec in registry.adapters.items():
        names.setdefault(_weights_of(name, {}, registry), spec.name)
    return names


def _models(published: str, entry: ModelEntry, names: Mapping[str, str], registry: Registry) -> list[str]:
    """The names of a published model, as `PublishedRow.model` orders them; a finetuned one has its published name."""
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


def in_brief(rows: Sequence[PublishedRow], name: str, registry: Registry, *, is_task: bool) -> Record:
    """How many numbers are published, and the ranges of those three models or tasks that most sources measured."""
    if not rows:
        return {"numbers": 0}
    subject = _model if is_task else _task
    exactly = [row for row in rows if row.task == name] if is_task else []
    cells = []
    for key, same in islice(groupby(most_measured(exactly or rows, subject, one_metric=is_task), subject), 3):
        found = list(same)
        ends = dict.fromkeys(percent(row.number.measured.value) for row in (found[0], found[-1]))
        where = {source(row) for row in found}
        by = f", {where.pop()}" if len(where) == 1 else ""
        cells.append(("-".join(ends), percent(chance(found[0], registry)), found[0].label, f"{key}{by}"))
    width = max(len(value) for value, *_ in cells)
    sources = len({row.number.source for row in rows})
    return {
        "numbers": len(rows),
        "about": f"{len(rows)} numbers of {sources} source{'s' * (sources > 1)}",
        "lines": [f"{value:>{width}}  chance {by_chance:>5}  {label}  {by}" for value, by_chance, label, by in cells],
        "all": f"ttmbench show {name} --published",
    }


def _model(row: PublishedRow) -> str:
    return row.model


def _task(row: PublishedRow) -> str:
    return row.task


def print_all(rows: Sequence[PublishedRow], registry: Registry, *, as_json: bool) -> None:
    """Every number as a table, by task, model and metric; or as JSON."""
    rows = sorted(rows, key=lambda row: (row.task, row.model, row.label, row.number.source, row.number.table))
    if as_json:
        echo(json.dumps([_as_json(row, registry) for row in rows], indent=2, ensure_ascii=False))
        return
    columns = [TableColumn("model", "key"), TableColumn("metric", "key")]
    columns += [TableColumn("percent", "number"), TableColumn("chance", "number"), TableColumn("source")]
    cells, above = list[list[str]](), ""
    for row in rows:
        task, measured = one_line(row.task, 200), row.number.measured
        numbers = (spread(measured.value, measured.std), percent(chance(row, registry)))
        cells += [] if task == above else [[task]]
        cells.append([row.model, row.label, *numbers, row.number.place])
        above = task
    print_table(columns, cells)


def source(row: PublishedRow) -> str:
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


_TIES = {
    "first": "the first of equal scores is chosen, where a tie is wrong here",
    "right": "a tie counts as correct, where it is wrong here",
    "by_name": "equal scores are ordered by the names of the documents, where a tie is wrong here",
}
_ABOUT = ("description", "reference", "license", "label_errors")
Parts = Mapping[str, TaskSpec | None]
"""The tasks here that a number is made of; None for one that is not here."""


def published_numbers(names: Sequence[str]) -> list[Number]:
    """The numbers that ``--published`` names; see `published_beside_runs`."""
    return list(published_beside_runs(names).numbers)


def published_beside_runs(names: Sequence[str]) -> Published:
    """The rows that ``--published`` names (built-in tables, ``all``, or your own CSV), marked as published.

    Rows of built-in tables have our names of tasks, metrics and registered models, the chance level, the number of
    groups, and a Wilson interval from value and number of groups. DataError naming file and line if a CSV is wrong.
    """
    if not names:
        return Published()
    registry = build_registry()
    read: AlreadyRead = {}

    @cache  # the numbers of a table are of a few tasks
    def spec_of(task: str) -> TaskSpec | None:
        return find_task(registry, task, read).spec if task in registry.task_files else None

    decimals_of: dict[Number, int] = {}  # with its printed digits; a table that is named twice counts once
    sources: dict[str, PublishedSource] = {}
    configs: dict[str, Mapping[str, object]] = {}
    parameters: dict[str, float] = {}
    notes: dict[tuple[str, str], str] = {}
    for name in names:
        tables = published_tables(name)
        specs = {table.name: table.spec for table in tables}
        for row in published_rows(registry, tables) if tables else ():
            spec = specs[row.table]
            parts = {part: spec_of(part) for part in spec.entry(row.task).parts or [row.here]}
            model, number = spec.models[row.number.model], _ours(row, spec, parts, registry)
            decimals_of[number] = row.number.decimals
            ties = {"ties": _TIES[spec.ties]} if spec.ties in _TIES else {}
            sources[number.file] = PublishedSource(spec.paper, spec.address, {**ties, **spec.rules})
            configs.setdefault(number.task, _config(row, spec, parts))
            if size := _parameters(model, row.number.model, registry):
                parameters[number.model] = size
            if model.note:
                notes[number.file, number.model] = model.note
        for typed in [] if tables else read_published(Path(name)):
            if typed.of_model is None:
                known = ", ".join(TRACKS)
                raise DataError(f"{typed.where}: states no track; the column 'track' must be one of {known}")
            decimals_of[_as_number(typed)] = typed.decimals
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

    def named(model: str) -> str:
        return names.get(model, model)

    rows = [replace(row, model=named(row.model)) if row.published_as else row for row in board.rows]
    parameters = {named(model): size for model, size in published.parameters.items()}
    notes = {(file, named(model)): note for (file, model), note in published.notes.items()}
    return replace(board, rows=rows), replace(published, parameters=parameters, notes=notes)


def _as_number(number: PublishedNumber) -> Number:
    """A number under the source's names, which are made fit for a cell."""
    return Number(
        task=one_line(number.task, CELL),
        metric=one_line(number.metric, CELL),
        method=number.column.filter,
        track=number.track,
        value=number.measured.value,
        seed_std=number.measured.std,
        model=one_line(number.model, CELL),
        file=number.place,
        published=True,
    )


def _ours(row: PublishedRow, spec: TableSpec, parts: Parts, registry: Registry) -> Number:
    """A published number under the names that task, metric and model have here."""
    entry, published = spec.entry(row.task), _as_number(row.number)
    task = entry.row or (entry.parts[0] if len(entry.parts) == 1 else row.task)
    metric, model = registry.metrics.get(row.metric), spec.models[row.number.model]
    # A repository names a model only where it has one scorer.
    is_known = model.finetuned is None and (row.model in registry.adapters or model.model in ("hf", "open_clip"))
    number = replace(
        published,
        task=f"{task}/{row.mean}" if row.mean else task,
        metric=row.metric,
        model=_name(row, model) if is_known else published.model,
        published_as=published.model if is_known else "",
        date=spec.published_on,
        higher_is_better=metric is None or metric.higher_is_better,
    )
    known = [part for part in parts.values() if part is not None]
    if number.track != NO_MODEL and known and metric is not None:
        number = replace(number, chance=chance_level(known[0], row.metric, number.method, registry))
    sizes = _sizes(row.number, entry, parts, spec)
    if row.mean or sizes is None:
        return number
    # Of an unweighted mean over tasks, the size that gives a proportion its variance.
    worth = sum(sizes) if len(sizes) == 1 or entry.pool_of else len(sizes) * harmonic_mean(sizes)
    interval = None if number.value is None else stats.proportion_interval(number.value, worth)
    return replace(number, interval=interval, extent=Extent(sum(sizes), sum(sizes)))


def _name(row: PublishedRow, model: ModelEntry) -> str:
    """The name of a model here; of one of open_clip without a name, its architecture and tag."""
    tag = " ".join(str(model.model_args[key]) for key in ("model", "pretrained") if key in model.model_args)
    return one_line(tag if row.model == row.number.model and model.model == "open_clip" else row.model, CELL)


def _sizes(number: PublishedNumber, entry: TaskEntry, parts: Parts, spec: TableSpec) -> list[int] | None:
    """How many groups each task has that a number is made of; None if that is unknown."""
    if number.of or entry.groups or not entry.parts:
        known = next((part.group.n_groups for part in parts.values() if part is not None and entry.why is None), None)
        size = number.of or entry.groups or known
        return None if size is None else [size]
    sizes = [spec.entry(name).groups or (None if part is None else part.group.n_groups) for name, part in parts.items()]
    return None if None in sizes else [size for size in sizes if size is not None]


def _config(row: PublishedRow, spec: TableSpec, parts: Parts) -> Mapping[str, object]:
    """What the page of a task states, under the keys of its task file; of a mean over tasks the shape of the first."""
    entry, known = spec.entry(row.task), next((part for part in parts.values() if part is not None), None)
    if known is None:
        return {"description": entry.why or ""}
    shape: dict[str, object] = {
        "kind": known.kind,
        "matching": known.matching,
        "metrics": known.metrics,
        "group": {"shape": known.group.shape},
    }
    if len(parts) > 1:
        how = "All groups of" if entry.pool_of else "The mean over"
        return shape | {"description": f"{how} {', '.join(parts)}."}
    about = {key: getattr(known, key) for key in _ABOUT}
    other = f"Not the same as {row.here}: {entry.why}." if entry.why else ""
    means = f"The mean over values of tags, {row.mean}, of this task: " if row.mean else ""
    return shape | about | {"description": other or means + about["description"]}


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
    same: dict[tuple[str | None, ...], list[tuple[Number, int]]] = {}
    for number, decimals in decimals_of.items():
        same.setdefault(_known_as(number), []).append((number, decimals))
    numbers = []
    for number, decimals in decimals_of.items():
        others = [
            f"{100 * (other.value or 0):.{min(digits, 2)}f} in {other.file}"
            for other, digits in same[_known_as(number)]
            if abs((other.value or 0) - (number.value or 0)) > (10.0**-decimals + 10.0**-digits) / 200 + 1e-9
        ]
        numbers.append(replace(number, disagrees="; ".join(others)) if others else number)
    return numbers


def _known_as(number: Number) -> tuple[str | None, ...]:
    return (number.model, number.task, number.metric, number.column, number.track)
