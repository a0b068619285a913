"""Each published number beside ours: found among results documents, checked for being the same thing, and compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.agreement import Measured, agrees, correct, tolerance
from ttmbench.reproduce.lookup import is_known_model, model_identity
from ttmbench.reproduce.published_numbers import PublishedNumber
from ttmbench.reproduce.tables import FinetuningEntry, ModelEntry, PublishedTable, TaskEntry
from ttmbench.results.coverage import Extent, together
from ttmbench.results.document import ResultsDocument, mapping
from ttmbench.results.labels import TTM, key_of
from ttmbench.results.models import stated_model
from ttmbench.results.numbers import Number, numbers_of

AGREES, DIFFERS, MISSING, OTHER, NOT_HERE = "agrees", "differs", "missing", "not comparable", "cannot be run"
VERDICTS = (AGREES, DIFFERS, MISSING, OTHER, NOT_HERE)


@dataclass(frozen=True)
class _Run:
    """A results document, which model and which checkpoint it is of, and its numbers."""

    document: ResultsDocument
    checkpoint: str | None
    identity: tuple[str, dict[str, object]] | None
    numbers: Sequence[Number]


@dataclass(frozen=True)
class Ours:
    """A number of a run, and what has to be said about it.

    Attributes:
        group: what one group is worth, a fraction.
        date: of the run, seconds since 1970.
        against: why it is not comparable; empty if it is.
        notes: what a reader should know though it is.
    """

    measured: Measured
    group: float
    date: float
    file: str
    extent: Extent
    against: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> tuple[bool, bool, float]:
        """What can be compared goes before what cannot, the whole task before a part, and then the newer."""
        return (not self.against, not self.extent.limited, self.date)


@dataclass(frozen=True)
class ComparedRow:
    """A published number and its verdict.

    Attributes:
        tasks: the tasks here that it is made of; mostly one.
        key: ``metric,filter`` in a results document.
        verdict: one of `VERDICTS`.
        allowed: the largest difference that agrees.
        why: for what cannot be run or compared.
    """

    number: PublishedNumber
    tasks: tuple[str, ...]
    key: str
    verdict: str
    ours: Ours | None = None
    allowed: float | None = None
    why: str = ""

    @property
    def counts(self) -> dict[str, int | None] | None:
        """Both numbers as how many of how many groups or queries are correct; None where a percentage was published."""
        if self.number.of is None:
            return None
        ours = None if self.ours is None else correct(self.ours.measured.value, self.number.of)
        return {"published": correct(self.number.measured.value, self.number.of), "ours": ours, "of": self.number.of}


def select(table: PublishedTable, models: Sequence[str], tasks: Sequence[str]) -> PublishedTable:
    """The rows of some models and tasks, by the names of the paper or of this package; all if none is named."""
    for name, chosen, known in (
        (
            "models",
            models,
            {*table.spec.models, *(str(entry.model) for entry in table.spec.models.values() if entry.model)},
        ),
        ("tasks", tasks, {number.task for number in table.numbers}),
    ):
        unknown = [choice for choice in chosen if choice not in known]
        if unknown:
            raise UsageError(f"--{name}: {table.name} has no '{unknown[0]}'; it has {', '.join(sorted(known))}")
    numbers = [
        number
        for number in table.numbers
        if (not tasks or number.task in tasks)
        and (not models or number.model in models or table.spec.models[number.model].model in models)
    ]
    if not numbers:
        raise UsageError(f"{table.name} has no number of these models on these tasks")
    return replace(table, numbers=numbers)


def compare(
    table: PublishedTable, documents: Iterable[tuple[Path, ResultsDocument]], registry: Registry
) -> list[ComparedRow]:
    """Compares every number of a table with documents and their paths: a row a number, in the table's order.

    The registry says which models are the same under two names.
    """
    runs = [
        _Run(
            document,
            stated_model(document).fingerprint,
            model_identity(document.config, registry),
            numbers_of(document, str(path)),
        )
        for path, document in documents
    ]
    return [_row(table, number, runs, registry) for number in table.numbers]


def _row(table: PublishedTable, number: PublishedNumber, runs: Sequence[_Run], registry: Registry) -> ComparedRow:
    entry, task = table.spec.models[number.model], table.spec.entry(number.task)
    tasks = tuple(task.parts) or (number.task,)
    metric, mean = table.spec.metric(number.task, number.metric)
    row = ComparedRow(number, tasks, key_of(metric, number.column.filter), MISSING)
    by_checkpoint: dict[str | None, list[_Run]] = {}
    for run in runs:
        if _is_model(entry, number.model, run, registry):
            by_checkpoint.setdefault(run.checkpoint, []).append(run)
    # The best of what single checkpoints have: a mean over tasks is never one over two of them.
    means = []
    for same in by_checkpoint.values():
        parts = [
            [candidate for run in same for candidate in _candidates(table, part, row.key, mean, entry, run)]
            for part in tasks
        ]
        if all(parts):
            means.append(
                _mean([max(part, key=lambda candidate: candidate.worth) for part in parts], pooled=bool(task.pool_of))
            )
    if not means:
        why = task.why or _why_not(entry, tasks, metric, registry)
        return replace(row, verdict=NOT_HERE, why=why) if why else row
    ours = max(means, key=lambda candidate: candidate.worth)
    if ours.against:
        return replace(row, verdict=OTHER, ours=ours, why="; ".join(ours.against))
    digit = table.digit if number.of is None else 0
    allowed = tolerance(number.measured, ours.measured, ours.group, digit, table.spec.tolerance)
    verdict = AGREES if agrees(number.measured, ours.measured, allowed, number.of) else DIFFERS
    return replace(row, verdict=verdict, ours=ours, allowed=allowed)


def _why_not(entry: ModelEntry, tasks: Sequence[str], metric: str, registry: Registry) -> str:
    """Why nobody can run this here; empty if it can be run."""
    absent = [task for task in tasks if task not in registry.task_files]
    if absent:
        return f"there is no task '{absent[0]}' here"
    if metric not in registry.metrics:
        return f"there is no metric '{metric}' here"
    if entry.model is None:
        return str(entry.why)
    return "" if is_known_model(entry.model, registry) else f"there is no model '{entry.model}' here"


def _candidates(table: PublishedTable, task: str, key: str, mean: str, model: ModelEntry, run: _Run) -> Iterator[Ours]:
    """The numbers of a run under a key, of a task or of its mean over tags of this name."""
    entry, document = table.spec.entry(task), run.document
    if mean:  # of the groups that count in it, which may be a part of the task's
        entry = entry.model_copy(update={"groups": None})
    for number in run.numbers:
        if (number.task, number.key) == (f"{task}/{mean}" if mean else task, key) and number.value is not None:
            yield Ours(
                measured=Measured(float(number.value), number.seed_std, number.seeds or 1),
                group=1 / max(1, number.groups or 0),
                date=float(document.date),
                file=number.file,
                extent=number.extent,
                against=(*_differences(entry, number, document), *_other_groups(model.finetuned, document)),
                notes=(
                    *_notes(table, number, document),
                    *_other_settings(model.finetuned, document),
                    *_other_source(table, model, number, run),
                ),
            )


def _differences(entry: TaskEntry, number: Number, document: ResultsDocument) -> Iterator[str]:
    wanted = entry.groups or number.groups_of_task
    if number.groups != wanted:
        yield f"{number.groups} groups, not {'all' if wanted is None else wanted}"
    elif number.limited and (entry.groups is None or number.groups_of_task is not None):
        yield f"{number.extent.words} groups"
    if entry.version is not None and number.version != entry.version:
        yield f"task version {number.version}, not {entry.version}"
    if entry.data is not None and number.data != entry.data:
        yield "other images or captions"
    changes = mapping(document.config.get("task_args"))
    if changes:
        yield f"another source ({', '.join(f'{key}={value}' for key, value in changes.items())})"


def _other_groups(wanted: FinetuningEntry | None, document: ResultsDocument) -> Iterator[str]:
    groups = sum(int(mapping(task).get("groups") or 0) for task in document.finetuned.get("tasks") or ())
    if wanted is not None and wanted.groups not in (None, groups):
        yield f"finetuned on {groups} groups, not {wanted.groups}"


def _other_settings(wanted: FinetuningEntry | None, document: ResultsDocument) -> Iterator[str]:
    if wanted is None:
        return
    from ttmbench.ttm.supervised import settings_of  # with torch, which no listing of tables should wait for

    record = document.finetuned
    usual = settings_of(wanted.preset, "matching" if record.get("loss") == "matching" else "contrastive", wanted.args)
    actual = mapping(record.get("hyperparameters"))
    changed = [
        f"{key}={actual.get(key)}" for key, value in usual.model_dump(mode="json").items() if actual.get(key) != value
    ]
    if changed:
        yield f"finetuning's settings were changed ({', '.join(changed)})"


def _notes(table: PublishedTable, number: Number, document: ResultsDocument) -> Iterator[str]:
    config = document.config
    if config.get("dtype", "fp32") != "fp32":
        yield f"computed in {config['dtype']}"
    if number.filter in document.methods.get(number.own_task, {}):
        usual = table.spec.settings.get("method_args", {})
        pairs = mapping(config.get("method_args")).items()
        mine = [
            f"{key}={value}" for key, value in pairs if key.startswith(f"{number.filter}.") and usual.get(key) != value
        ]
        if mine:
            yield f"settings of {number.filter} were changed ({', '.join(mine)})"
    record = document.ttm.get(number.own_task)
    if number.filter != TTM or record is None:
        return
    wanted = table.spec.settings.get("ttm_preset", "auto")
    if record.preset != wanted:
        yield f"TTM's preset was {record.preset}, not {wanted}"
    usual = table.spec.settings.get("ttm_args", {})
    changed = [f"{key}={value}" for key, value in mapping(config.get("ttm_args")).items() if usual.get(key) != value]
    if changed:
        yield f"TTM's settings were changed ({', '.join(changed)})"
    yield from (note for note in record.notes if "learning rate" in note)
    if len(record.seeds) < table.spec.runs:
        yield f"{len(record.seeds)} of {table.spec.runs} seeds"


def _other_source(table: PublishedTable, model: ModelEntry, number: Number, run: _Run) -> Iterator[str]:
    """What differs from a source that is a code base of its own: its rule for ties, its commit of the model."""
    spec, ours = table.spec, (run.identity or ("", {}))[1].get("revision")
    if spec.ties != "strict" and number.ties and not number.metric.endswith(("_ties_right", "_as_topk")):
        yield f"{number.ties:g} ties, which are wrong here and may be correct in {spec.source}"
    if model.revision and ours not in (None, model.revision):
        yield f"{spec.source} measured the model's commit {model.revision:.7}, this run has {ours:.7}"


def _mean(parts: Sequence[Ours], *, pooled: bool) -> Ours:
    """The number itself, or the mean over several tasks or over all their groups."""
    if len(parts) == 1:
        return parts[0]
    groups = [1 / part.group for part in parts]
    values = [part.measured.value for part in parts]
    return Ours(
        measured=Measured(fmean(values, groups if pooled else None), None, 1),
        group=1 / sum(groups) if pooled else fmean(part.group for part in parts),
        date=min(part.date for part in parts),
        file=", ".join(dict.fromkeys(part.file for part in parts)),
        extent=together(part.extent for part in parts),
        against=tuple(dict.fromkeys(reason for part in parts for reason in part.against)),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _is_model(entry: ModelEntry, called: str, run: _Run, registry: Registry) -> bool:
    document, name = run.document, run.document.model_name
    # Of `ttmbench score`, which has no model but the name of a file.
    if all(map(document.is_stored, document.datasets)) and (name in entry.names or _bare(name) == _bare(called)):
        return True
    if entry.model is None:
        return False
    identity = run.identity
    if entry.finetuned is not None:
        record = document.finetuned
        tasks = [mapping(task).get("task") for task in record.get("tasks") or ()]
        base = mapping(record.get("base"))
        # An older record without arguments may be of other weights than the name stands for.
        is_older = "model_args" not in base and base.get("model_name") != base.get("model")
        if is_older or (tasks, record.get("preset")) != (entry.finetuned.tasks, entry.finetuned.preset):
            return False
        identity = model_identity(base, registry)
    wanted = model_identity(entry.model_dump(), registry)
    if not entry.revision:
        return identity == wanted
    return _of_any_commit(identity) == _of_any_commit(wanted)  # another one than the source's is noted


def _of_any_commit(identity: tuple[str, dict[str, object]] | None) -> tuple[str, dict[str, object]] | None:
    if identity is None:
        return None
    target, arguments = identity
    return target, {key: value for key, value in arguments.items() if key != "revision"}


def _bare(name: object) -> str:
    """A name as ``albef-4m`` and ``ALBEF_4M`` have it in common."""
    return "".join(filter(str.isalnum, str(name))).casefold()
