"""What is published about a task, a model or a method: every number of the shipped tables by all its names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from ttmbench._util.console import echo, one_line
from ttmbench.data.catalog import find_task
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.report.table import TableColumn, percent, print_table, spread
from ttmbench.reproduce.tables import ModelEntry, PublishedNumber, PublishedTable, published_tables
from ttmbench.results.document import mapping
from ttmbench.results.labels import CHOICE, SLASH
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
        from ttmbench.scoring.forced_choice.arrays import choice_chance  # with scipy

        shape = spec.shape if spec.kind == "groups" else None
        return None if shape is None else choice_chance(shape.images, shape.captions).get(metric_name)
    metric = registry.metric(metric_name)
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
    for name, (spec, _) in registry.adapters.items():
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
    spec = registry.adapter(name)
    if spec.card is not None and spec.card.page:  # weights that are downloaded by hand: any file, under this name alone
        arguments.pop("pretrained", None)
        return f"{spec.target} {spec.name}", {**spec.model_args, **arguments}
    return spec.target, {**spec.model_args, **arguments}


def is_known_model(name: str, registry: Registry) -> bool:
    """Whether a model of this name is registered."""
    try:
        registry.adapter(name)
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
