"""A number of results, what it is called and where it ranks: tables, exports and comparisons read lists of these.

A number has a metric and a method (what was done to the model); results documents have it under ``METRIC,METHOD``, as
lm-evaluation-harness does (`as_entries`, `from_entries`). Its column is what readers call it: ``raw`` and
``SimpleMatch`` are both of the model without training (method ``none``), in the tracks ``zero_shot`` and ``matching``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from operator import attrgetter, mul
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ttmbench.types import Track

if TYPE_CHECKING:
    import pandas as pd

STORED_SCORES = "stored_scores"
"""The kind of source of what ``ttmbench score`` reads: the data themselves were not seen."""
STORED_NOTE = (
    "scored from a file, without images and captions: comparable with results from files that have the same task, "
    "version, shape and group ids"
)


@dataclass(frozen=True)
class Extent:
    """How many groups a number is of."""

    groups: int | None = None  # that were scored; None if unknown
    of: int | None = None  # that the task has; None if unknown
    limited: bool = False  # the user asked for a part of the task; unavailable images do not count as that

    @property
    def words(self) -> str:
        """Both counts, or one of a whole task.

        >>> Extent(8, 200, True).words, Extent(8, None, True).words, Extent(200, 200).words, Extent().words
        ('8 of 200', '8 of ?', '200', '-')
        """
        if self.groups is None:
            return "-"
        return f"{self.groups}" if self.groups == self.of else f"{self.groups} of {self.of or '?'}"


def together(parts: Iterable[Extent]) -> Extent:
    """The extent of a mean over several tasks: limited if one of them is.

    >>> together([Extent(8, 200, True), Extent(100, 100, False)])
    Extent(groups=108, of=300, limited=True)
    """
    known = list(parts)
    groups = [part.groups for part in known if part.groups is not None]
    totals = [part.of for part in known if part.of is not None]
    return Extent(
        sum(groups) if groups and len(groups) == len(known) else None,
        sum(totals) if totals and len(totals) == len(known) else None,
        any(part.limited for part in known),
    )


RAW = "none"
OVERFIT = "overfit"
TTM = "ttm"
ORACLE = "oracle"
CHOICE = "choice"
PLACEBO, SHUFFLE = "placebo", "shuffle"
AT = "@"  # between the task that a model was adapted to and the other one that it was measured on
SLASH = "/"  # between a task and a mean over values of its tags: no task has it in its name


@dataclass(frozen=True)
class Column:
    """What a number is called."""

    name: str  # in tables, pages and files
    method: str  # as in results documents
    track: Track | None  # where its numbers rank; None for controls, which rank nowhere
    published: str | None = None  # its name in the CSV of a published table
    remark: str = ""  # shown behind the name where there is room


RAW_COLUMN = Column("raw", RAW, "zero_shot", "raw")
SIMPLE_MATCH_COLUMN = Column("SimpleMatch", RAW, "matching", "simple_match")
OVERFIT_COLUMN = Column("overfit", OVERFIT, "test_time", "overfit")
TTM_COLUMN = Column("TTM", TTM, "test_time", "ttm")
ORACLE_COLUMN = Column("oracle", ORACLE, "oracle", "oracle", "uses labels")
CHOICE_COLUMN = Column("forced choice", CHOICE, "forced_choice")

COLUMNS = (
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    OVERFIT_COLUMN,
    TTM_COLUMN,
    Column("placebo", PLACEBO, None),
    Column("shuffle", SHUFFLE, None),
    ORACLE_COLUMN,
    CHOICE_COLUMN,
)
"""Every built-in column, in the order in which tables have them."""

BUILT_IN_METHODS = {column.method: column for column in reversed(COLUMNS)}
"""Built-in method -> its column (raw for the model without training); every other method has one of its own name."""


def column_of(method: str) -> Column:
    """The column of a method; of the model without training, that of its scores."""
    return BUILT_IN_METHODS.get(method) or Column(method, method, "test_time")


def columns_in(methods: Iterable[str]) -> list[Column]:
    """Every column there is for some methods, in the order of tables: other methods follow TTM, in the order given.

    >>> [column.name for column in columns_in(["none", "tent", "ttm", "zero"])][2:6]
    ['overfit', 'TTM', 'tent', 'zero']
    """
    at = COLUMNS.index(TTM_COLUMN) + 1
    others = (column_of(name) for name in dict.fromkeys(methods) if name not in BUILT_IN_METHODS)
    return [*COLUMNS[:at], *others, *COLUMNS[at:]]


MATCHES = ("group_match", "global_assignment_accuracy")
"""The metrics that match; of the model without training they are called SimpleMatch."""

NO_MODEL = "no_model"
PublishedTrack = Literal["zero_shot", "forced_choice", "supervised", "no_model"]
"""What an entry of a published table says of its model; how a number was made (its method) says the rest."""

TRACK_ORDER: tuple[Track, ...] = get_args(Track)
TRACK_TITLES: dict[str, str] = {
    "zero_shot": "Zero-shot: each image-caption pair is scored alone",
    "forced_choice": "Forced choice: the model picks an option; chance is lower (6.25 % in 2x2 groups)",
    "matching": "Matching: group match without training",
    "test_time": "Test-time: adapted to the unlabelled test images and captions",
    "supervised": "Supervised: the model or one of its settings was tuned on labels",
    "oracle": "Oracle: uses labels; an upper bound, not a result",
    NO_MODEL: "No model: published numbers of humans and of random guessing",
}
"""Every track and what it stands for, in the order of tables; the last one has published numbers alone."""

SEEN_MARK = "†"
SEEN_LEGEND = "† trained on images of the collection that the task's images are of"
FROM_FILE = "scored from a file"  # beside rows of stored scores, ranks and per-sample results
DISAGREES_MARK = "‡"
DISAGREES_LEGEND = "‡ sources disagree on this model; each row names its source"
UNRANKED_TITLE = "Controls: they explain a number and rank nowhere"


def supervised_tracks(tracks: Mapping[str, Track]) -> dict[str, Track]:
    """The tracks of a finetuned model's numbers: one for all but the oracle's, so that none ranks with others'.

    >>> supervised_tracks({"group_score,none": "zero_shot", "group_match,oracle": "oracle"})
    {'group_score,none': 'supervised', 'group_match,oracle': 'oracle'}
    """
    return {key: track if track == "oracle" else "supervised" for key, track in tracks.items()}


class Key(NamedTuple):
    """A key of results documents: which number it has, and what of it."""

    metric: str
    method: str  # empty in a samples line
    part: str = "value"  # or ``stderr``, ``seed_std``: attributes of `Number`


def key_of(metric: str, method: str, part: str = "value") -> str:
    """A number's key in a results document; `read_key` reads it.

    >>> key_of("group_match", "ttm"), key_of("group_match", "ttm", "stderr")
    ('group_match,ttm', 'group_match_stderr,ttm')
    """
    return f"{metric},{method}" if part == "value" else f"{metric}_{part},{method}"


def read_key(key: str) -> Key:
    """What a key of a results document, or of the metrics of a samples line, stands for.

    >>> read_key("group_match_seed_std,ttm"), read_key("group_match")
    (Key(metric='group_match', method='ttm', part='seed_std'), Key(metric='group_match', method='', part='value'))
    """
    metric, _, method = key.partition(",")
    for part in ("stderr", "seed_std"):
        if metric.endswith(f"_{part}"):
            return Key(metric.removesuffix(f"_{part}"), method, part)
    return Key(metric, method)


@dataclass(frozen=True)
class Origin:
    """Where numbers come from: the run or the paper, its model and its data. What is unknown is None or empty."""

    file: str = ""  # the results document; of a published number, the paper and its table
    date: str | None = None  # of the run, ISO 8601 in UTC
    from_file: bool = False  # of stored scores, ranks or answers: images and captions are unknown
    published: bool = False  # copied from a paper
    published_as: str = ""  # of a published number whose model is known here, what its source calls the model
    disagrees: str | None = None  # of a published number, what other sources print for the same model
    fingerprint: str | None = None  # of the model; None of stored scores
    trained_on: str | None = None  # the model's image collections, or ``none``, ``unknown``; None if published
    seen: str | None = None  # those of them that the task's images are of, comma-separated
    version: int | None = None  # of the task
    data: str | None = None  # fingerprint of the data


@dataclass(frozen=True)
class Number:
    """One metric of one method on one task. Rates are fractions; what is undefined or unknown is None."""

    task: str  # of a mean over tasks, their dataset; over values of tags, ``task/name``; of another task, ``a@b``
    metric: str
    method: str  # what was done to the model: ``none``, ``ttm``, ...; a paper may have one of its own
    value: float | None  # mean over groups and seeds
    stderr: float | None = None  # over groups
    interval: tuple[float, float] | None = None  # both ends of the 95 % interval over groups
    chance: float | None = None  # expected value of random scores
    own_chance: bool = False  # ``chance`` is the level of the method, and not of the metric
    ties: float | None = None  # groups in which the metric met an equality
    seeds: tuple[int, ...] = ()  # none for the model without training
    seed_std: float | None = None  # standard deviation over seeds
    track: str | None = None  # where it ranks; None for controls, which rank nowhere
    higher_is_better: bool = True
    extent: Extent = field(default_factory=Extent)  # how many groups were scored, of how many
    parts: int | None = None  # how many tasks, or kinds of groups by tags, it is the mean of; None: over groups
    adapted_to: str | None = None  # the task that the model was adapted to, if it was measured on another one
    model: str = ""  # as the run calls it; in a table of several models, a name that differs from the others
    setting: str = ""  # of the run (`ttmbench.results.models`), in brackets in ``model``; empty if all are alike
    origin: Origin = field(default_factory=Origin)  # the run or paper, its model and data

    def row(self) -> dict[str, object]:
        """The columns of tables and files, in their order; ``model`` is without the setting."""
        low, high = self.interval or (None, None)
        of_tags = SLASH in self.task
        return {
            **{"task": self.task, "metric": self.metric, "method": self.method, "method_name": self.column},
            **{"track": self.track, "value": self.value, "stderr": self.stderr, "ci_low": low, "ci_high": high},
            **{"chance": self.chance, "ties": self.ties, "seed_std": self.seed_std, "seeds": self.n_seeds},
            **{"groups": self.extent.groups, "groups_of_task": self.extent.of, "version": self.origin.version},
            **{"data": self.origin.data, "model": self.own_model, "date": self.origin.date, "file": self.origin.file},
            **{"of_tasks": None if of_tags else self.parts, "published": self.origin.published},
            **{"limited": self.extent.limited, "fingerprint": self.origin.fingerprint, "seen": self.origin.seen},
            **{"trained_on": self.origin.trained_on, "higher_is_better": self.higher_is_better},
            **{"cells": self.parts if of_tags else None, "adapted_to": self.adapted_to},
            **{"disagrees": self.origin.disagrees, "from_file": self.origin.from_file, "setting": self.setting},
        }

    @property
    def key(self) -> str:
        """``metric,method``, its key in a results document."""
        return key_of(self.metric, self.method)

    @property
    def column(self) -> str:
        """What readers call the method: ``raw``, ``SimpleMatch``, ``TTM``, ..."""
        is_match = self.track == "matching" or (self.track in (None, "supervised") and self.metric in MATCHES)
        return SIMPLE_MATCH_COLUMN.name if is_match and self.method == RAW else column_of(self.method).name

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
    def limited(self) -> bool:
        """Whether it is of a run on a part of the task (``--limit``, ``--samples``): no result of the task."""
        return self.extent.limited

    @property
    def n_seeds(self) -> int | None:
        """How many seeds; None for the model without training."""
        return len(self.seeds) or None


ENTRIES = ("results", "ci", "chance", "ties", "tracks")
"""The keys of a results document that have a task's numbers."""
UNTRAINED = (RAW, CHOICE)  # methods without seeds


def as_entries(numbers: Iterable[Number]) -> dict[str, dict[str, Any]]:
    """The `ENTRIES` of a task's numbers in a results document, by ``metric,method``; chance by metric, too."""
    entries = {name: dict[str, Any]() for name in ENTRIES}
    results, ci, chance, ties, tracks = entries.values()
    for number in numbers:
        key, metric, method = number.key, number.metric, number.method
        results |= {key: number.value, key_of(metric, method, "stderr"): number.stderr}
        if method not in UNTRAINED and number.value is not None:
            results[key_of(metric, method, "seed_std")] = number.seed_std
        ci[key] = None if number.interval is None else list(number.interval)
        ties[key] = number.ties
        if number.own_chance:
            chance[key] = number.chance
        chance.setdefault(metric, None if number.own_chance else number.chance)
        if number.track is not None:
            tracks[key] = number.track
    return entries


def from_entries(task: str, entries: Mapping[str, Any], **known: Any) -> list[Number]:
    """The numbers of a task from its `ENTRIES` in a results document; ``known`` are attributes of all of them."""
    results, ci, chance, ties, tracks = (entries.get(name, {}) for name in ENTRIES)
    numbers = []
    for key, value in results.items():
        metric, method, part = read_key(key)
        if method and part == "value":
            about = {part: results.get(key_of(metric, method, part)) for part in ("stderr", "seed_std")}
            about |= {"chance": chance.get(key, chance.get(metric)), "ties": ties.get(key), "track": tracks.get(key)}
            about["interval"] = tuple(ends) if (ends := ci.get(key)) else None
            numbers.append(Number(task, metric, method, value, own_chance=key in chance, **about, **known))
    return numbers


def newest(numbers: Iterable[Number]) -> list[Number]:
    """One number for each model, setting, task, metric and method in the order of the first; several are `merged`."""
    return [merged(same)[0] for same in same_rows(numbers)]


def rows_of(numbers: Iterable[Number]) -> dict[tuple[str, str], list[Number]]:
    """The `newest` numbers of each row of a table with a column a method: a model and its setting.

    The untrained model appears once: in the row of its only setting, else in a row without one.
    """
    given = list(numbers)
    settings: dict[tuple[str, str], dict[str, None]] = {}  # model, file -> settings of what was adapted in it
    for one in given:
        if one.method not in UNTRAINED:
            settings.setdefault((one.own_model, one.origin.file), {})[one.setting] = None
    adapted: dict[str, dict[str, None]] = {}
    for one in given:
        if one.method in UNTRAINED:
            adapted.setdefault(one.model, {}).update(settings.get((one.own_model, one.origin.file), {}))
    rows: dict[tuple[str, str], list[Number]] = {}
    for one in newest(given):
        of_run = adapted.get(one.model, {}) if one.method in UNTRAINED else {}
        setting = next(iter(of_run)) if len(of_run) == 1 else one.setting
        rows.setdefault((one.own_model, setting), []).append(one)
    return rows


def same_rows(
    numbers: Iterable[Number], row: Callable[[Number], object] = attrgetter("model", "task", "metric", "method")
) -> list[list[Number]]:
    """Numbers by row, which is a model, setting, task, metric and method if nothing else is said."""
    same: dict[object, list[Number]] = {}
    for number in numbers:
        same.setdefault(row(number), []).append(number)
    return list(same.values())


def merged(same: Sequence[Number]) -> tuple[Number, list[Number]]:
    """The newest of some numbers of one row, averaged with those of other seeds; the others.

    Standard errors and interval ends are averaged too, which overstates them.
    """
    # The whole task before a part, a larger part, then the newer run; of equals the last.
    first = max(
        reversed(same), key=lambda one: (not one.limited, one.limited and (one.groups or 0), one.origin.date or "")
    )
    chosen, left = [first], []
    for number in sorted(same, key=lambda number: number.origin.date or "", reverse=True):
        known = {seed for one in chosen for seed in one.seeds}
        is_other = bool(number.seeds) and bool(first.seeds) and known.isdisjoint(number.seeds)
        if is_other and (number.extent, number.origin.data) == (first.extent, first.origin.data):
            chosen.append(number)
        elif number is not first:
            left.append(number)
    if len(chosen) == 1:
        return first, left
    counts = [len(one.seeds) for one in chosen]
    total = sum(counts)

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(counts):
            return None
        return known[0] if min(known) == max(known) else sum(map(mul, known, counts)) / total

    value, spread = mean(one.value for one in chosen), None
    low, high = (mean(one.interval and one.interval[end] for one in chosen) for end in (0, 1))
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
        seeds=tuple(seed for one in chosen for seed in one.seeds),
    ), left


_WHOLE = ("version", "seeds", "groups", "groups_of_task", "of_tasks", "cells")
_YES_OR_NO = ("published", "limited", "higher_is_better", "from_file")
_RATES = ("value", "stderr", "ci_low", "ci_high", "chance", "ties", "seed_std")


def to_frame(numbers: Iterable[Number]) -> pd.DataFrame:
    """Numbers as a table: a row a number, a column an attribute; undefined rates are NaN, counts Int64."""
    import pandas as pd

    kinds = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_YES_OR_NO, "bool") | dict.fromkeys(_RATES, "float64")
    rows, columns = [number.row() for number in numbers], list(Number("", "", "", None).row())
    return pd.DataFrame(rows, columns=columns, dtype=object).astype(kinds)


def sample_value(metrics: object) -> dict[str, float] | None:
    """The defined numbers of a samples line; None if they are no such thing."""
    if not isinstance(metrics, Mapping):
        return None
    known = {str(key): value for key, value in metrics.items() if value is not None}
    is_rate = all(type(value) in (int, float) and 0 <= value <= 1 for value in known.values())
    return {key: float(value) for key, value in known.items()} if is_rate else None
