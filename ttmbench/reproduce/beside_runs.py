"""Published numbers as leaderboards and reports show them beside runs: under our names, with chance and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import harmonic_mean

from ttmbench import stats
from ttmbench._util.console import one_line
from ttmbench.data.catalog import AlreadyRead, find_task
from ttmbench.data.row_files import csv_rows
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.report.leaderboard import Leaderboard, Published, PublishedSource
from ttmbench.reproduce.lookup import PublishedRow, chance_level, model_identity, published_rows
from ttmbench.reproduce.tables import (
    CELL,
    SHIPPED,
    TRACKS,
    ModelEntry,
    PublishedNumber,
    TableSpec,
    TaskEntry,
    published_tables,
    read_published,
)
from ttmbench.results.document import mapping
from ttmbench.results.labels import NO_MODEL, Extent
from ttmbench.results.numbers import Number

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
        if is_plain and run.numbers and not run.numbers[0].setting:
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
        filter=number.column.filter,
        method=number.column.name,
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
        higher_is_better=metric is None or metric[0].higher_is_better,
    )
    known = [part for part in parts.values() if part is not None]
    if number.track != NO_MODEL and known and metric is not None:
        number = replace(number, chance=chance_level(known[0], row.metric, number.filter, registry))
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
    return (number.model, number.task, number.metric, number.method, number.track)
