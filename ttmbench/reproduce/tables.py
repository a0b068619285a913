"""Published tables: a CSV of numbers as printed, and a YAML of what its models, tasks and methods are here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ttmbench._util.third_party_errors import describe
from ttmbench.errors import DataError, UsageError
from ttmbench.reproduce.agreement import Rule
from ttmbench.reproduce.published_numbers import PublishedNumber, column_of, read_published
from ttmbench.results.labels import PUBLISHED, PublishedTrack

ENDINGS = (".yaml", ".yml")
_ARXIV = re.compile(r"arXiv:([0-9]{4}\.[0-9]{5})")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is libyaml


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FinetuningEntry(_Strict):
    """The finetuning that makes a paper's model of a model here.

    Attributes:
        tasks: whose labelled groups it is finetuned on.
        groups: how many these are.
        preset: of ``ttmbench finetune``; None for its defaults.
        args: hyperparameters that win over it.
    """

    tasks: list[str] = Field(min_length=1)
    groups: int | None = Field(None, ge=1)
    preset: str | None = None
    args: dict[str, Any] = {}


class ModelEntry(_Strict):
    """What a paper's model is here.

    Attributes:
        track: of its raw numbers: ``zero_shot``; ``forced_choice`` if it picked options instead of scoring;
            ``supervised`` if it was finetuned on labelled groups or captions, or fitted to labels otherwise;
            ``no_model`` for people and random guessing. Of a ``zero_shot`` model the method says the rest.
        model: a registered model; None if there is none.
        model_args: its arguments.
        names: what ``ttmbench score`` calls it beside its name in the paper: names of files of stored scores or
            answers, without their endings.
        revision: the commit of the model that the source measured.
        paid: it is behind a server that takes money, so it is run only if it is named.
        why: why no model here is this one.
        finetuned: the finetuning that ``model`` needs first.
        note: what a reader of the comparison should know.
    """

    track: PublishedTrack
    model: str | None = None
    model_args: dict[str, Any] = {}
    names: list[str] = []
    revision: str | None = None
    paid: bool = False
    why: str | None = None
    finetuned: FinetuningEntry | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _runs_or_says_why(self) -> ModelEntry:
        if (self.model is None) == (self.why is None):
            raise ValueError("a model needs either 'model', its registered name, or 'why' there is none")
        if self.finetuned is not None and self.model is None:
            raise ValueError("'finetuned' says what is done to 'model', which is not named")
        if self.finetuned is not None and self.track != "supervised":
            raise ValueError(f"a model that is 'finetuned' has the track supervised, got {self.track}")
        if self.track == "no_model" and self.model is not None:
            raise ValueError(f"the track no_model is of people and random guessing, and 'model' is {self.model}")
        return self


class TaskEntry(_Strict):
    """What has to be equal for a task's numbers to be comparable.

    Attributes:
        groups: how many groups the paper has.
        version: of the task here that has the paper's data.
        data: fingerprint of the data, where it is known.
        mean_of: the number is the unweighted mean over these tasks.
        pool_of: the number is over the groups of these tasks together: each counts as often as it has groups.
        row: the dataset in whose rows of reports and leaderboards it stands, where it is made of several tasks.
        metrics: the paper's metric -> the one here, where the table's own ``metrics`` do not say it; ``metric/mean`` is
            the task's mean over values of tags of that name.
        why: why no task here has its groups.
    """

    groups: int | None = Field(None, ge=1)
    version: int | None = None
    data: str | None = None
    mean_of: list[str] = []
    pool_of: list[str] = []
    row: str | None = None
    metrics: dict[str, str] = {}
    why: str | None = None

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
    """A table's YAML.

    With ``include: FILE``, what FILE of the same folder says counts where the table says nothing: of its models those
    that the table has numbers of.

    Attributes:
        paper: title.
        source: where it was published.
        url: the address of the source; needed only where ``source`` is neither an arXiv id nor a GitHub repository.
        date: when it was published, where ``source`` does not say it.
        where: which table of it.
        shows: what its columns are.
        numbers: the CSV, a file of the same folder.
        decimals: digits after the point, as printed in percent.
        runs: how many runs are behind each standard deviation.
        own: the numbers are of ttmbench itself, so they are not published ones.
        ties: how the source counts equal scores: ``strict`` as the metrics here, as wrong; ``first``, the first of them
            is chosen; ``right``, the correct one is the first; ``by_name``, ordered by the names of files or documents.
        rules: what else the source does, a sentence by subject, for a reader of the comparison.
        tolerance: what counts as agreeing; see `ttmbench.reproduce.agreement`.
        settings: of runs that adapt the model.
        metrics: paper's metric -> the one here, where the names differ.
        tasks: paper's task -> what it is here.
        models: paper's model -> what it is here.
    """

    paper: str
    source: str
    url: str | None = Field(None, pattern="^https://[^\\s\"'<>]+$")
    date: str | None = Field(None, pattern="^[0-9]{4}(-[0-9]{2}){0,2}$")
    where: str
    shows: str
    numbers: str
    decimals: int = Field(2, ge=0, le=6)
    runs: int = Field(1, ge=1)
    own: bool = False
    ties: Literal["strict", "first", "right", "by_name"] = "strict"
    rules: dict[str, str] = {}
    tolerance: Rule = Rule()
    settings: dict[str, Any] = {}
    metrics: dict[str, str] = {}
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
    folder = files("ttmbench.reproduce.published").iterdir()
    paths = {path.name: path for path in folder if path.name.endswith(".yaml") and not path.name.startswith("_")}
    names = sorted(
        paths, key=lambda name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
    )
    return {name.removesuffix(".yaml"): paths[name] for name in names}


def load_table(name: str) -> PublishedTable:
    """A table by its name, or by the path of its YAML.

    UsageError if there is no such table, or a file of it is wrong; file and key or line are named.
    """
    shipped = shipped_tables()
    if name in shipped:
        return _load(name, shipped[name], files("ttmbench.reproduce.published"))
    if name.endswith(ENDINGS):
        path = Path(name)
        return _load(path.stem, path, path.parent)
    near = get_close_matches(name, list(shipped), n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise UsageError(f"unknown table '{name}'{hint}; `ttmbench reproduce` lists the tables, or give a .yaml file")


def published_tables(name: str) -> list[PublishedTable]:
    """The tables that ``--published`` names: a shipped one, or ``all`` of those that papers published; else none."""
    if name in shipped_tables():
        return [load_table(name)]
    tables = [load_table(table_name) for table_name in shipped_tables()] if name == "all" else []
    return [table for table in tables if not table.spec.own]


def tables_naming(texts: Collection[str]) -> list[str]:
    """The shipped tables of which a file has one of the texts; none is parsed."""
    contents: dict[str, str] = {}

    def content(path: Traversable) -> str:
        if path.name not in contents:
            contents[path.name] = path.read_text(encoding="utf-8")
        return contents[path.name]

    found = []
    for name, path in shipped_tables().items():
        beside = re.findall(r"^(?:numbers|include): *([\w.-]+)", content(path), re.MULTILINE)
        parts = [content(path), *(content(files("ttmbench.reproduce.published") / file) for file in beside)]
        if any(text in part for text in texts for part in parts):
            found.append(name)
    return found


def _load(name: str, path: Traversable, folder: Traversable) -> PublishedTable:
    spec, is_shared = _spec(path, folder)
    source = _beside(path, folder, "numbers", spec.numbers)
    try:
        numbers = [_known(number, spec) for number in read_published(source, spec.runs)]
    except DataError as error:
        raise UsageError(str(error)) from None
    if is_shared:
        models = {number.model: spec.models[number.model] for number in numbers}
        spec = spec.model_copy(update={"models": models})
    return PublishedTable(name, spec, numbers, source)


def _spec(path: Traversable, folder: Traversable) -> tuple[TableSpec, bool]:
    """What a table states, and whether a part of it is in a file that other tables share."""
    content = _mapping(path)
    shared = content.pop("include", None)
    if shared is not None:
        content = _merged(_mapping(_beside(path, folder, "include", shared)), content)
    try:
        return TableSpec(**content), shared is not None
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, TableSpec)}") from None


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
