"""Each published number beside ours: found among results documents, checked for being the same thing, and compared.

And the runs that would fill what a table lacks, as commands (`plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ttmbench._util.file_io import safe_name
from ttmbench.data.task_file import find_task
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import loads_as
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.tables import (
    FinetuningEntry,
    ModelEntry,
    PublishedNumber,
    PublishedTable,
    TableSpec,
    TaskEntry,
    agrees,
    model_identity,
    tolerance,
)
from ttmbench.results.document import ResultsDocument, fingerprint_of, mapping
from ttmbench.results.models import command_line
from ttmbench.results.numbers import BUILT_IN_METHODS, CHOICE, RAW, STORED_SCORES, TTM, Number, key_of, together

Run = tuple[Path, ResultsDocument]
Checkpoints = Mapping[str | None, Sequence[Run]]


class Verdict(StrEnum):
    """What a comparison says."""

    AGREES, DIFFERS, MISSING = "agrees", "differs", "missing"
    OTHER, NOT_HERE = "not comparable", "cannot be run"


@dataclass(frozen=True)
class Ours:
    """A number of a run, and what has to be said about it."""

    number: Number
    group: float  # what one group is worth, a fraction
    date: float  # of the run, seconds since 1970
    file: str
    against: tuple[str, ...] = ()  # why it is not comparable; empty if it is
    notes: tuple[str, ...] = ()  # what a reader should know though it is

    @property
    def worth(self) -> tuple[bool, bool, float]:
        """What can be compared goes before what cannot, the whole task before a part, and then the newer."""
        return (not self.against, not self.number.limited, self.date)


@dataclass(frozen=True)
class ComparedRow:
    """A published number and its verdict."""

    number: PublishedNumber
    tasks: tuple[str, ...]  # the tasks here that it is made of; mostly one
    key: str  # ``metric,method`` in a results document
    verdict: Verdict
    ours: Ours | None = None
    allowed: float | None = None  # the largest difference that agrees
    why: str = ""  # for what cannot be run or compared


def select(table: PublishedTable, models: Sequence[str], tasks: Sequence[str]) -> PublishedTable:
    """The rows of some models and tasks, by the names of the paper or of this package; all if none is named."""
    entries = table.spec.models
    known_models = {*entries, *(entry.model for entry in entries.values() if entry.model)}
    known_tasks = {number.task for number in table.numbers}
    for option, chosen, known in (("models", models, known_models), ("tasks", tasks, known_tasks)):
        if unknown := [name for name in chosen if name not in known]:
            raise UsageError(f"--{option}: {table.name} has no '{unknown[0]}'; it has {', '.join(sorted(known))}")
    numbers = [
        number
        for number in table.numbers
        if (not tasks or number.task in tasks)
        and (not models or {number.model, entries[number.model].model} & {*models})
    ]
    if not numbers:
        raise UsageError(f"{table.name} has no number of these models on these tasks")
    return replace(table, numbers=numbers)


def compare(
    table: PublishedTable, documents: Iterable[tuple[Path, ResultsDocument]], registry: Registry
) -> list[ComparedRow]:
    """Compares every number of a table with documents and their paths: a row a number, in the table's order."""
    of_model: dict[str, dict[str | None, list[Run]]] = {number.model: {} for number in table.numbers}
    for run, name in product(documents, of_model):
        if _is_model(table.spec.models[name], name, run[1], registry):  # which may know it under another name
            of_model[name].setdefault(fingerprint_of(run[1].model_info.fingerprint), []).append(run)
    return [_row(table, number, of_model[number.model], registry) for number in table.numbers]


def _row(table: PublishedTable, number: PublishedNumber, checkpoints: Checkpoints, registry: Registry) -> ComparedRow:
    entry, task = table.spec.models[number.model], table.spec.entry(number.task)
    tasks = tuple(task.parts) or (number.task,)
    metric, mean = table.spec.metric(number.task, number.metric)
    row = ComparedRow(number, tasks, key_of(metric, number.method), Verdict.MISSING)
    # The best of what single checkpoints have: a mean over tasks is never one over two of them.
    means = []
    for same in checkpoints.values():
        parts = [
            [ours for run in same for ours in _found(table, part, row.key, mean, entry, run, registry)]
            for part in tasks
        ]
        if all(parts):
            means.append(_mean([max(part, key=lambda ours: ours.worth) for part in parts], pooled=bool(task.pool_of)))
    if not means:
        why = task.why or _why_not(entry, tasks, metric, registry)
        return replace(row, verdict=Verdict.NOT_HERE, why=why) if why else row
    ours = max(means, key=lambda candidate: candidate.worth)
    if ours.against:
        return replace(row, verdict=Verdict.OTHER, ours=ours, why="; ".join(ours.against))
    digit = 10.0**-table.spec.decimals / 100 if number.of is None else 0
    allowed = tolerance(number, ours.number, ours.group, digit, table.spec.tolerance)
    is_same = agrees(number.value or 0, ours.number.value or 0, allowed, number.of)
    return replace(row, verdict=Verdict.AGREES if is_same else Verdict.DIFFERS, ours=ours, allowed=allowed)


def _why_not(entry: ModelEntry, tasks: Sequence[str], metric: str, registry: Registry) -> str:
    """Why nobody can run this here; empty if it can be run."""
    absent = [task for task in tasks if task not in registry.task_files]
    if absent:
        return f"there is no task '{absent[0]}' here"
    if metric not in registry.metrics:
        return f"there is no metric '{metric}' here"
    if entry.model is None:
        return str(entry.why)
    return "" if entry.model in registry.adapters else f"there is no model '{entry.model}' here"


def _found(
    table: PublishedTable, task: str, key: str, mean: str, model: ModelEntry, run: Run, registry: Registry
) -> Iterator[Ours]:
    """The numbers of a run under a key, of a task or of its mean over tags of this name."""
    path, document = run
    entry = table.spec.entry(task)
    if mean:  # of the groups that count in it, which may be a part of the task's
        entry = entry.model_copy(update={"groups": None})
    for number in document.numbers:
        if (number.task, number.key) == (f"{task}/{mean}" if mean else task, key) and number.value is not None:
            yield Ours(
                number,
                group=1 / max(1, number.groups or 0),
                date=float(document.date),
                file=str(path),
                against=tuple(_differences(entry, model.finetuned, number, document)),
                notes=tuple(_notes(table.spec, model, number, document, registry)),
            )


def _differences(
    entry: TaskEntry, finetuned: FinetuningEntry | None, number: Number, document: ResultsDocument
) -> Iterator[str]:
    wanted = entry.groups or number.extent.of
    if number.groups != wanted:
        yield f"{number.groups} groups, not {'all' if wanted is None else wanted}"
    elif number.limited and (entry.groups is None or number.extent.of is not None):
        yield f"{number.extent.words} groups"
    if entry.version is not None and number.origin.version != entry.version:
        yield f"task version {number.origin.version}, not {entry.version}"
    if entry.data is not None and number.origin.data != entry.data:
        yield "other images or captions"
    if changes := mapping(document.config.get("task_args")):
        yield f"another source ({_pairs(changes)})"
    groups = sum(int(mapping(task).get("groups") or 0) for task in document.model_info.finetuned.get("tasks") or ())
    if finetuned is not None and finetuned.groups not in (None, groups):
        yield f"finetuned on {groups} groups, not {finetuned.groups}"


def _notes(
    spec: TableSpec, model: ModelEntry, number: Number, document: ResultsDocument, registry: Registry
) -> Iterator[str]:
    config = document.config
    if config.get("dtype", "fp32") != "fp32":
        yield f"computed in {config['dtype']}"
    record = document.methods.get(number.own_task, {}).get(number.method)
    if record is not None and (changed := _changed(config, "method_args", spec.settings, f"{number.method}.")):
        yield f"settings of {number.method} were changed ({changed})"
    if number.method == TTM and record is not None:
        wanted, preset = spec.settings.get("ttm_preset", "auto"), config.get("ttm_preset", "auto")
        if preset != wanted:
            yield f"TTM's preset was {preset}, not {wanted}"
        if changed := _changed(config, "ttm_args", spec.settings):
            yield f"TTM's settings were changed ({changed})"
        yield from (note for note in record.notes if "learning rate" in note)
        if len(record.seeds) < spec.runs:
            yield f"{len(record.seeds)} of {spec.runs} seeds"
    if model.finetuned is not None:
        from ttmbench.evaluator.supervised import settings_of  # with torch, which no listing of tables should wait for

        preset, args = model.finetuned.preset, model.finetuned.args
        is_matching = document.model_info.finetuned.get("loss") == "matching"
        wanted = settings_of(registry, preset, "matching" if is_matching else "contrastive", args)
        actual = mapping(document.model_info.finetuned.get("hyperparameters"))
        if changed := _pairs({key: actual.get(key) for key, value in wanted.items() if actual.get(key) != value}):
            yield f"finetuning's settings were changed ({changed})"
    # A source may be a code base of its own, with its rule for ties and its commit of the model.
    if spec.ties != "strict" and number.ties and not number.metric.endswith(("_ties_right", "_as_topk")):
        yield f"{number.ties:g} ties, which are wrong here and may be correct in {spec.source}"
    commit = model_identity(str(config.get("model")), mapping(config.get("model_args")), registry)[1].get("revision")
    if model.revision and commit not in (None, model.revision):
        yield f"{spec.source} measured the model's commit {model.revision:.7}, this run has {commit:.7}"


def _changed(config: Mapping[str, object], option: str, usual: Mapping[str, object], start: str = "") -> str:
    """The settings of an option that are not the table's, of those whose names start so."""
    wanted = mapping(usual.get(option))
    pairs = mapping(config.get(option)).items()
    return _pairs({key: value for key, value in pairs if key.startswith(start) and wanted.get(key) != value})


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _mean(parts: Sequence[Ours], *, pooled: bool) -> Ours:
    """The number itself, or the mean over several tasks or over all their groups."""
    if len(parts) == 1:
        return parts[0]
    groups = [1 / part.group for part in parts]
    value = fmean((part.number.value or 0 for part in parts), groups if pooled else None)
    extent = together(part.number.extent for part in parts)
    return Ours(
        replace(parts[0].number, value=value, seed_std=None, seeds=(), extent=extent),
        group=1 / sum(groups) if pooled else fmean(part.group for part in parts),
        date=min(part.date for part in parts),
        file=", ".join(dict.fromkeys(part.file for part in parts)),
        against=tuple(dict.fromkeys(reason for part in parts for reason in part.against)),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _is_model(entry: ModelEntry, called: str, document: ResultsDocument, registry: Registry) -> bool:
    name = document.model_name
    # Of `ttmbench score`, which has no model but the name of a file.
    is_stored = all(data.source.get("kind") == STORED_SCORES for data in document.datasets.values())
    if is_stored and (name in entry.names or _bare(name) == _bare(called)):
        return True
    loaded: Mapping[str, object] = document.config
    if entry.finetuned is not None:
        record = document.model_info.finetuned
        tasks = [mapping(task).get("task") for task in record.get("tasks") or ()]
        if (tasks, record.get("preset")) != (entry.finetuned.tasks, entry.finetuned.preset):
            return False
        loaded = mapping(record.get("base"))
    if entry.model is None or not isinstance(loaded.get("model"), str):
        return False
    is_exact = entry.revision is None  # another commit than the source's is noted
    ours = model_identity(str(loaded["model"]), mapping(loaded.get("model_args")), registry, with_commit=is_exact)
    return ours == model_identity(entry.model, entry.model_args, registry, with_commit=is_exact)


def _bare(name: object) -> str:
    """A name as ``albef-4m`` and ``ALBEF_4M`` have it in common."""
    return "".join(filter(str.isalnum, str(name))).casefold()


class Planned(NamedTuple):
    """A run that would fill rows."""

    model: str
    paid: bool  # it asks a server that takes money
    commands: list[str]  # the finetuning that makes its weights, if it needs one, and the run


def plan(
    table: PublishedTable, rows: Iterable[ComparedRow], registry: Registry, common: Mapping[str, Any]
) -> Iterator[Planned]:
    """The runs for every row of `compare` that is missing, or whose number is of other data.

    One for each model and set of methods, so that a model is loaded once for its tasks; several seeds where the table
    states a spread over several. ``common`` are options of every run, such as where it writes.
    """
    needed: dict[tuple[str, str], set[str]] = {}  # methods by model and task
    for row in rows:
        for task in row.tasks if row.verdict in (Verdict.MISSING, Verdict.OTHER) else ():
            needed.setdefault((row.number.model, task), set()).update({row.number.method} - {RAW, CHOICE})
    alike: dict[tuple[str, tuple[str, ...], str | None], list[str]] = {}
    for (model, task), methods in needed.items():
        preset = str(table.spec.settings.get("ttm_preset", "auto")) if methods & BUILT_IN_METHODS.keys() else None
        name = table.spec.models[model].model
        if preset == "paper" and (
            name is None or registry.adapters[name].name not in find_task(registry, task).spec.ttm
        ):
            preset = "auto"  # the task has none for this model
        alike.setdefault((model, tuple(sorted(methods)), preset), []).append(task)
    order = list(dict.fromkeys(model for model, _ in needed))
    for (model, named, preset), tasks in sorted(alike.items(), key=lambda run: order.index(run[0][0])):
        entry = table.spec.models[model]
        finetuning, loaded = _finetuning(entry, registry, common)
        adapting: dict[str, Any] = {}
        if named:
            arguments = table.spec.settings.get("method_args", {})
            mine = {key: value for key, value in arguments.items() if key.partition(".")[0] in named}
            adapting = {"ttm_preset": preset, "seeds": list(range(table.spec.runs)), **table.spec.settings}
            adapting |= {"ttm_preset": preset, "methods": list(named), "method_args": mine}
        settings = {**loaded, "tasks": tasks, **adapting, "on_error": "continue", **common}
        yield Planned(str(loaded["model"]), entry.paid, [*finetuning, command_line(["ttmbench", "run"], settings)])


def _finetuning(entry: ModelEntry, registry: Registry, common: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The command of a model's finetuning, none where it needs none; and how a run loads the model."""
    loaded = {"model": entry.model, "model_args": entry.model_args}
    how = entry.finetuned
    if how is None or entry.model is None:
        return [], loaded
    name = "_".join([entry.model, *how.tasks, *([how.preset] if how.preset else [])])
    folder = str(Path(common["output_path"]) / "finetuned" / safe_name(name))
    settings = {**loaded, "tasks": how.tasks, "preset": how.preset, "finetune_args": how.args}
    model, arguments = loads_as(registry.adapters[entry.model].target, entry.model, folder)
    command = command_line(["ttmbench", "finetune"], {**settings, **common, "output_path": folder})
    return [command], {"model": model, "model_args": arguments}
