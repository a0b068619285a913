"""Published tables: a CSV of numbers as printed, and a YAML of what its models, tasks and methods are here.

How far a number may lie from a published one (`tolerance`): one that no seed moves has to be what was printed, up to
one group; one over seeds as near as two means of the same procedure lie to each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ttmbench._util.console import one_line
from ttmbench._util.third_party_errors import describe
from ttmbench.data.rows import csv_rows, read_text
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins.methods import METHODS
from ttmbench.results.numbers import BUILT_IN_FILTERS, CHOICE_COLUMN, PUBLISHED, RAW_COLUMN, Column, PublishedTrack

NOISY = 0.95
"""Our own spread counts up to this quantile of what the paper's would lead to: a noisy run does not agree by noise."""


@dataclass(frozen=True)
class Measured:
    """A number with its spread."""

    value: float  # fraction
    std: float | None  # sample standard deviation over runs or seeds, a fraction; None if unknown
    runs: int  # how many there are behind ``value``


class Rule(BaseModel):
    """What counts as agreeing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: float = Field(0.99, gt=0, lt=1)  # of two means of one procedure, this share lies within the tolerance
    groups: float = Field(1, ge=0)  # how many groups may differ in any case
    points: float = Field(0, ge=0, lt=100)  # how many percent points may differ in any case, if that is more


def tolerance(published: Measured, ours: Measured, group: float, digit: float, rule: Rule) -> float:
    """The largest difference that still agrees.

    At least ``rule.groups`` groups or ``rule.points`` points, plus half of the last printed digit. With a spread on a
    side, also the half-width of Welch's interval of the difference of two means, if that is more. A side that states no
    spread, or is a single run, gets that of the other side. Our own spread counts no further than the paper's could
    have led to by chance.

    Args:
        published: the paper's number.
        ours: the one to compare.
        group: what one group is worth, a fraction.
        digit: one unit of the last printed digit, a fraction.
        rule: level and groups.

    Returns:
        A fraction.

    >>> exact = tolerance(Measured(0.1025, None, 1), Measured(0.1025, None, 1), 1 / 400, 1e-4, Rule())
    >>> round(100 * exact, 3)
    0.255
    >>> four = tolerance(Measured(0.725, 0.0064, 4), Measured(0.72, 0.0064, 4), 1 / 400, 1e-4, Rule())
    >>> round(100 * four, 2)
    1.68
    """
    least = max(rule.groups * group, rule.points / 100) + digit / 2
    their_std, our_std = (side.std if side.runs > 1 else None for side in (published, ours))
    from scipy import stats  # half a second, which pages without a table do without

    if their_std is None and our_std is None:
        return least
    if their_std is None or our_std is None:  # a single run, and a mean of runs
        std, runs = (their_std, published.runs) if our_std is None else (our_std, ours.runs)
        assert std is not None, "one side has a spread"
        squared, freedom = std**2 + std**2 / runs, float(runs - 1)
    else:
        most = their_std * math.sqrt(stats.f.ppf(NOISY, ours.runs - 1, published.runs - 1))
        theirs, mine = their_std**2 / published.runs, min(our_std, most) ** 2 / ours.runs
        squared = theirs + mine
        freedom = squared**2 / (theirs**2 / (published.runs - 1) + mine**2 / (ours.runs - 1)) if squared else 1.0
    half = float(stats.t.ppf((1 + rule.level) / 2, freedom)) * math.sqrt(squared)
    return max(least, half + digit / 2)


def agrees(published: Measured, ours: Measured, allowed: float, of: int | None = None) -> bool:
    """Whether two numbers differ by no more than is allowed, with room for binary rounding.

    With ``of``, both are compared as numbers of correct groups (or queries) of that many.

    >>> agrees(Measured(36 / 400, None, 1), Measured(0.08, None, 1), 0.01, of=400)
    True
    """
    if of is None:
        return abs(ours.value - published.value) <= allowed + 1e-9
    return abs(correct(ours.value, of) - correct(published.value, of)) <= allowed * of + 1e-6


def correct(value: float, of: int) -> int:
    """The number of correct groups behind a rate.

    >>> correct(0.09000000357627869, 400)  # a mean in float32
    36
    """
    return round(value * of)


SHIPPED = files("ttmbench.reproduce.published")
TRACKS: tuple[PublishedTrack, ...] = get_args(PublishedTrack)
CELL = 200  # characters of a name that is shown
_COLUMNS = ("source", "table", "task", "model", "method", "metric")
_OF_COUNTS = 6  # digits after the point of a percentage that is computed from a count
_ARXIV = re.compile(r"arXiv:([0-9]{4}\.[0-9]{5})")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is libyaml


@dataclass(frozen=True)
class PublishedNumber:
    """A number as printed: a line of the CSV, with the paper's names."""

    where: str  # file and line, for messages
    source: str
    table: str
    task: str
    model: str
    method: str  # ``raw``, ``simple_match``, ``ttm``, ..., a built-in test-time method, or the paper's own word
    metric: str
    measured: Measured
    decimals: int  # digits after the point, as typed
    of_model: PublishedTrack | None  # track of the model, where the line states it; else the table's entry does
    of: int | None = None  # how many groups or queries a number of correct ones is of; None for a percentage

    @property
    def place(self) -> str:
        """The paper and its table, fit for a cell."""
        return one_line(f"{self.source}, {self.table}", CELL)

    @property
    def column(self) -> Column:
        """The column of a run's numbers that it is compared with; one of its own for a method that runs do not have."""
        column = column_of(self.method) or Column(one_line(self.method, CELL), one_line(self.method, CELL), None)
        return CHOICE_COLUMN if column is RAW_COLUMN and self.of_model == "forced_choice" else column

    @property
    def track(self) -> str | None:
        """Where it ranks, by its method and the track of its model: of one that was not finetuned, by the method.

        Raises:
            DataError: models of this track have raw numbers only.
        """
        column, track = column_of(self.method), self.of_model
        if track == "zero_shot":
            return track if column is None else column.track
        if track == "supervised":
            return "oracle" if column is not None and column.track == "oracle" else track
        if column is not RAW_COLUMN:
            raise DataError(
                f"{self.where}: model '{self.model}' has the track {track}, whose numbers have the method 'raw', got "
                f"'{self.method}'"
            )
        return track


def column_of(method: str) -> Column | None:
    """The column of a method as published tables name it; None for a method that runs do not have.

    >>> column_of("raw").track, column_of("tent").filter, column_of("sinkhorn").track, column_of("ours")
    ('zero_shot', 'tent', 'matching', None)
    """
    spec = next((spec for spec in METHODS if spec.name == method and method not in BUILT_IN_FILTERS), None)
    return PUBLISHED.get(method) if spec is None else Column(method, method, spec.track)


def read_published(path: Traversable, runs: int = 1) -> Iterator[PublishedNumber]:
    """The numbers of a CSV in UTF-8: names, ``percent`` or ``correct`` and ``of``, and, if known, ``std_percent``.

    A column ``track`` states the track where no table names it.
    ``runs`` says how many are behind a number that states a spread. DataError naming file and line if it cannot be
    read, lacks a column, or a number is none.
    """
    lines = list(csv_rows(read_text(path, str(path)), str(path)))
    missing = [name for name in (*_COLUMNS, "percent") if not lines or name not in lines[0].cells]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; it needs {', '.join(_COLUMNS)}, percent")
    for number, row in enumerate(lines, start=2):
        where, cells = f"{path}: line {number}", {str(key): str(cell) for key, cell in row.cells.items()}
        track = next((track for track in TRACKS if track == cells.get("track")), None)
        if cells.get("track") and track is None:
            raise DataError(f"{where}: unknown track '{cells['track']}'; known: {', '.join(TRACKS)}")
        of, std = _count(where, cells), cells.get("std_percent")
        value = int(cells["correct"]) / of if of else _fraction(where, cells["percent"])
        yield PublishedNumber(
            where,
            **{name: cells[name] for name in _COLUMNS},
            measured=Measured(value, _fraction(where, std) if std else None, runs if std else 1),
            decimals=_OF_COUNTS if of else len(cells["percent"].partition(".")[2]),
            of_model=track,
            of=of,
        )


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


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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

    @property
    def digit(self) -> float:
        """One unit of the last printed digit, a fraction."""
        return 10.0**-self.spec.decimals / 100


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
    near = get_close_matches(name, list(shipped_tables()), n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
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
    content = _mapping(path)
    shared = content.pop("include", None)
    if shared is not None:
        content = _merged(_mapping(_beside(path, folder, "include", shared)), content)
    try:
        spec = TableSpec(**content)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, TableSpec)}") from None
    source = _beside(path, folder, "numbers", spec.numbers)
    try:
        numbers = [_known(number, spec) for number in read_published(source, spec.runs)]
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


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an included file and of a table, which wins; mappings are merged key by key."""
    both = {
        key: {**shared[key], **value} if isinstance(value, dict) and isinstance(shared.get(key), dict) else value
        for key, value in own.items()
    }
    return {**shared, **both}


def _known(number: PublishedNumber, spec: TableSpec) -> PublishedNumber:
    """A number of a table, with the track of its model; DataError for one that the table does not explain."""
    if column_of(number.method) is None:
        known = f"{', '.join(PUBLISHED)}, and test-time methods (`ttmbench ls methods`)"
        raise DataError(f"{number.where}: unknown method '{number.method}'; known: {known}")
    if number.model not in spec.models:
        raise DataError(f"{number.where}: model '{number.model}' is not in the table's 'models'")
    number = replace(number, of_model=spec.models[number.model].track)
    _ = number.track  # which refuses methods that models of the track do not have
    return number


def _mapping(path: Traversable) -> dict[str, Any]:
    """The keys of a YAML file."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path}: a table is a mapping of keys, got {type(content).__name__}")
    return content
