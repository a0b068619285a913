"""Published tables: a CSV of numbers as printed, and a YAML of what its models, tasks and methods are here.

How far a number may lie from a published one is `tolerance`: a number without seeds must be the printed one, up to one
group; a mean over seeds may differ as much as two means of the same procedure do.

`published_rows` has every number under our names; `published_beside_runs` adds chance and intervals for leaderboards.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import groupby
from operator import attrgetter
from pathlib import Path, PurePosixPath
from statistics import harmonic_mean
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ttmbench import stats
from ttmbench._util.console import echo, one_line
from ttmbench._util.file_io import read_yaml
from ttmbench._util.third_party import describe, near_name
from ttmbench.data.rows import csv_rows, read_text
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import AlreadyRead, TaskSpec, find_task
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins.method_functions import METHODS
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.report.board import Leaderboard, Published, PublishedSource
from ttmbench.report.terminal import TableColumn, number_text, percent, print_table
from ttmbench.results.document import mapping
from ttmbench.results.numbers import (
    BUILT_IN_METHODS,
    CHOICE,
    COLUMNS,
    NO_MODEL,
    RAW_COLUMN,
    SLASH,
    Extent,
    Number,
    Origin,
    PublishedTrack,
)
from ttmbench.results.reader import CELL
from ttmbench.scoring.choice_arrays import choice_chance
from ttmbench.types import MetricSpec

PUBLISHED = {column.published: column for column in COLUMNS if column.published is not None}
"""Name in the CSV of a published table -> column."""
NOISY = 0.95
"""Our own spread counts up to this quantile of what the paper's would lead to: a noisy run does not agree by noise."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rule(_Strict):
    """What counts as agreeing."""

    level: float = Field(0.99, gt=0, lt=1)  # of two means of one procedure, this share lies within the tolerance
    groups: float = Field(1, ge=0)  # how many groups may differ in any case
    points: float = Field(0, ge=0, lt=100)  # how many percent points may differ in any case, if that is more


def tolerance(published: Number, ours: Number, group: float, digit: float, rule: Rule) -> float:
    """The largest difference that still agrees, a fraction.

    At least ``rule.groups`` groups (``group``: what one is worth) or ``rule.points`` points, plus half of the last
    printed ``digit``. With a spread on a side, also the half-width of Welch's interval of the difference of two means,
    if that is more: a side without one gets the other's, and ours counts no further than the paper's could have led to.

    >>> exact = Number("t", "m", "none", 0.1025)
    >>> round(100 * tolerance(exact, exact, 1 / 400, 1e-4, Rule()), 3)
    0.255
    >>> four = [Number("t", "m", "ttm", value, seeds=(0, 1, 2, 3), seed_std=0.0064) for value in (0.725, 0.72)]
    >>> round(100 * tolerance(*four, 1 / 400, 1e-4, Rule()), 2)
    1.68
    """
    least = max(rule.groups * group, rule.points / 100) + digit / 2
    sides = (published, ours)
    (their_std, runs), (our_std, seeds) = (
        (side.seed_std if len(side.seeds) > 1 else None, len(side.seeds)) for side in sides
    )
    if their_std is None and our_std is None:
        return least
    from scipy.stats import f, t  # half a second, which numbers without a spread do without

    if their_std is None or our_std is None:  # a single run, and a mean of runs
        std, many = (their_std, runs) if our_std is None else (our_std, seeds)
        assert std is not None, "one side has a spread"
        squared, freedom = std**2 + std**2 / many, float(many - 1)
    else:
        most = their_std * math.sqrt(f.ppf(NOISY, seeds - 1, runs - 1))
        theirs, mine = their_std**2 / runs, min(our_std, most) ** 2 / seeds
        squared = theirs + mine
        freedom = squared**2 / (theirs**2 / (runs - 1) + mine**2 / (seeds - 1)) if squared else 1.0
    half = float(t.ppf((1 + rule.level) / 2, freedom)) * math.sqrt(squared)
    return max(least, half + digit / 2)


def agrees(published: float, ours: float, allowed: float, of: int | None = None) -> bool:
    """Whether two numbers differ by no more than is allowed, with room for binary rounding.

    With ``of``, both are compared as numbers of correct groups (or queries) of that many.

    >>> agrees(36 / 400, 0.08, 0.01, of=400)
    True
    """
    if of is None:
        return abs(ours - published) <= allowed + 1e-9
    return abs(round(ours * of) - round(published * of)) <= allowed * of + 1e-6


SHIPPED = files("ttmbench.reproduce.published")
TRACKS: tuple[PublishedTrack, ...] = get_args(PublishedTrack)
_COLUMNS = ("source", "table", "task", "model", "method", "metric")
_OF_COUNTS = 6  # digits after the point of a percentage that is computed from a count
_ARXIV = re.compile(r"arXiv:([0-9]{4}\.[0-9]{5})")


@dataclass(frozen=True)
class PublishedNumber(Number):
    """A line of a CSV, with the paper's names; ``origin.file`` is the paper and its table, ``seeds`` are its runs."""

    where: str = ""  # file and line, for messages
    decimals: int = 2  # digits after the point, as typed
    of: int | None = None  # how many groups or queries a number of correct ones is of; None for a percentage

    def plain(self) -> Number:
        """The number alone, with names that are fit for a cell."""
        known = {field.name: getattr(self, field.name) for field in fields(Number)}
        cells = {name: one_line(known[name], CELL) for name in ("task", "metric", "model")}
        return Number(**{**known, **cells, "seeds": ()})


def read_published(path: Traversable, spec: TableSpec | None = None) -> Iterator[PublishedNumber]:
    """The numbers of a CSV in UTF-8: names, ``percent`` or ``correct`` and ``of``, and, if known, ``std_percent``.

    Without a table a column ``track`` states the track of each model. DataError naming file and line if it cannot be
    read, lacks a column, a number is none, or the table does not explain it.
    """
    lines = list(csv_rows(read_text(path), str(path)))
    needed = (*_COLUMNS, "percent", *(() if spec else ("track",)))
    missing = [name for name in needed if not lines or name not in lines[0].cells]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; it needs {', '.join(needed)}")
    for number, row in enumerate(lines, start=2):
        where, cells = f"{path}: line {number}", {str(key): str(cell) for key, cell in row.cells.items()}
        of, std = _count(where, cells), cells.get("std_percent")
        method, track = _standing(where, cells["model"], cells["method"], cells.get("track"), spec)
        yield PublishedNumber(
            task=cells["task"],
            metric=cells["metric"],
            method=method,
            model=cells["model"],
            track=track,
            value=int(cells["correct"]) / of if of else _fraction(where, cells["percent"]),
            seeds=tuple(range(spec.runs if spec and std else 1)),
            seed_std=_fraction(where, std) if std else None,
            origin=Origin(one_line(f"{cells['source']}, {cells['table']}", CELL), published=True),
            where=where,
            decimals=_OF_COUNTS if of else len(cells["percent"].partition(".")[2]),
            of=of,
        )


def _standing(
    where: str, model: str, method: str, stated: str | None, spec: TableSpec | None
) -> tuple[str, str | None]:
    """The method in results documents, and the track: the method's, unless the model was finetuned; or DataError."""
    column = PUBLISHED.get(method)
    of_method = next((spec for spec in METHODS if spec.name == method and method not in BUILT_IN_METHODS), None)
    if spec is not None:
        if column is None and of_method is None:
            known = f"{', '.join(PUBLISHED)}, and test-time methods (`ttmbench ls methods`)"
            raise DataError(f"{where}: unknown method '{method}'; known: {known}")
        if model not in spec.models:
            raise DataError(f"{where}: model '{model}' is not in the table's 'models'")
        stated = spec.models[model].track
    elif stated not in TRACKS:
        raise DataError(f"{where}: the column 'track' must be one of {', '.join(TRACKS)}, got {stated!r:.40}")
    name, track = (column.method, column.track) if column else (one_line(method, CELL), stated)
    track = track if of_method is None else of_method.track
    if stated == "zero_shot" or (stated == "supervised" and track == "oracle"):
        return name, track
    if stated == "supervised":
        return name, stated
    if column is not RAW_COLUMN:
        raise DataError(
            f"{where}: model '{model}' has the track {stated}, whose numbers have the method 'raw', got '{method}'"
        )
    return CHOICE if stated == "forced_choice" else name, stated


def _count(where: str, cells: Mapping[str, str]) -> int | None:
    """The number of groups or queries of a line that states how many of them are correct; None for a percentage."""
    correct, of = cells.get("correct", ""), cells.get("of", "")
    if cells["percent"] or not (correct or of):
        return None
    if not (re.fullmatch("[0-9]{1,9}", correct) and re.fullmatch("[0-9]{1,9}", of) and int(correct) <= int(of) > 0):
        raise DataError(
            f"{where}: correct and of must be whole numbers, correct at most of, got {correct!r:.40} and {of!r:.40}"
        )
    return int(of)


def _fraction(where: str, text: str) -> float:
    """A percentage of a table as a fraction; digits, a point and nothing else."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{0,20})?", text) or float(text) > 100:
        raise DataError(f"{where}: percent and std_percent must be from 0 to 100, written like 71.5, got {text!r:.40}")
    return float(text) / 100


class FinetuningEntry(_Strict):
    """The finetuning that makes a paper's model of a model here."""

    tasks: list[str] = Field(min_length=1)  # whose labelled groups it is finetuned on
    groups: int | None = Field(None, ge=1)  # how many these are
    preset: str | None = None  # of ``ttmbench finetune``
    args: dict[str, Any] = {}  # hyperparameters that win over it


class ModelEntry(_Strict):
    """What a paper's model is here."""

    # Of raw numbers: ``supervised`` if it was finetuned on, or fitted to, labelled groups or captions; ``no_model`` for
    # people and random guessing. Of a ``zero_shot`` model the method says the rest.
    track: PublishedTrack
    model: str | None = None  # a registered model
    model_args: dict[str, Any] = {}
    names: list[str] = []  # of files of stored scores or answers, without their endings, beside the name in the paper
    revision: str | None = None  # the commit of the model that the source measured
    paid: bool = False  # it is behind a server that takes money, so it is run only if it is named
    why: str | None = None  # why no model here is this one
    finetuned: FinetuningEntry | None = None  # the finetuning that ``model`` needs first
    note: str | None = None  # what a reader of the comparison should know

    @model_validator(mode="after")
    def _runs_or_says_why(self) -> ModelEntry:
        if (self.model is None) == (self.why is None):
            raise ValueError("a model needs either 'model', its registered name, or 'why' there is none")
        if self.finetuned is not None and (self.model is None or self.track != "supervised"):
            raise ValueError(f"a model that is 'finetuned' needs 'model' and the track supervised, got {self.track}")
        if self.track == "no_model" and self.model is not None:
            raise ValueError(f"the track no_model is of people and random guessing, and 'model' is {self.model}")
        return self


class TaskEntry(_Strict):
    """What has to be equal for a task's numbers to be comparable."""

    groups: int | None = Field(None, ge=1)  # how many the paper has
    version: int | None = None  # of the task here that has the paper's data
    data: str | None = None  # fingerprint of the data, where it is known
    mean_of: list[str] = []  # the number is the unweighted mean over these tasks
    pool_of: list[str] = []  # the number is over the groups of these tasks together
    row: str | None = None  # the dataset in whose rows of leaderboards it stands, where it is made of several tasks
    metrics: dict[str, str] = {}  # as the table's own; ``metric/mean`` is the mean over values of tags of that name
    why: str | None = None  # why no task here has its groups

    @model_validator(mode="after")
    def _one_mean(self) -> TaskEntry:
        if self.mean_of and self.pool_of:
            raise ValueError("a number is either a 'mean_of' tasks, or 'pool_of' their groups")
        if self.why is not None and self.model_dump(exclude_defaults=True).keys() != {"why"}:
            raise ValueError("a task with 'why' must have no other keys")
        return self

    @property
    def parts(self) -> list[str]:
        """The tasks whose numbers it is made of; empty if it is a task itself."""
        return self.mean_of or self.pool_of


class TableSpec(_Strict):
    """A table's YAML (docs/table-file.md).

    With ``include: FILE``, what FILE of the same folder says counts where the table says nothing: of its models those
    that the table has numbers of.
    """

    paper: str  # title
    source: str  # where it was published
    url: str | None = Field(None, pattern="^https://[^\\s\"'<>]+$")  # where ``source`` is no arXiv id or repository
    date: str | None = Field(None, pattern="^[0-9]{4}(-[0-9]{2}){0,2}$")  # where ``source`` does not say it
    where: str  # which table of it
    shows: str  # what its columns are
    numbers: str  # the CSV, a file of the same folder
    decimals: int = Field(2, ge=0, le=6)  # digits after the point, as printed in percent
    runs: int = Field(1, ge=1)  # behind each standard deviation
    own: bool = False  # the numbers are of ttmbench itself, so they are not published ones
    ties: Literal["strict", "first", "right", "by_name"] = "strict"  # which of equal scores counts as the largest
    rules: dict[str, str] = {}  # what else the source does, a sentence by subject, for a reader of the comparison
    tolerance: Rule = Rule()
    settings: dict[str, Any] = {}  # of runs that adapt the model
    metrics: dict[str, str] = {}  # paper's metric -> the one here, where the names differ
    tasks: dict[str, TaskEntry] = {}
    models: dict[str, ModelEntry]

    @property
    def address(self) -> str | None:
        """Where the source can be read."""
        if self.url is None and (arxiv := _ARXIV.match(self.source)):
            return f"https://arxiv.org/abs/{arxiv[1]}"
        return f"https://{self.source}" if self.url is None and self.source.startswith("github.com/") else self.url

    @property
    def published_on(self) -> str | None:
        """Year, and month and day as far as they are known."""
        arxiv = _ARXIV.match(self.source)
        return self.date or (f"20{arxiv[1][:2]}-{arxiv[1][2:4]}" if arxiv else None)

    def entry(self, task: str) -> TaskEntry:
        """What a paper's task is here; one of the same name where the table does not say."""
        return self.tasks.get(task, TaskEntry())

    def metric(self, task: str, metric: str) -> tuple[str, str]:
        """What a paper's metric of a task is here: its name, and which mean over tags; empty for all groups."""
        name, _, mean = {**self.metrics, **self.entry(task).metrics}.get(metric, metric).partition("/")
        return name, mean


@dataclass(frozen=True)
class PublishedTable:
    """A table with its numbers."""

    name: str
    spec: TableSpec
    numbers: list[PublishedNumber]
    csv: Traversable


def shipped_tables() -> dict[str, Traversable]:
    """The tables of this package: name -> YAML."""
    paths = sorted(SHIPPED.iterdir(), key=lambda path: [part.zfill(3) for part in re.split(r"(\d+)", path.name)])
    return {path.name[:-5]: path for path in paths if path.name.endswith(".yaml") and not path.name.startswith("_")}


def load_table(name: str) -> PublishedTable:
    """A table by its name, or by the path of its YAML.

    UsageError if there is no such table, or a file of it is wrong; file and key or line are named.
    """
    if name in shipped_tables():
        return _shipped(name)
    if name.endswith((".yaml", ".yml")):
        return _load(Path(name).stem, Path(name), Path(name).parent)
    hint = near_name(name, shipped_tables(), "", cutoff=0.5)
    raise UsageError(f"unknown table '{name}'{hint}; `ttmbench reproduce` lists the tables, or give a .yaml file")


@cache
def _shipped(name: str) -> PublishedTable:
    return _load(name, shipped_tables()[name], SHIPPED)


def published_tables(name: str = "all") -> list[PublishedTable]:
    """The tables that ``--published`` names: a shipped one, or ``all`` of those that papers published; else none."""
    if name in shipped_tables():
        return [load_table(name)]
    tables = map(load_table, shipped_tables()) if name == "all" else ()
    return [table for table in tables if not table.spec.own]


def _load(name: str, path: Traversable, folder: Traversable) -> PublishedTable:
    content = dict(mapping(read_yaml(path)))
    shared = content.pop("include", None)
    if shared is not None:  # the keys of a table win; mappings are merged key by key
        common = dict(mapping(read_yaml(_beside(path, folder, "include", shared))))
        pairs = ((key, common.get(key), value) for key, value in content.items())
        content = common | {key: {**its, **own} if isinstance(its, dict) else own for key, its, own in pairs}
    try:
        spec = TableSpec.model_validate(content)
        source = _beside(path, folder, "numbers", spec.numbers)
        numbers = list(read_published(source, spec))
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, TableSpec)}") from None
    except DataError as error:
        raise UsageError(str(error)) from None
    if shared is not None:
        spec = spec.model_copy(update={"models": {number.model: spec.models[number.model] for number in numbers}})
    return PublishedTable(name, spec, numbers, source)


def _beside(path: Traversable, folder: Traversable, key: str, name: object) -> Traversable:
    """A file that a table names, which lies in its folder."""
    if not isinstance(name, str) or PurePosixPath(name).name != name or name in ("", ".", ".."):
        raise UsageError(f"{path}: '{key}' is '{name}', which is not a file of the same folder")
    return folder / name


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


def published_rows(registry: Registry, tables: Iterable[PublishedTable] | None = None) -> list[PublishedRow]:
    """Every number of some tables; by default of the shipped tables that others published."""
    names, read, rows = dict[str, str](), AlreadyRead(), list[PublishedRow]()
    for name, adapter in registry.adapters.items():  # first the name itself, then its aliases
        names.setdefault(_weights_of(name, {}, registry), adapter.name)

    @cache  # the numbers of a table are of a few tasks
    def spec_of(task: str) -> TaskSpec | None:
        return find_task(registry, task, read).spec if task in registry.task_files else None

    for table in published_tables() if tables is None else tables:
        models = {name: _name_here(name, entry, names, registry) for name, entry in table.spec.models.items()}
        for printed in table.numbers:
            parts = {
                part: spec_of(part)
                for part in table.spec.entry(printed.task).parts or [printed.task.partition(" (")[0]]
            }
            number = _number(printed, table, parts, models[printed.model], registry)
            rows.append(PublishedRow(table, printed, number, parts))
    return rows


def named(rows: Sequence[PublishedRow], name: str) -> list[PublishedRow]:
    """The numbers of a task, also those over its groups and others'; else of a model; else of a test-time method."""
    models = {row.number.model for row in rows if name in (row.number.model, row.printed.model)}
    of = PUBLISHED[name].name if name in PUBLISHED else ""
    return (
        [row for row in rows if name in (row.printed.task, row.number.own_task, *row.parts)]
        or [row for row in rows if row.number.model in models]
        or [row for row in rows if name == row.number.method or row.number.column == of]
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


def _name_here(published: str, entry: ModelEntry, names: Mapping[str, str], registry: Registry) -> str | None:
    """The name of a published model here, else of its repository or architecture and tag; None if it has neither.

    ``names`` has what is loaded by each name of the registry. A repository names a model only where it has one scorer.
    """
    if entry.model is None or entry.finetuned is not None:
        return None
    repository, kind = str(model_identity(entry.model, entry.model_args, registry)[1].get("pretrained")), entry.model
    if name := names.get(_weights_of(entry.model, entry.model_args, registry)):
        return name
    if kind == "open_clip" and "/" not in repository:
        return " ".join(str(entry.model_args[key]) for key in ("model", "pretrained") if key in entry.model_args)
    name = repository if "/" in repository else published
    return name if kind in ("hf", "open_clip") or name in registry.adapters else None


def _weights_of(model: str, arguments: dict[str, object], registry: Registry) -> str:
    """What loads a model and its arguments, whichever commit of the repository is read."""
    return json.dumps(model_identity(model, arguments, registry, with_commit=False), default=str, sort_keys=True)


def model_identity(
    name: str, arguments: Mapping[str, object], registry: Registry, *, with_commit: bool = True
) -> tuple[str, dict[str, object]]:
    """What loads a model, and with which arguments: the same for a name, an alias, and the weights' own name."""
    given = {key: value for key, value in arguments.items() if key not in _HOW_ASKED}
    target = name
    if name in registry.adapters:
        spec = registry.adapters[name]
        target, by_hand = spec.target, spec.card is not None and spec.card.page
        if by_hand:  # weights that are downloaded: any file, under this name alone
            target = f"{spec.target} {spec.name}"
            given.pop("pretrained", None)
        given = {**spec.model_args, **given}
    return target, {key: value for key, value in given.items() if with_commit or key != "revision"}


_TIES = {
    "first": "the first of equal scores is chosen, where a tie is wrong here",
    "right": "a tie counts as correct, where it is wrong here",
    "by_name": "equal scores are ordered by the names of the documents, where a tie is wrong here",
}


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
            decimals_of[printed.plain()] = printed.decimals
    return Published(_with_disagreements(decimals_of), sources, configs, parameters, notes)


def under_names_of_runs(board: Leaderboard, published: Published) -> tuple[Leaderboard, Published]:
    """A leaderboard and its published numbers where a repository or tag has the name that a run of it has."""
    names: dict[str, str] = {}
    for run in board.runs:
        config = run.document.config
        arguments = mapping(config.get("model_args"))
        keys = {"hf": ("pretrained",), "open_clip": ("model", "pretrained")}.get(str(config.get("model")), ())
        is_plain = (
            bool(keys) and {*keys} <= arguments.keys() <= {*keys, "revision"} and not run.document.model_info.finetuned
        )
        if is_plain and run.ranked and not run.ranked[0].setting:
            names[" ".join(str(arguments[key]) for key in keys)] = run.ranked[0].model

    def here(model: str) -> str:
        return names.get(model, model)

    rows = [replace(row, model=here(row.model)) if row.origin.published_as else row for row in board.rows]
    parameters = {here(model): size for model, size in published.parameters.items()}
    notes = {(file, here(model)): note for (file, model), note in published.notes.items()}
    return replace(board, rows=rows), replace(published, parameters=parameters, notes=notes)


def _number(
    printed: PublishedNumber,
    table: PublishedTable,
    parts: Mapping[str, TaskSpec | None],
    model_here: str | None,
    registry: Registry,
) -> Number:
    """A published number under the names that task, metric and model have here."""
    number, entry = printed.plain(), table.spec.entry(printed.task)
    task = entry.row or (entry.parts[0] if len(entry.parts) == 1 else printed.task)
    metric_name, mean = table.spec.metric(printed.task, printed.metric)
    metric = registry.metrics.get(metric_name)
    number = replace(
        number,
        task=f"{task}/{mean}" if mean else task,
        metric=metric_name,
        model=one_line(model_here, CELL) if model_here else number.model,
        origin=replace(number.origin, published_as=number.model if model_here else "", date=table.spec.published_on),
        higher_is_better=metric is None or metric.higher_is_better,
    )
    here = next((part for part in parts.values() if part is not None), None)
    if number.track != NO_MODEL and here is not None and metric is not None:
        number = replace(number, chance=_chance(here, metric, number.method))
    if printed.of or entry.groups or not entry.parts:
        sizes = [printed.of or entry.groups or (here.group.n_groups if here and entry.why is None else None)]
    else:
        pairs = ((table.spec.entry(name).groups, part) for name, part in parts.items())
        sizes = [stated or (part.group.n_groups if part else None) for stated, part in pairs]
    known = [size for size in sizes if size is not None]
    if mean or len(known) < len(sizes):
        return number
    # Of an unweighted mean over tasks, the size that gives a proportion its variance.
    worth = sum(known) if len(known) == 1 or entry.pool_of else len(known) * harmonic_mean(known)
    interval = stats.proportion_interval(float(printed.value or 0), worth)
    return replace(number, interval=interval, extent=Extent(sum(known), sum(known)))


def _chance(spec: TaskSpec, metric: MetricSpec, method: str) -> float | None:
    """The expected value of a metric for random scores on a task, or for random choices; None where it is unknown."""
    has_groups = spec.kind == "groups"
    if method == CHOICE:
        return choice_chance(spec.shape.images, spec.shape.captions).get(metric.name) if has_groups else None
    return chance_of(metric_for(metric, spec.shape) if has_groups else metric, spec)


def _config(row: PublishedRow) -> Mapping[str, object]:
    """What the page of a task states, under the keys of its task file; of a mean over tasks the shape of the first."""
    entry, known = row.table.spec.entry(row.printed.task), next(filter(None, row.parts.values()), None)
    if known is None:
        return {"description": entry.why or ""}
    about: dict[str, object] = {key: getattr(known, key) for key in ("kind", "matching", "metrics", "source")}
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
    arguments = model_identity(model.model or "", model.model_args, registry)[1]
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
    known_as = attrgetter("model", "task", "metric", "column", "track")
    same: dict[tuple[object, ...], list[tuple[Number, int]]] = {}
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
