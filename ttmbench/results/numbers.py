"""The numbers of results documents as one flat list, for tables, exports and comparisons.

Those of models that were adapted to one task and measured on another are `Transfer`, which no table ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from operator import mul
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ttmbench.errors import UsageError
from ttmbench.results.document import AlsoMethod, AlsoRecord, MethodRecord, ResultsDocument, Samples, TtmRecord
from ttmbench.results.labels import (
    AT,
    HOLDOUT,
    HOLDOUT_RAW,
    RAW,
    SLASH,
    TTM,
    Extent,
    chance_in,
    in_table_order,
    key_of,
    name_of,
    numbers_in,
    seed_std_key,
    stderr_key,
    together,
)
from ttmbench.results.models import RunName, names_of_runs, stated_model, training_data, with_setting
from ttmbench.results.reader import read_document, walk_documents

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Number:
    """One metric of one filter on one task. Rates are fractions; what is undefined or unknown is None."""

    task: str  # of a mean over tasks, the name of their dataset; of a mean over values of tags, ``task/name``
    metric: str
    filter: str  # what was done to the model, as in results documents
    method: str  # its column (`ttmbench.results.labels`): ``raw``, ``SimpleMatch``, ``TTM``, ...
    track: str | None  # where it ranks; None for controls and held-out groups, which rank nowhere
    value: float | None  # mean over groups and seeds
    stderr: float | None = None  # over groups
    interval: tuple[float, float] | None = None  # both ends of the 95 % interval over groups
    chance: float | None = None  # expected value of random scores
    ties: float | None = None  # groups in which the metric met an equality
    seed_std: float | None = None  # standard deviation over seeds
    seeds: int | None = None  # how many; None for the model without training
    extent: Extent = field(default_factory=Extent)  # how many groups were scored, of how many
    version: int | None = None  # of the task
    data: str | None = None  # fingerprint of the data
    model: str = ""  # as the run calls it; in a table of several models, a name that differs from the others
    date: str | None = None  # of the run, ISO 8601 in UTC
    file: str = ""  # the results document; of a published number, the paper and its table
    of_tasks: int | None = None  # number of tasks that this is the mean of; None for a single task
    published: bool = False  # copied from a paper
    fingerprint: str | None = None  # of the model; None of stored scores
    seen: str | None = None  # the task's image collections in the model's training data, comma-separated
    trained_on: str | None = None  # the model's image collections, or ``none``, ``unknown``; None if published
    higher_is_better: bool = True
    cells: int | None = None  # combinations of values of tags that this is the mean over; None: over groups
    adapted_to: str | None = None  # the task that the model was adapted to, if it was measured on another one
    disagrees: str | None = None  # of a published number, what other sources print for the same model
    published_as: str = ""  # of a published number whose model is known here, what its source calls the model
    from_file: bool = False  # of stored scores, ranks or answers: images and captions are unknown
    setting: str = ""  # of the run (`ttmbench.results.models`), in brackets in ``model``; empty if all are alike
    of_seeds: tuple[int, ...] = ()  # the seeds

    def row(self) -> dict[str, object]:
        """Every attribute by name; the interval and the extent as their parts, ``model`` without the setting."""
        return {name: getattr(self, name) for name in _COLUMNS} | {"model": self.own_model}

    @property
    def own_model(self) -> str:
        """Name of the model without the setting of the run."""
        return self.model.removesuffix(f" [{self.setting}]") if self.setting else self.model

    @property
    def own_task(self) -> str:
        """The task whose data it is of: that of a mean over values of tags, else the same as ``task``."""
        return self.task.partition(SLASH)[0]

    @property
    def groups(self) -> int | None:
        """How many were scored."""
        return self.extent.groups

    @property
    def groups_of_task(self) -> int | None:
        """How many the task has; None if unknown."""
        return self.extent.of

    @property
    def limited(self) -> bool:
        """Whether it is of a run on a part of the task (``--limit``, ``--samples``): no result of the task."""
        return self.extent.limited

    @property
    def ci_low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.interval is None else self.interval[0]

    @property
    def ci_high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.interval is None else self.interval[1]

    @property
    def key(self) -> str:
        """``metric,filter``, its key in a results document."""
        return key_of(self.metric, self.filter)


@dataclass(frozen=True)
class DocumentFile:
    """A results document and its path."""

    path: Path
    document: ResultsDocument
    called: RunName | None = None  # names of its model and setting that differ from those of other runs
    file: str = ""  # its path below the folder that was read, or as the user gave it

    @property
    def model(self) -> str:
        """What tables call it."""
        return self.called.words if self.called else self.document.model_name

    def numbers(self) -> list[Number]:
        """The numbers of its tasks."""
        return [self._named(number) for number in numbers_of(self.document, self.file or self.path.name)]

    def numbers_elsewhere(self) -> list[Number]:
        """The numbers of its adapted models on other tasks."""
        return [self._named(number) for number in numbers_elsewhere(self.document, self.file or self.path.name)]

    def _named(self, number: Number) -> Number:
        return named(number, self.called) if self.called else number


def named(number: Number, called: RunName) -> Number:
    """A number with the names of its run's model and setting."""
    setting = called.setting_of(number.adapted_to or number.own_task)
    return replace(number, model=with_setting(called.model, setting), setting=setting)


def numbers_of(document: ResultsDocument, file: str = "") -> list[Number]:
    """Every number of a document, undefined ones too; a task's means over values of tags behind its own."""
    numbers = []
    for task in document.results:
        mine = list(_of_task(document, task, file))
        numbers += [*mine, *_tag_means(document, task, mine)]
    return numbers


def means_of(document: ResultsDocument, file: str = "") -> list[Number]:
    """The means over the tasks of datasets that a document states, as far as it has these tasks."""
    number, means = _numbers_from(document, file), []
    for dataset, values in document.groups.items():
        tasks = document.group_subtasks.get(dataset, [])
        if not tasks or not document.results.keys() >= {*tasks}:
            continue
        extent = together(document.extent(task) for task in tasks)
        for metric, name in numbers_in(values):
            track = document.tracks[tasks[0]].get(key_of(metric, name))
            means.append(
                _measured(number, metric, name, values)(
                    task=dataset,
                    method=name_of(name, track, metric),
                    track=track,
                    of_tasks=len(tasks),
                    seen=_seen_in(document, *tasks),
                    trained_on=training_data(document),
                    extent=extent,
                    higher_is_better=document.higher_is_better[tasks[0]].get(metric, True),
                )
            )
    return means


def numbers_elsewhere(document: ResultsDocument, file: str = "") -> list[Number]:
    """Every number of adapted models on other tasks (``--ttm_also``), of the task ``adapted to@measured on``.

    They have no track. Filter ``none`` is the model before adaptation; others, such as ``ttm``, are trained ones.
    """
    number, numbers = _numbers_from(document, file), []
    pairs = [(task, *pair) for task, others in document.ttm_also.items() for pair in others.items()]
    for adapted_to, measured_on, record in pairs:
        numbers += [
            _measured(number, metric, name, record.results, record.ci)(
                task=f"{adapted_to}{AT}{measured_on}",
                method=name_of(name, metric=metric),
                track=None,
                chance=chance_in(record.chance, metric, name),
                ties=record.ties.get(key_of(metric, name)),
                seeds=None if name == RAW else len(record.seeds),
                of_seeds=() if name == RAW else tuple(record.seeds),
                extent=record.extent,
                version=record.version,
                data=record.fingerprint,
                adapted_to=adapted_to,
            )
            for metric, name in numbers_in(record.results)
        ]
    return numbers


def newest(numbers: Iterable[Number]) -> list[Number]:
    """One number for each model, setting, task, metric and filter (`merged`), in their order."""
    return [merged(same)[0] for same in same_rows(numbers)]


def same_rows(numbers: Iterable[Number]) -> list[list[Number]]:
    """Numbers by model, setting, task, metric and filter."""
    same: dict[tuple[str, ...], list[Number]] = {}
    for number in numbers:
        same.setdefault((number.model, number.task, number.metric, number.filter), []).append(number)
    return list(same.values())


def merged(same: Sequence[Number]) -> tuple[Number, list[Number]]:
    """The newest of some numbers of one row (`takes_place_of`), averaged with those of other seeds; the others.

    Standard errors and interval ends are averaged too, which overstates them.
    """
    first = same[0]
    for number in same[1:]:
        first = number if takes_place_of(number, first) else first
    chosen, left = [first], []
    for number in sorted(same, key=lambda number: number.date or "", reverse=True):
        known = {seed for one in chosen for seed in one.of_seeds}
        is_other = bool(number.of_seeds) and bool(first.of_seeds) and known.isdisjoint(number.of_seeds)
        if is_other and (number.extent, number.data) == (first.extent, first.data):
            chosen.append(number)
        elif number is not first:
            left.append(number)
    if len(chosen) == 1:
        return first, left
    counts = [len(one.of_seeds) for one in chosen]
    total = sum(counts)

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return None if len(known) < len(counts) else sum(map(mul, known, counts)) / total

    value, spread = mean(one.value for one in chosen), None
    low, high = (mean(getattr(one, end) for one in chosen) for end in ("ci_low", "ci_high"))
    if value is not None:
        squares = [
            (n - 1) * (one.seed_std or 0) ** 2 + n * ((one.value or 0) - value) ** 2
            for n, one in zip(counts, chosen, strict=True)
        ]
        spread = sqrt(sum(squares) / (total - 1))
    return replace(
        first,
        value=value,
        stderr=mean(one.stderr for one in chosen),
        interval=None if low is None or high is None else (low, high),
        ties=mean(one.ties for one in chosen),
        seed_std=spread,
        seeds=total,
        of_seeds=tuple(seed for one in chosen for seed in one.of_seeds),
    ), left


def takes_place_of(one: Number, other: Number) -> bool:
    """Whether a number replaces an earlier one: the whole task before a part, a larger part, then the newer run."""
    if one.limited != other.limited:
        return other.limited
    if one.limited and one.groups != other.groups:
        return (one.groups or 0) > (other.groups or 0)
    return (one.date or "") >= (other.date or "")


def read_runs(paths: Sequence[Path]) -> tuple[list[DocumentFile], dict[Path, str]]:
    """Reads results documents, named or in folders, and says why other files of folders were skipped.

    DataError if a named file is not a results document; UsageError if no file has a finished task.
    """
    runs, skipped = [], dict[Path, str]()
    for source in paths:
        for path, document in walk_documents(source) if source.is_dir() else [(source, read_document(source))]:
            if isinstance(document, str):
                skipped[path] = document
                continue
            below = path.relative_to(source if source.is_dir() else source.parent) if len(paths) == 1 else path
            runs.append(DocumentFile(path, document, file=below.as_posix()))
    if not any(run.document.results for run in runs):
        raise UsageError(f"{', '.join(map(str, paths))}: there is no finished task to export")
    names = names_of_runs([(run.path, run.document) for run in runs])
    named = [replace(run, called=name) for run, name in zip(runs, names, strict=True)]
    if any(name.setting for name in names):
        named.sort(key=lambda run: run.model)  # a model's settings stand together
    return named, skipped


def _of_task(document: ResultsDocument, task: str, file: str) -> Iterator[Number]:
    number, extent = _numbers_from(document, file), document.extent(task)
    of_ttm, tracks = document.ttm.get(task), document.tracks[task]
    for metric, name in in_table_order(numbers_in(document.results[task])):
        key, training = key_of(metric, name), document.training(task, name)
        held_out = of_ttm.holdout if of_ttm is not None and name in (HOLDOUT, HOLDOUT_RAW) else None
        yield _measured(number, metric, name, document.results[task], document.ci[task])(
            task=task,
            method=name_of(name, tracks.get(key), metric),
            track=tracks.get(key),
            chance=chance_in(document.chance[task], metric, name),
            ties=document.ties[task].get(key),
            seeds=None if training is None else len(training.seeds),
            of_seeds=() if training is None else tuple(training.seeds),
            extent=extent if held_out is None else replace(extent, groups=len(held_out.scored_groups)),
            version=document.versions[task],
            data=document.task_hashes[task],
            seen=_seen_in(document, task),
            trained_on=training_data(document),
            from_file=document.is_stored(task),
            higher_is_better=document.higher_is_better[task].get(metric, True),
        )


def _tag_means(document: ResultsDocument, task: str, mine: Sequence[Number]) -> Iterator[Number]:
    """The means over values of a task's tags; the rest is as in the task's number of the same metric and filter."""
    for name, mean in document.tag_means.get(task, {}).items():
        for number in (number for number in mine if number.key in mean.numbers):
            yield _measured(partial(replace, number), number.metric, number.filter, mean.numbers, mean.ci)(
                task=f"{task}{SLASH}{name}",
                ties=None,
                extent=Extent(mean.groups, None if number.limited else mean.groups, number.limited),
                cells=mean.cells,
            )


def _measured(
    number: partial[Number],
    metric: str,
    filter_: str,
    numbers: Mapping[str, float | None],
    ci: Mapping[str, list[float] | None] = MappingProxyType({}),
) -> partial[Number]:
    """A constructor of the number of a metric and filter with its value, errors and interval given."""
    key = key_of(metric, filter_)
    ends = ci.get(key)
    return partial(
        number,
        metric=metric,
        filter=filter_,
        value=numbers[key],
        stderr=numbers.get(stderr_key(metric, filter_)),
        interval=None if ends is None else (ends[0], ends[1]),
        seed_std=numbers.get(seed_std_key(metric, filter_)),
    )


def _numbers_from(document: ResultsDocument, file: str) -> partial[Number]:
    """A constructor of numbers of a document."""
    fingerprint = stated_model(document).fingerprint
    return partial(Number, model=document.model_name, date=document.started, file=file, fingerprint=fingerprint)


def _seen_in(document: ResultsDocument, *tasks: str) -> str | None:
    names = dict.fromkeys(name for task in tasks for name in document.seen_in_training.get(task, ()))
    return ", ".join(names) or None


_WHOLE = ("version", "seeds", "groups", "groups_of_task", "of_tasks", "cells")
_YES_OR_NO = ("published", "limited", "higher_is_better", "from_file")
_RATES = ("value", "stderr", "ci_low", "ci_high", "chance", "ties", "seed_std")
_COLUMNS = (
    *("task", "metric", "filter", "method", "track", *_RATES, "seeds", "groups", "groups_of_task", "version", "data"),
    *("model", "date", "file", "of_tasks", "published", "limited", "fingerprint", "seen", "trained_on"),
    *("higher_is_better", "cells", "adapted_to", "disagrees", "from_file", "setting"),
)


def to_frame(numbers: Iterable[Number]) -> pd.DataFrame:
    """Numbers as a table: a row a number, a column an attribute; undefined rates are NaN, counts Int64."""
    import pandas as pd

    kinds = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_YES_OR_NO, "bool") | dict.fromkeys(_RATES, "float64")
    rows = [number.row() for number in numbers]
    return pd.DataFrame(rows, columns=list(_COLUMNS), dtype=object).astype(kinds)


TITLE = "Adapted to one task, measured on another: what adaptation costs elsewhere, in no ranking"


@dataclass(frozen=True)
class Transfer:
    """One metric of a task, measured with a model that TTM or another method trained on one. Rates are fractions."""

    adapted_on: str  # the task that the model was adapted to
    measured_on: str  # the task that the metric is of; the same one for what adaptation does to its own task
    metric: str  # its name
    raw: float | None  # of the model as it was
    value: float | None  # of the adapted model, the mean over seeds
    seed_std: float | None  # over seeds
    seeds: int  # how many
    difference: float | None  # ``value - raw``
    ci_low: float | None  # lower end of the difference's 95 % interval over groups
    ci_high: float | None  # its upper end
    seed_ci_low: float | None  # lower end of its 95 % interval over seeds
    seed_ci_high: float | None  # its upper end
    chance: float | None  # of random scores
    groups: int  # that were scored
    groups_of_task: int  # that the task has
    shown: bool  # whether tables with room for one metric of the task show this one
    model: str = ""  # as the run calls it
    fingerprint: str | None = None  # of the model
    date: float = 0.0  # of the run, seconds since 1970
    file: str = ""  # the results document
    method: str = TTM  # that trained the model

    @property
    def adapted_to(self) -> str:
        """The task that the model was trained on, with the method if it is not TTM."""
        return self.adapted_on if self.method == TTM else f"{self.adapted_on} by {self.method}"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the difference's interval over groups."""
        return None if self.ci_low is None or self.ci_high is None else (self.ci_low, self.ci_high)

    @property
    def limited(self) -> bool:
        """Whether it is of a part of the task."""
        return self.groups < self.groups_of_task


def transfers_of(document: ResultsDocument, file: str = "") -> list[Transfer]:
    """Metrics of adapted models on their own task, then on other tasks (``--ttm_also``), by the task adapted to.

    A table with room for one metric of a task shows the match, if there is one.
    """
    fingerprint, transfers = stated_model(document).fingerprint, list[Transfer]()
    for task, others in document.ttm_also.items():
        trained: dict[str, TtmRecord | MethodRecord] = {TTM: document.ttm[task]} if task in document.ttm else {}
        for method, adapted in (trained | document.methods.get(task, {})).items():
            parts: list[tuple[str, Any, Any, Samples, object, AlsoRecord | AlsoMethod | TtmRecord | MethodRecord]] = []
            if adapted.differences is not None and task in document.results:
                own = document.results[task], document.chance[task], document.n_samples[task]
                parts.append((task, *own, document.configs[task].get("matching"), adapted))
            for other, record in others.items():
                of_method = record if method == TTM else (record.methods or {}).get(method)
                if of_method is not None:
                    about = record.results, record.chance, record.n_samples, record.matching
                    parts.append((other, *about, of_method))
            for other, results, levels, counts, matching, measured in parts:
                names = [metric for metric, name in numbers_in(results) if name == RAW]
                match = "global_assignment_accuracy" if matching == "global" else "group_match"
                for metric in (metric for metric in names if key_of(metric, method) in results):
                    gain = (measured.differences or {}).get(metric)
                    low, high = (gain and gain.ci) or (None, None)
                    seed_low, seed_high = (gain and gain.seed_ci) or (None, None)
                    transfers.append(
                        Transfer(
                            adapted_on=task,
                            measured_on=other,
                            metric=metric,
                            raw=results[key_of(metric, RAW)],
                            value=results[key_of(metric, method)],
                            seed_std=results.get(seed_std_key(metric, method)),
                            seeds=len(measured.seeds),
                            difference=None if gain is None else gain.value,
                            ci_low=low,
                            ci_high=high,
                            seed_ci_low=seed_low,
                            seed_ci_high=seed_high,
                            chance=chance_in(levels, metric, method),
                            groups=counts.effective,
                            groups_of_task=counts.original,
                            shown=metric == match or match not in names,
                            model=document.model_name,
                            fingerprint=fingerprint,
                            date=float(document.date),
                            file=file,
                            method=method,
                        )
                    )
    return transfers
