"""The numbers of a results document as one flat list: all who show, export or compare numbers read this and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, UsageError
from ttmbench.results.coverage import Extent, extent_of, is_stored, together
from ttmbench.results.labels import (
    CHOICE,
    HOLDOUT,
    HOLDOUT_RAW,
    ORACLE,
    SIMPLE_MATCH,
    SLASH,
    TRACK_OF_FILTER,
    TTM,
    key_of,
    name_of,
    numbers_in,
    seed_std_key,
    stderr_key,
)
from ttmbench.results.models import stated_model, tell_apart, training_data
from ttmbench.results.reader import Found, read_document, walk_documents

_WRONG = (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError)


@dataclass(frozen=True)
class Number:
    """One metric of one filter on one task. Rates are fractions; what is undefined or unknown is None.

    Attributes:
        task: name; of a mean over tasks, the name of their dataset; of a mean over values of tags, ``task/name``.
        metric: name.
        filter: what was done to the model, as in results documents.
        method: the column it stands in (`ttmbench.results.labels`): ``raw``, ``SimpleMatch``, ``TTM``, ...
        track: where it ranks; None for controls and held-out groups, which explain a number and rank nowhere.
        value: mean over groups and seeds.
        stderr: over groups.
        ci_low: lower end of the 95 % interval over groups.
        ci_high: its upper end.
        chance: of random scores.
        ties: groups in which the metric met an equality.
        seed_std: over seeds.
        seeds: how many; None for the model without training.
        groups: that were scored.
        groups_of_task: that the task has; None if unknown.
        version: of the task.
        data: fingerprint of the data.
        model: as the run calls it; beside others, a name that tells it from them.
        fingerprint: by which the model is known; None of older documents.
        date: of the run, ISO 8601 in UTC.
        file: the results document; of a published number, the paper and its table.
        of_tasks: number of tasks that this is the mean of; None for a single task.
        published: typed from a paper.
        seen: image collections of the task that the model was trained on, by commas; None for none that are known.
        trained_on: image collections that the model was trained on, by commas, or ``none``, or ``unknown``; None of a
            published number.
        limited: of a run on a part of the task (``--limit``, ``--samples``): no result of the task.
        higher_is_better: whether a larger value is the better one; True of numbers that say nothing.
        cells: combinations of values of tags that this is the mean over; None for a mean over groups.
        disagrees: of a published number, what other sources print under the same name of the model; None if they agree.
        from_file: of stored scores, ranks or answers: nothing is known of the images and captions.
        adapted_to: the task that the model was adapted to where ``task`` (``adapted to@measured on``) is no own one.
    """

    task: str
    metric: str
    filter: str
    method: str
    track: str | None
    value: float | None
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    chance: float | None = None
    ties: float | None = None
    seed_std: float | None = None
    seeds: int | None = None
    groups: int | None = None
    groups_of_task: int | None = None
    version: int | None = None
    data: str | None = None
    model: str = ""
    date: str | None = None
    file: str = ""
    of_tasks: int | None = None
    published: bool = False
    limited: bool = False
    fingerprint: str | None = None
    seen: str | None = None
    trained_on: str | None = None
    higher_is_better: bool = True
    cells: int | None = None
    adapted_to: str | None = None
    disagrees: str | None = None
    from_file: bool = False

    @property
    def own_task(self) -> str:
        """The task whose data it is of: that of a mean over values of tags, else the same as ``task``."""
        return self.task.partition(SLASH)[0]

    @property
    def extent(self) -> Extent:
        """How many groups of how many it is of."""
        return Extent(self.groups, self.groups_of_task, self.limited)

    @property
    def key(self) -> str:
        """``metric,filter``, its key in a results document."""
        return key_of(self.metric, self.filter)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95 % interval."""
        return None if self.ci_low is None or self.ci_high is None else (self.ci_low, self.ci_high)


@dataclass(frozen=True)
class DocumentFile:
    """A results document and where it lies; ``called`` is the name that tells its model from those of others."""

    path: Path
    document: Mapping[str, Any]
    called: str | None = None

    @property
    def model(self) -> str:
        """What tables call it."""
        return self.called or str(self.document["model_name"])

    def numbers(self) -> list[Number]:
        """The numbers of its tasks; DataError naming the file if it contradicts itself."""
        try:
            return [replace(one, model=self.model) for one in numbers_of(self.document, self.path.name)]
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from None


def numbers_of(document: Mapping[str, Any], file: str = "") -> list[Number]:
    """Every number of a results document, undefined ones too; a task's means over values of tags behind its own.

    Args:
        document: the document; of a run that is under way, what there is of it.
        file: its name.

    Returns:
        Task by task in the document's order.

    Raises:
        DataError: the document is not as its schema says; what is wrong, in words that follow the name of the file.
    """
    return checked(_numbers(document, file))


def means_of(document: Mapping[str, Any], file: str = "") -> list[Number]:
    """The means over the tasks of datasets that a document states; errors as for `numbers_of`."""
    return checked(_means(document, file))


def newest(numbers: Iterable[Number]) -> list[Number]:
    """One number a model, task, metric and filter: that of the newest run of the whole task; the order is kept.

    A run of a part counts only where there is none of the whole.
    """
    found: dict[tuple[str, ...], Number] = {}
    for one in numbers:
        key = (one.model, one.task, one.metric, one.filter)
        if key not in found or takes_place_of(one, found[key]):
            found[key] = one
    return list(found.values())


def takes_place_of(one: Number, other: Number) -> bool:
    """Whether a number replaces another of the same model, task, metric and filter that was seen before it.

    The whole task goes before a part, of two parts the larger one, and then the newer run.
    """
    if one.limited != other.limited:
        return other.limited
    if one.limited and one.groups != other.groups:
        return (one.groups or 0) > (other.groups or 0)
    return (one.date or "") >= (other.date or "")


def read_runs(paths: Sequence[Path]) -> tuple[list[DocumentFile], list[Found]]:
    """Reads results documents.

    Args:
        paths: files, or folders to search.

    Returns:
        The documents, and the files of folders that were skipped.

    Raises:
        DataError: a file that was named is no results document.
        UsageError: there is none.
    """
    runs, skipped = [], []
    for path in paths:
        if not path.is_dir():
            runs.append(DocumentFile(path, read_document(path).to_dict()))
            continue
        for found in walk_documents(path):
            if found.document is None:
                skipped.append(found)
            else:
                runs.append(DocumentFile(found.path, found.document.to_dict()))
    if not any(run.document["results"] for run in runs):
        raise UsageError(f"{', '.join(map(str, paths))}: there is no finished task to export")
    names = tell_apart([stated_model(run.document) for run in runs])
    return [replace(run, called=name) for run, name in zip(runs, names, strict=True)], skipped


def finite(value: Any) -> float | None:
    """A finite number of a document, or None.

    Args:
        value: as it was read.

    Returns:
        The same; ``-0.0`` as ``0.0``.

    Raises:
        TypeError, ValueError: it is something else.

    >>> finite(-0.0), finite(3), finite(None)
    (0.0, 3, None)
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of a results document")
    return value + 0


def training_of(document: Mapping[str, Any], task: str, filter_: str) -> Mapping[str, Any]:
    """What a document records of the training for a filter, its seeds among it; empty without training."""
    if filter_ in (TTM, SIMPLE_MATCH, ORACLE):
        return _of(document, filter_, task)
    of_ttm = _of(document, TTM, task)
    found: Mapping[str, Any] = of_ttm.get("controls", {}).get(filter_) or {}
    return of_ttm.get(HOLDOUT) or {} if filter_ == HOLDOUT else found


def checked(numbers: Iterator[Number]) -> list[Number]:
    """All of them; DataError for a document that is not as its schema says."""
    try:
        return list(numbers)
    except _WRONG as error:
        raise DataError(f"is no complete results document ({error_line(error)})") from None


def _numbers(document: Mapping[str, Any], file: str) -> Iterator[Number]:
    for task in document["results"]:
        mine = list(_numbers_of_task(document, task, file))
        yield from mine
        yield from _tag_means(document, task, mine)


def _numbers_of_task(document: Mapping[str, Any], task: str, file: str) -> Iterator[Number]:
    date, model = date_of(document), str(document.get("model_name") or "")
    fingerprint = stated_model(document).fingerprint
    values = document["results"][task]
    tracks, intervals, ties, chance = (_of(document, key, task) for key in ("tracks", "ci", "ties", "chance"))
    extent = extent_of(document, task)
    data = document.get("task_hashes", {}).get(task)
    version = document.get("versions", {}).get(task)
    held_out = (_of(document, TTM, task).get(HOLDOUT) or {}).get("scored_groups")
    upwards = _of(document, "higher_is_better", task)
    for metric, name in numbers_in(values):
        key = key_of(metric, name)
        seeds = training_of(document, task, name).get("seeds")
        low, high = intervals.get(key) or (None, None)
        part = held_out if name in (HOLDOUT, HOLDOUT_RAW) else None
        yield Number(
            task=str(task),
            metric=metric,
            filter=name,
            method=name_of(name, tracks.get(key), metric),
            track=_track(tracks.get(key), name),
            value=finite(values[key]),
            stderr=finite(values.get(stderr_key(metric, name))),
            ci_low=finite(low),
            ci_high=finite(high),
            chance=finite(chance.get(metric)),
            ties=finite(ties.get(key)),
            seed_std=finite(values.get(seed_std_key(metric, name))),
            seeds=None if seeds is None else len(seeds),
            groups=extent.groups if part is None else len(part),
            groups_of_task=extent.of,
            version=_whole(version),
            data=None if data is None else str(data),
            model=model,
            date=date,
            file=file,
            seen=_seen_in(document, task),
            trained_on=training_data(document),
            limited=extent.limited,
            from_file=is_stored(document, task),
            fingerprint=fingerprint,
            higher_is_better=upwards.get(metric) is not False,
        )


def _track(stated: str | None, filter_: str) -> str | None:
    """The track of a number; older documents state that of scores for forced choices."""
    return TRACK_OF_FILTER[CHOICE] if filter_ == CHOICE and stated == "zero_shot" else stated


def _means(document: Mapping[str, Any], file: str) -> Iterator[Number]:
    for dataset, values in document.get("groups", {}).items():
        tasks = document["group_subtasks"][dataset]
        tracks = _of(document, "tracks", tasks[0]) if tasks else {}
        extent = together(extent_of(document, task) for task in tasks)
        for metric, name in numbers_in(values):
            track = _track(tracks.get(key_of(metric, name)), name)
            yield Number(
                task=str(dataset),
                metric=metric,
                filter=name,
                method=name_of(name, track, metric),
                track=track,
                value=finite(values[key_of(metric, name)]),
                stderr=finite(values.get(stderr_key(metric, name))),
                model=str(document.get("model_name") or ""),
                date=date_of(document),
                file=file,
                of_tasks=len(tasks),
                seen=_seen_in(document, *tasks),
                trained_on=training_data(document),
                groups=extent.groups,
                groups_of_task=extent.of,
                limited=extent.limited,
                fingerprint=stated_model(document).fingerprint,
                higher_is_better=not tasks or _of(document, "higher_is_better", tasks[0]).get(metric) is not False,
            )


def _tag_means(document: Mapping[str, Any], task: str, mine: Sequence[Number]) -> Iterator[Number]:
    """The means over values of a task's tags, with what belongs to its own numbers of the same metric and filter."""
    for name, mean in _of(document, "tag_means", task).items():
        numbers, intervals = mean["numbers"], mean.get("ci") or {}
        for one in (one for one in mine if one.key in numbers):
            low, high = intervals.get(one.key) or (None, None)
            yield replace(
                one,
                task=f"{task}{SLASH}{name}",
                value=finite(numbers[one.key]),
                stderr=finite(numbers.get(stderr_key(one.metric, one.filter))),
                ci_low=finite(low),
                ci_high=finite(high),
                ties=None,
                seed_std=finite(numbers.get(seed_std_key(one.metric, one.filter))),
                groups=_whole(mean["groups"]),
                groups_of_task=None if one.limited else _whole(mean["groups"]),
                cells=_whole(mean["cells"]),
            )


def _seen_in(document: Mapping[str, Any], *tasks: str) -> str | None:
    found = document.get("seen_in_training") or {}
    return ", ".join(dict.fromkeys(str(name) for task in tasks for name in found.get(task) or ())) or None


def date_of(document: Mapping[str, Any]) -> str | None:
    """When a document's run began, ISO 8601 in UTC."""
    seconds = finite(document.get("date"))
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r:.80} is no whole number from 0")
    return value


def _of(document: Mapping[str, Any], key: str, task: str) -> Mapping[str, Any]:
    """What a document says of a task under a key; nothing if it says nothing."""
    found: Mapping[str, Any] = (document.get(key) or {}).get(task) or {}
    return found
