"""The numbers of a results document as one flat list: all who show, export or compare numbers read this and no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ttmbench.errors import UsageError
from ttmbench.results.coverage import Extent, together
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import (
    AT,
    CHOICE,
    HOLDOUT,
    HOLDOUT_RAW,
    SLASH,
    TRACK_OF_FILTER,
    TTM,
    key_of,
    name_of,
    numbers_in,
    seed_std_key,
    stderr_key,
)
from ttmbench.results.models import stated_model, training_data
from ttmbench.results.reader import read_document, walk_documents
from ttmbench.results.settings import RunName, names_of_runs

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Number:
    """One metric of one filter on one task. Rates are fractions; what is undefined or unknown is None.

    Attributes:
        task: name; of a mean over tasks, that of their dataset; of a mean over values of tags, ``task/name``.
        metric, filter, version, data: as in results documents.
        method: its column (`ttmbench.results.labels`): ``raw``, ``SimpleMatch``, ``TTM``, ...
        track: where it ranks; None for controls and held-out groups.
        value: mean over groups and seeds.
        stderr, interval: over groups; both ends of the 95 % interval.
        chance: of random scores.
        ties: groups in which the metric met an equality.
        seed_std, seeds: over how many seeds; None for the model without training.
        extent: how many groups were scored, of how many.
        model: as the run calls it; beside others, a name that tells it from them.
        fingerprint: by which the model is known; None of older documents.
        date: of the run, ISO 8601 in UTC.
        file: the results document; of a published number, the paper and its table.
        of_tasks, cells: number of tasks, or of combinations of values of tags, that it is the mean of; else None.
        published: typed from a paper.
        seen: image collections of the task that the model was trained on, by commas.
        trained_on: all its image collections, or ``none``, or ``unknown``; None of a published number.
        higher_is_better: whether a larger value is the better one.
        disagrees: of a published number, what other sources print under the same name of the model.
        from_file: of stored scores, ranks or answers, whose images and captions are unknown.
        setting: of the run (`ttmbench.results.settings`), which ``model`` has in brackets.
        adapted_to: the task that the model was adapted to where ``task`` is ``adapted to@measured on``.
    """

    task: str
    metric: str
    filter: str
    method: str
    track: str | None
    value: float | None
    stderr: float | None = None
    interval: tuple[float, float] | None = None
    chance: float | None = None
    ties: float | None = None
    seed_std: float | None = None
    seeds: int | None = None
    extent: Extent = field(default_factory=Extent)
    version: int | None = None
    data: str | None = None
    model: str = ""
    date: str | None = None
    file: str = ""
    of_tasks: int | None = None
    published: bool = False
    fingerprint: str | None = None
    seen: str | None = None
    trained_on: str | None = None
    higher_is_better: bool = True
    cells: int | None = None
    adapted_to: str | None = None
    disagrees: str | None = None
    from_file: bool = False
    setting: str = ""

    def row(self) -> dict[str, object]:
        """Every attribute by name, the ends of the interval and the counts of groups each on its own.

        ``model`` is without the setting, which has a place of its own.
        """
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
    """A results document and where it lies; ``called`` tells its model and setting from those of others.

    ``file`` is its path below the folder that was read; of one that was named, as it was named.
    """

    path: Path
    document: ResultsDocument
    called: RunName | None = None
    file: str = ""

    @property
    def model(self) -> str:
        """What tables call it."""
        return self.called.words if self.called else self.document.model_name

    def numbers(self) -> list[Number]:
        """The numbers of its tasks."""
        return [self._named(one) for one in numbers_of(self.document, self.file or self.path.name)]

    def numbers_elsewhere(self) -> list[Number]:
        """The numbers of its adapted models on other tasks."""
        return [self._named(one) for one in numbers_elsewhere(self.document, self.file or self.path.name)]

    def _named(self, number: Number) -> Number:
        return replace(number, model=self.model, setting=self.called.setting if self.called else "")


def numbers_of(document: ResultsDocument, file: str = "") -> list[Number]:
    """Every number of a document, undefined ones too; a task's means over values of tags behind its own."""
    numbers = []
    for task in document.results:
        mine = list(_of_task(document, task, file))
        numbers += [*mine, *_tag_means(document, task, mine)]
    return numbers


def means_of(document: ResultsDocument, file: str = "") -> list[Number]:
    """The means over the tasks of datasets that a document states, as far as it has these tasks."""
    number, found = _numbers_from(document, file), []
    for dataset, values in document.groups.items():
        tasks = document.group_subtasks.get(dataset, [])
        if not tasks or not document.results.keys() >= {*tasks}:
            continue
        extent = together(document.extent(task) for task in tasks)
        for metric, name in numbers_in(values):
            track = _track(document.tracks[tasks[0]].get(key_of(metric, name)), name)
            found.append(
                number(
                    task=dataset,
                    metric=metric,
                    filter=name,
                    method=name_of(name, track, metric),
                    track=track,
                    **_measured(metric, name, values, {}),
                    of_tasks=len(tasks),
                    seen=_seen_in(document, *tasks),
                    trained_on=training_data(document),
                    extent=extent,
                    higher_is_better=document.higher_is_better[tasks[0]].get(metric, True),
                )
            )
    return found


def numbers_elsewhere(document: ResultsDocument, file: str = "") -> list[Number]:
    """Every number of adapted models on other tasks (``--ttm_also``), to stand beside those of `numbers_of`.

    They are of the task ``adapted to@measured on``, without a track: filter ``none`` is the model as it was on the
    other task, ``ttm`` the adapted one.
    """
    number, found = _numbers_from(document, file), []
    for adapted_to, measured_on, record in (
        (task, other, record) for task, others in document.ttm_also.items() for other, record in others.items()
    ):
        counts = record.n_samples
        found += [
            number(
                task=f"{adapted_to}{AT}{measured_on}",
                metric=metric,
                filter=name,
                method=name_of(name, metric=metric),
                track=None,
                **_measured(metric, name, record.results, record.ci),
                chance=record.chance.get(metric),
                ties=record.ties.get(key_of(metric, name)),
                seeds=len(record.seeds) if name == TTM else None,
                extent=Extent(counts.effective, counts.original, counts.effective < counts.original),
                version=record.version,
                data=record.fingerprint,
                adapted_to=adapted_to,
            )
            for metric, name in numbers_in(record.results)
        ]
    return found


def newest(numbers: Iterable[Number]) -> list[Number]:
    """One number a model with its setting, task, metric and filter: that of the newest run of the whole task.

    The order is kept. A run of a part counts only where there is none of the whole.
    """
    found: dict[tuple[str, ...], Number] = {}
    for one in numbers:
        key = (one.model, one.task, one.metric, one.filter)
        if key not in found or takes_place_of(one, found[key]):
            found[key] = one
    return list(found.values())


def takes_place_of(one: Number, other: Number) -> bool:
    """Whether a number replaces another of the same model, setting, task, metric and filter that was seen before it.

    The whole task goes before a part, of two parts the larger one, and then the newer run.
    """
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
    for given in paths:
        for path, document in walk_documents(given) if given.is_dir() else [(given, read_document(given))]:
            if isinstance(document, str):
                skipped[path] = document
                continue
            below = path.relative_to(given if given.is_dir() else given.parent) if len(paths) == 1 else path
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
    for metric, name in numbers_in(document.results[task]):
        key, training = key_of(metric, name), document.training(task, name)
        held_out = of_ttm.holdout if of_ttm is not None and name in (HOLDOUT, HOLDOUT_RAW) else None
        yield number(
            task=task,
            metric=metric,
            filter=name,
            method=name_of(name, tracks.get(key), metric),
            track=_track(tracks.get(key), name),
            **_measured(metric, name, document.results[task], document.ci[task]),
            chance=document.chance[task].get(metric),
            ties=document.ties[task].get(key),
            seeds=None if training is None else len(training.seeds),
            extent=extent if held_out is None else replace(extent, groups=len(held_out.scored_groups)),
            version=document.versions[task],
            data=document.task_hashes[task],
            seen=_seen_in(document, task),
            trained_on=training_data(document),
            from_file=document.is_stored(task),
            higher_is_better=document.higher_is_better[task].get(metric, True),
        )


def _tag_means(document: ResultsDocument, task: str, mine: Sequence[Number]) -> Iterator[Number]:
    """The means over values of a task's tags, with what belongs to its own numbers of the same metric and filter."""
    for name, mean in document.tag_means.get(task, {}).items():
        for one in (one for one in mine if one.key in mean.numbers):
            yield replace(
                one,
                task=f"{task}{SLASH}{name}",
                **_measured(one.metric, one.filter, mean.numbers, mean.ci),
                ties=None,
                extent=Extent(mean.groups, None if one.limited else mean.groups, one.limited),
                cells=mean.cells,
            )


class _Measured(TypedDict):
    """What one mean has: the value, and how sure it is."""

    value: float | None
    stderr: float | None
    interval: tuple[float, float] | None
    seed_std: float | None


def _measured(
    metric: str, filter_: str, numbers: Mapping[str, float | None], ci: Mapping[str, list[float] | None]
) -> _Measured:
    ends = ci.get(key_of(metric, filter_))
    return {
        "value": numbers[key_of(metric, filter_)],
        "stderr": numbers.get(stderr_key(metric, filter_)),
        "interval": None if ends is None else (ends[0], ends[1]),
        "seed_std": numbers.get(seed_std_key(metric, filter_)),
    }


def _numbers_from(document: ResultsDocument, file: str) -> partial[Number]:
    """What makes a number of a document, with all that its numbers have in common."""
    fingerprint = stated_model(document).fingerprint
    return partial(Number, model=document.model_name, date=document.started, file=file, fingerprint=fingerprint)


def _track(stated: str | None, filter_: str) -> str | None:
    """The track of a number; older documents state that of scores for forced choices."""
    return TRACK_OF_FILTER[CHOICE] if filter_ == CHOICE and stated == "zero_shot" else stated


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
    rows = [one.row() for one in numbers]
    return pd.DataFrame(rows, columns=list(_COLUMNS), dtype=object).astype(kinds)
