"""Results of many runs merged, with the newest valid row for each model and task, and published numbers beside them.

A row is one model with one setting on one task under one filter. Rows of another task version or other data are listed
as conflicts. Rows of a part of a task are marked, follow those of whole tasks, and replace none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TypedDict

from ttmbench._util.console import one_line
from ttmbench.errors import UsageError
from ttmbench.report.table import NOTHING, csv_text
from ttmbench.report.terminal import headline
from ttmbench.results.document import UNKNOWN, MethodCost, ResultsDocument, Transfer
from ttmbench.results.numbers import (
    CHOICE,
    DISAGREES_LEGEND,
    FROM_FILE,
    NO_MODEL,
    RAW,
    SEEN_LEGEND,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM,
    Number,
    merged,
    newest,
)
from ttmbench.results.reader import ResultsFile, read_files
from ttmbench.results.stored_files import SCHEMA_VERSION
from ttmbench.scoring.choice_arrays import choice_chance

COST_FIELDS = (
    *("seconds", "images_per_second", "pairs_per_second", "tokens_per_second"),
    "peak_memory_bytes",
)
_SCORING = ("prepare", "score")


def cost_of(document: ResultsDocument, task: str, filter_: str) -> dict[str, float | None]:
    """The cost of a task's numbers under a filter, by `COST_FIELDS`; None where it is not known.

    ``seconds`` are those of preparing and scoring the task, with one seed of what the filter stands for; they are not
    known where scores came from the cache. Rates are of scoring. Memory is of the whole task, with all methods of
    the run.
    """
    stages, data = document.timing.get(task, {}), document.datasets.get(task)
    scored = sum(stages.get(stage, 0.0) for stage in _SCORING)
    trained = _seconds_of_seed(document, task, filter_)
    is_known = scored > 0 and data is not None and data.from_store is None and trained is not None
    used = document.efficiency.get(task)
    return {
        "seconds": scored + (trained or 0.0) if is_known else None,
        **{name: None if used is None else getattr(used, name) for name in COST_FIELDS[1:]},
    }


def _seconds_of_seed(document: ResultsDocument, task: str, filter_: str) -> float | None:
    """What one seed of a method took; 0 for the model as it is, None where that is not known."""
    training = document.training(task, filter_)
    if training is None:
        return 0.0
    costs: Sequence[MethodCost] | None = getattr(training, "cost", None)
    return fmean(cost.seconds for cost in costs) if costs else None


OWN_FILE = "leaderboard.json"
NOT_RUN = "published numbers of "  # prefix of skipped published numbers, which have no file
CELL = 200  # characters of a name in a table
ROW = (
    *("track", "model", "task", "version", "metric", "method", "value", "stderr", "seed_std", "seeds", "groups"),
    *("groups_of_task", "limited", "fingerprint", "data", "date", "source", "published", "seen", "trained_on"),
    *("disagrees", "from_file", "chance"),
)
COST_COLUMNS = (
    ("seconds", "seconds", 1.0),
    ("images/s", "images_per_second", 1.0),
    ("pairs/s", "pairs_per_second", 1.0),
    ("tokens/s", "tokens_per_second", 1.0),
    ("peak GB", "peak_memory_bytes", 1e9),
)
"""Title, field and unit."""


class Conflict(TypedDict):
    """A task, and the version, groups, data and files of each variant of its rows."""

    task: str
    variants: list[dict[str, object]]


@dataclass(frozen=True)
class PublishedSource:
    """Where published numbers come from."""

    title: str  # of the paper or repository
    url: str | None = None  # where it can be read; None if unknown
    rules: Mapping[str, str] = field(default_factory=dict)  # how it differs from a run here, by subject


@dataclass(frozen=True)
class Published:
    """Published numbers, and what is known about them."""

    numbers: Sequence[Number] = ()  # under the names that tasks, metrics and models have here
    sources: Mapping[str, PublishedSource] = field(default_factory=dict)  # by `Number.file`
    configs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # task -> keys of a task file
    parameters: Mapping[str, float] = field(default_factory=dict)  # model -> how many, as stated elsewhere
    notes: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (file, model) -> what is uncertain


@dataclass(frozen=True)
class Leaderboard:
    """The merged rows, and what was skipped and why."""

    rows: list[Number]  # by track, task, metric and method, best value first; runs on a part of a task last
    skipped: dict[str, str] = field(default_factory=dict)  # file or published task -> why
    superseded: list[tuple[Number, Number]] = field(default_factory=list)  # with what takes its place
    conflicts: list[Conflict] = field(default_factory=list)  # tasks with rows of several versions or data
    transfers: list[Transfer] = field(default_factory=list)  # the newest of each; never ranked
    runs: list[ResultsFile] = field(default_factory=list)  # every document, with its rows

    def cost(self, row: Number) -> dict[str, float | None]:
        """What a number cost (`cost_of`); all unknown of published ones."""
        document = None if row.published else self._documents.get(row.file)
        return dict.fromkeys(COST_FIELDS) if document is None else cost_of(document, row.own_task, row.method)

    @cached_property
    def _documents(self) -> dict[str, ResultsDocument]:
        return {run.file: run.document for run in self.runs}


def merge(folder: Path, published: Sequence[Number] = (), every_task: bool = False) -> Leaderboard:
    """Merge every results document of a folder, searched recursively, and published numbers.

    Published numbers of tasks that no run has are skipped without ``every_task``. UsageError if it is not a folder, or
    has no results document.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} must be a directory with results, such as the --output_path of runs")
    files, damaged = read_files([folder])
    if not files:
        raise UsageError(f"{folder} has no results document; runs write them with --output_path {folder}")
    skipped = {path.relative_to(folder).as_posix(): why for path, why in damaged.items()}
    runs = [replace(run, called=replace(run.called, model=one_line(run.called.model, CELL))) for run in files]
    for run in runs:
        if not run.ranked:
            skipped[run.file] = f"has no finished task (status {run.document.status})"
    newest, superseded = _newest(row for run in runs for row in run.ranked)
    tasks = {row.task for row in (*newest, *(published if every_task else ()))}
    documents = [run.document for run in runs]
    rows = [*newest, *with_chance((row for row in published if row.task in tasks), documents)]
    for task in dict.fromkeys(row.task for row in published if row.task not in tasks):
        skipped[f"{NOT_RUN}{task}"] = "no run has this task"
    downwards = {row.metric for row in rows if not row.higher_is_better}  # published numbers lack the direction
    rows = [replace(row, higher_is_better=False) if row.metric in downwards else row for row in rows]
    rows.sort(key=_order)
    transfers = newest_transfers(row for run in runs for row in run.transfers)
    return Leaderboard(rows, skipped, superseded, _conflicts(rows), transfers, runs)


def newest_transfers(rows: Iterable[Transfer]) -> list[Transfer]:
    """The newest row for each model, adapted task, measured task and metric; the whole task precedes a part of it."""
    newest: dict[tuple[str | None, ...], Transfer] = {}
    for row in rows:
        key = (row.number.model, row.number.adapted_to, row.measured_on, row.number.metric, row.number.method)
        before = newest.get(key)
        if before is None or (not row.number.limited, row.date) >= (not before.number.limited, before.date):
            newest[key] = row
    return sorted(newest.values(), key=lambda row: (row.number.model, str(row.number.adapted_to)))


def _newest(rows: Iterable[Number]) -> tuple[list[Number], list[tuple[Number, Number]]]:
    """The newest row for each model, task, version, metric and method; and (older row, newest row)."""
    candidates: dict[tuple[object, ...], list[Number]] = {}
    for row in rows:
        key = (row.model, row.track, row.task, row.version, row.metric, row.column, row.limited)
        candidates.setdefault(key, []).append(row)
    newest, superseded = [], []
    for same in candidates.values():
        first, left = merged(same)
        newest.append(first)
        superseded += [(row, first) for row in left if row.file != first.file]
    return newest, superseded


def as_document(board: Leaderboard, cost: bool = False) -> dict[str, object]:
    """The leaderboard as JSON values; with ``cost``, of each row."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "leaderboard",
        "tracks": [track for track in TRACK_TITLES if any(row.track == track for row in board.rows)],
        "rows": [as_row(row) | (board.cost(row) if cost else {}) for row in board.rows],
        "skipped": board.skipped,
        "superseded": [
            {"what": f"{old.model}, {old.task}, {old.metric}, {old.column}", "file": old.file, "by": new.file}
            for old, new in board.superseded
        ],
        "conflicts": board.conflicts,
        **({"transfers": [transfer.row() for transfer in board.transfers]} if board.transfers else {}),
    }


def as_row(number: Number) -> dict[str, object]:
    """A row of ``leaderboard.json`` and of the CSV, with the setting where runs have several."""
    about = number.row() | {"source": number.file, "model": number.own_model if number.setting else number.model}
    row = {key: about[key] for key in ROW}
    return row | {"setting": number.setting} if number.setting else row


def with_chance(published: Iterable[Number], documents: Iterable[ResultsDocument]) -> list[Number]:
    """Published numbers, with the chance level of forced choices by the shape of the task in documents."""
    shapes = {
        task: data.shape
        for document in documents
        for task, data in document.datasets.items()
        if document.configs.get(task, {}).get("kind", "groups") == "groups"
    }
    numbers = []
    for row in published:
        shape = shapes.get(row.own_task) if row.method == CHOICE and row.chance is None else None
        numbers.append(replace(row, chance=choice_chance(*shape).get(row.metric)) if shape else row)
    return numbers


def beats_chance(row: Number) -> bool:
    """Whether a number is better than random scores; also where their level is unknown."""
    if row.chance is None or row.value is None:
        return row.value is not None
    return row.value > row.chance if row.higher_is_better else row.value < row.chance


def legends(rows: Sequence[Number]) -> list[str]:
    """The meanings of the marks that appear."""
    lines = []
    if any(row.seen for row in rows):
        unknown = sorted({row.model for row in rows if row.trained_on == UNKNOWN})
        lines.append(f"{SEEN_LEGEND}; unknown for {', '.join(unknown)}" if unknown else SEEN_LEGEND)
    if any(row.disagrees for row in rows):
        lines.append(DISAGREES_LEGEND)
    return lines


def _order(row: Number) -> tuple[object, ...]:
    value = -(row.value or 0.0) if row.higher_is_better else (row.value or 0.0)
    track = list(TRACK_TITLES).index(row.track or "")
    return (track, row.task, row.metric, row.limited, row.column, value, row.model)


def _conflicts(rows: Sequence[Number]) -> list[Conflict]:
    """Tasks whose rows differ in version, number of groups or fingerprint of data.

    For a part of a task only the version counts beside whole ones. Scores from a file do not state their data, so only
    version and size count beside runs.
    """
    conflicts: list[Conflict] = []
    for task in dict.fromkeys(row.task for row in rows if not row.published):
        of_task = [row for row in rows if row.task == task and not row.published]
        versions = {row.version for row in of_task if not row.limited}
        of_runs = {(row.version, row.groups) for row in of_task if not row.limited and not row.from_file}
        kinds: dict[tuple[int | None, int | None, str | None], set[str]] = {}
        for row in of_task:
            if row.from_file and (row.version, row.groups) in of_runs:
                continue
            if not row.limited or not versions or row.version not in versions:
                kinds.setdefault((row.version, row.groups, row.data), set()).add(row.file)
        if len(kinds) > 1:
            variants: list[dict[str, object]] = [
                {"version": version, "groups": groups, "data": data, "files": sorted(files)}
                for (version, groups, data), files in kinds.items()
            ]
            conflicts.append({"task": task, "variants": variants})
    return conflicts


def to_csv(board: Leaderboard, cost: bool = False) -> str:
    """One line per row, in fractions; with ``cost``, also `COST_FIELDS`: seconds, rates per second and bytes."""
    columns = (*ROW, "setting") if any(row.setting for row in board.rows) else ROW
    rows = ({"setting": "", **as_row(row), **(board.cost(row) if cost else {})} for row in board.rows)
    return csv_text((*columns, *COST_FIELDS) if cost else columns, rows)


def cost_text(value: float | None, unit: float) -> str:
    """A number in its unit, to three digits."""
    return NOTHING if value is None else f"{value / unit:.3g}" if value < 1000 * unit else f"{value / unit:.0f}"


_MARKED = {"supervised": "supervised", "forced_choice": "forced choice", NO_MODEL: "no model"}
"""Tracks that are added to the name of the model, since a column holds numbers of several tracks."""


@dataclass(frozen=True)
class AnswerRow:
    """A task and a model.

    Attributes:
        task: its name.
        model: its name, with the track where the column does not imply it.
        raw: the group score, else the text score; forced choices of a model that only chooses; the first metric of a
            task that ranks (retrieval, classification).
        matched: SimpleMatch: the group match, for global tasks the assignment accuracy.
        ttm: the same metric after TTM.
        limited: of a part of the task's groups.
        source: the paper and its table; empty for a run.
    """

    task: str
    model: str
    raw: Number | None
    matched: Number | None
    ttm: Number | None
    limited: bool = False
    source: str = ""

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers of the row, without the missing ones."""
        return tuple(number for number in (self.raw, self.matched, self.ttm) if number is not None)

    @property
    def gain(self) -> float | None:
        """TTM minus SimpleMatch; None unless both are known for one metric."""
        if self.ttm is None or self.matched is None or self.ttm.metric != self.matched.metric:
            return None
        before, after = self.matched.value, self.ttm.value
        return None if before is None or after is None else after - before

    @property
    def disagrees(self) -> str:
        """Other published values for the same model name; empty if they agree."""
        return "; ".join(f"{number.metric}: {number.disagrees}" for number in self.numbers if number.disagrees)

    @property
    def extents(self) -> str:
        """The numbers of scored groups and of all groups."""
        return ", ".join(dict.fromkeys(number.extent.words for number in self.numbers if number.groups is not None))


def answer_of(runs: Sequence[ResultsFile], published: Sequence[Number] = ()) -> list[AnswerRow]:
    """The rows of a report's first table.

    Args:
        runs: where several have a number, that of the newest run of the whole task counts.
        published: numbers from papers; tasks that no run has are skipped.

    Returns:
        The rows by task, in the order of the runs: models by name (supervised ones last), then parts of the task, then
        published numbers; a published model follows the run with its name.
    """
    is_global = {
        task: config.get("matching") == "global" for run in runs for task, config in run.document.configs.items()
    }
    numbers = [number for run in runs for number in run.numbers if number.value is not None]
    published = with_chance(published, (run.document for run in runs))
    rows: list[AnswerRow] = []
    for task in dict.fromkeys(number.task for number in numbers):
        of_task = [number for number in numbers if number.task == task]
        ours = _of_runs(task, of_task, is_global.get(task, False))
        chances = dict.fromkeys(number.metric for number in of_task)
        chances |= {number.metric: number.chance for number in of_task if number.method in (RAW, TTM)}
        theirs = _of_papers(task, [row for row in published if row.task == task], chances, is_global.get(task, False))
        for row in ours:
            rows += [row, *(other for other in theirs if other.model == row.model and not row.limited)]
        known = {row.model for row in ours if not row.limited}
        rows += [other for other in theirs if other.model not in known]
    return rows


def _of_runs(task: str, numbers: Sequence[Number], is_global: bool) -> list[AnswerRow]:
    rows = []
    for limited in (False, True):
        by_model: dict[str, list[Number]] = {}
        for number in newest(number for number in numbers if number.limited is limited):
            by_model.setdefault(number.model, []).append(number)
        supervised = {model for model, same in by_model.items() if any(row.track == "supervised" for row in same)}
        for model, same in sorted(by_model.items(), key=lambda item: (item[0] in supervised, item[0])):
            metrics = dict.fromkeys(number.metric for number in same if number.method in (RAW, CHOICE))
            rows += _row(task, model, same, metrics, is_global, limited=limited)
    return rows


def _of_papers(
    task: str, numbers: Iterable[Number], chances: Mapping[str, float | None], is_global: bool
) -> list[AnswerRow]:
    """One row per model and published table; ``chances`` are the chance levels of the task's metrics, from runs."""
    by_source: dict[tuple[str, str], list[Number]] = {}
    for number in numbers:
        chance = number.chance if number.method == CHOICE else chances.get(number.metric)
        by_source.setdefault((number.model, number.file), []).append(replace(number, chance=chance))
    found = by_source.items()
    return [row for (model, source), same in found for row in _row(task, model, same, chances, is_global, source)]


def _row(
    task: str,
    model: str,
    numbers: Sequence[Number],
    metrics: Collection[str],
    is_global: bool,
    source: str = "",
    limited: bool = False,
) -> list[AnswerRow]:
    """The row of a model, with another metric where that of a column is missing; nothing without numbers."""
    raw_metric, match_metric = headline(metrics, is_global)
    raw_metric = raw_metric if raw_metric in metrics else next(iter(metrics), raw_metric)

    def pick(chosen: list[Number], metric: str) -> Number | None:
        return next((number for number in chosen if number.metric == metric), chosen[0] if chosen else None)

    matched = [number for number in numbers if number.column == SIMPLE_MATCH_COLUMN.name]
    raw = [number for number in numbers if number.method in (RAW, CHOICE) and number not in matched]
    adapted = [number for number in numbers if number.method == TTM]
    row = AnswerRow(
        task,
        model,
        pick(raw, raw_metric),
        pick(matched, match_metric),
        pick(adapted, match_metric),
        limited=limited,
        source=source,
    )
    track = next((number.track for number in row.numbers if number.track in _MARKED), None)
    marks = [_MARKED[track]] if track else []
    marks += [FROM_FILE] if any(number.from_file for number in row.numbers) else []
    return [replace(row, model=" ".join([model, *(f"({mark})" for mark in marks)]))] if row.numbers else []
