"""What a number is called, where it ranks, and how much of a task it is of.

A number has a metric and a filter (what was done to the model). Its column is what readers call it: ``raw`` and
``SimpleMatch`` are both of the model without training (filter ``none``), in the tracks ``zero_shot`` and ``matching``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ttmbench.types import Track

STORED_SCORES, STORED_ANSWERS = "stored_scores", "stored_answers"
"""Kinds of source of what ``ttmbench score`` reads: the data themselves were not seen."""
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
        """Both counts.

        >>> Extent(8, 200, True).words, Extent(8, None, True).words, Extent(None, None, False).words
        ('8 of 200', '8 of ?', '-')
        """
        return "-" if self.groups is None else f"{self.groups} of {'?' if self.of is None else self.of}"


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
SIMPLE_MATCH = "simple_match"
TTM = "ttm"
ORACLE = "oracle"
CHOICE = "choice"
PLACEBO, SHUFFLE = "placebo", "shuffle"
HOLDOUT, HOLDOUT_RAW = "holdout", "holdout_raw"
AT = "@"  # between the task that a model was adapted to and the other one that it was measured on
SLASH = "/"  # between a task and a mean over values of its tags: no task has it in its name


@dataclass(frozen=True)
class Column:
    """What a number is called."""

    name: str  # in tables, pages and files
    filter: str  # as in results documents
    track: Track | None  # where its numbers rank; None for controls and held-out groups, which rank nowhere
    published: str | None = None  # its name in the CSV of a published table
    remark: str = ""  # shown behind the name where there is room

    @property
    def long_name(self) -> str:
        """The name and the remark."""
        return f"{self.name} ({self.remark})" if self.remark else self.name


RAW_COLUMN = Column("raw", RAW, "zero_shot", "raw")
SIMPLE_MATCH_COLUMN = Column("SimpleMatch", RAW, "matching", "simple_match")
OVERFITTED_COLUMN = Column("overfitted", SIMPLE_MATCH, "test_time", "overfitted")
TTM_COLUMN = Column("TTM", TTM, "test_time", "ttm")
ORACLE_COLUMN = Column("oracle", ORACLE, "oracle", "oracle", "uses labels")
CHOICE_COLUMN = Column("forced choice", CHOICE, "forced_choice")

COLUMNS = (
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    OVERFITTED_COLUMN,
    TTM_COLUMN,
    Column("placebo", PLACEBO, None),
    Column("shuffle", SHUFFLE, None),
    Column("held out, raw", HOLDOUT_RAW, None),
    Column("held out, adapted", HOLDOUT, None),
    ORACLE_COLUMN,
    CHOICE_COLUMN,
)
"""Every built-in column, in the order in which tables have them."""

BUILT_IN_FILTERS = frozenset(column.filter for column in COLUMNS)
"""Every other filter is the name of a test-time method."""


def columns_in(filters: Iterable[str]) -> list[Column]:
    """Every column there is for some filters, in the order of tables: other methods follow TTM, in the order given.

    >>> [column.name for column in columns_in(["none", "tent", "ttm", "zero"])][2:6]
    ['overfitted', 'TTM', 'tent', 'zero']
    """
    others = [Column(name, name, "test_time") for name in dict.fromkeys(filters) if name not in BUILT_IN_FILTERS]
    at = COLUMNS.index(TTM_COLUMN) + 1
    return [*COLUMNS[:at], *others, *COLUMNS[at:]]


PUBLISHED = {column.published: column for column in COLUMNS if column.published is not None}
"""Name in the CSV of a published table -> column."""

UNRANKED = tuple(column.filter for column in COLUMNS if column.track is None)
TRACK_OF_FILTER: dict[str, Track] = {
    column.filter: column.track for column in COLUMNS if column.track in ("forced_choice", "test_time", "oracle")
}
"""Built-in filters whose numbers have one track whatever the metric is (`track_of`)."""

NO_MODEL = "no_model"
PublishedTrack = Literal["zero_shot", "forced_choice", "supervised", "no_model"]
"""What an entry of a published table says of its model; how a number was made (its method) says the rest."""

TRACK_ORDER: tuple[Track, ...] = get_args(Track)
TRACK_TITLES: dict[str, str] = {
    "zero_shot": "Zero-shot: each image-caption pair is scored alone",
    "forced_choice": "Forced choice: the model picks an option, so chance differs from that of scores",
    "matching": "Matching: knows which images and captions form a group; no training",
    "test_time": "Test-time: adapted to the unlabelled test images and captions",
    "supervised": "Supervised: the model or one of its settings was tuned on labels",
    "oracle": "Oracle: uses labels; an upper bound, not a result",
    NO_MODEL: "No model: published numbers of humans and of random guessing",
}
"""Every track and what it stands for, in the order of tables; the last one has published numbers alone."""

SEEN_MARK = "†"
SEEN_LEGEND = "† trained on images of the collection that the task's images are of"
FROM_FILE = "scored from a file"  # beside rows of stored scores, ranks and answers
DISAGREES_MARK = "‡"
DISAGREES_LEGEND = "‡ another source publishes another value for the same model; each row names its source"
UNRANKED_TITLE = "Controls and held-out groups: they explain a number and rank nowhere"


def track_of(filter_: str, metric_track: Track, stated: Track | None = None) -> Track | None:
    """The track of a number: that which its column states, else the filter's; a metric's own for the raw model alone.

    >>> track_of("none", "matching"), track_of("tent", "zero_shot"), track_of("sinkhorn", "zero_shot", "matching")
    ('matching', 'test_time', 'matching')
    >>> track_of("placebo", "matching") is None
    True
    """
    if filter_ in UNRANKED:
        return None
    return stated or TRACK_OF_FILTER.get(filter_) or (metric_track if filter_ == RAW else "test_time")


def chance_in(levels: Mapping[str, float | None], metric: str, filter_: str) -> float | None:
    """The chance level of a number: that of its method (``metric,filter``) if it has one of its own, else the metric's.

    >>> levels = {"group_score": 0.25, "group_score,sinkhorn": 0.5, "group_score,plugin": None}
    >>> [chance_in(levels, "group_score", name) for name in ("none", "sinkhorn", "plugin")]
    [0.25, 0.5, None]
    """
    key = key_of(metric, filter_)
    return levels[key] if key in levels else levels.get(metric)


def supervised_tracks(tracks: Mapping[str, Track]) -> dict[str, Track]:
    """The tracks of a finetuned model's numbers: one for all but the oracle's, so that none ranks with others'.

    >>> supervised_tracks({"group_score,none": "zero_shot", "group_match,oracle": "oracle"})
    {'group_score,none': 'supervised', 'group_match,oracle': 'oracle'}
    """
    return {key: track if track == "oracle" else "supervised" for key, track in tracks.items()}


def name_of(filter_: str, track: str | None = None, metric: str | None = None) -> str:
    """The name of a number's column; of a plugin's filter, the filter itself. ``metric`` helps where no track does.

    >>> name_of("none", "matching"), name_of("none", "zero_shot"), name_of("none"), name_of("simple_match", "test_time")
    ('SimpleMatch', 'raw', 'raw', 'overfitted')
    >>> name_of("none", "supervised", "group_match"), name_of("none", "supervised", "group_score")
    ('SimpleMatch', 'raw')
    """
    if track == "supervised" or (track is None and metric is not None and filter_ == RAW):
        from ttmbench.metrics import METRICS  # which needs scipy, and tables of other models do not

        track = next((spec.track for spec in METRICS if spec.name == metric), None)
    mine = [column for column in COLUMNS if column.filter == filter_]
    return next((column.name for column in mine if column.track == track), mine[0].name if mine else filter_)


def key_of(metric: str, filter_: str) -> str:
    """A number's key in a results document.

    >>> key_of("group_match", "ttm")
    'group_match,ttm'
    """
    return f"{metric},{filter_}"


def split_key(key: str) -> tuple[str, str]:
    """The metric and the filter of a key; ValueError if it has no comma, or several.

    >>> split_key("group_match_stderr,ttm")
    ('group_match_stderr', 'ttm')
    """
    metric, name = key.split(",")
    return metric, name


def stderr_key(metric: str, filter_: str) -> str:
    """The key of a number's standard error over groups."""
    return key_of(f"{metric}_stderr", filter_)


def seed_std_key(metric: str, filter_: str) -> str:
    """The key of a number's standard deviation over seeds."""
    return key_of(f"{metric}_seed_std", filter_)


def base_metric(metric: str) -> str:
    """The metric whose value, error or spread is meant.

    >>> base_metric("group_match_stderr"), base_metric("group_match_seed_std"), base_metric("group_match")
    ('group_match', 'group_match', 'group_match')
    """
    return metric.removesuffix("_stderr").removesuffix("_seed_std")


def numbers_in(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Metric and filter of the keys that are numbers: neither an error nor a spread, and no key without a filter."""
    pairs = [split_key(key) for key in keys if key.count(",") == 1]
    return [(metric, name) for metric, name in pairs if base_metric(metric) == metric]


def in_table_order(numbers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of metric and filter: metric by metric in the order given, each with its columns in that of tables.

    >>> in_table_order([("a", "none"), ("a", "oracle"), ("a", "tent"), ("b", "none")])
    [('a', 'none'), ('a', 'tent'), ('a', 'oracle'), ('b', 'none')]
    """
    pairs = list(numbers)
    metrics = list(dict.fromkeys(metric for metric, _ in pairs))
    filters = list(dict.fromkeys(column.filter for column in columns_in(name for _, name in pairs)))
    return sorted(pairs, key=lambda pair: (metrics.index(pair[0]), filters.index(pair[1])))


FRACTIONS = (
    *("text_score", "image_score", "group_score", "group_match", "individual_match", "global_assignment_accuracy"),
    *("text_accuracy", "image_accuracy", "original_accuracy", "augmented_accuracy", "brittleness", "text_only_score"),
)
_RANKED = re.compile(r"(?:(?:i2t|t2i)_recall_at_|accuracy_top)\d+(?:_as_topk)?")
LARGEST = 1e300


def wrong_number(key: str, value: object) -> str | None:
    """What is wrong with a number of results or samples, in words that follow it; None if nothing is.

    >>> wrong_number("group_match,none", 1.5)
    'which is not a fraction'
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return "which is not a finite number"
    metric = key.partition(",")[0]
    if (base_metric(metric) in FRACTIONS or _RANKED.fullmatch(base_metric(metric))) and not 0 <= value <= 1:
        return "which is not a fraction"
    return "which is a negative spread" if base_metric(metric) != metric and value < 0 else None


def sample_value(metrics: object) -> dict[str, float] | None:
    """The defined numbers of a samples line; None if they are no such thing."""
    if not isinstance(metrics, Mapping):
        return None
    if any(wrong_number(str(key), value) for key, value in metrics.items()):
        return None
    return {str(key): float(value) for key, value in metrics.items() if value is not None}
