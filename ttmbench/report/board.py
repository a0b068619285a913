"""Results of many runs merged, with the newest valid row for each model and task, and published numbers beside them.

A row is one model with one setting on one task under one method. Rows of another task version or other data are listed
as conflicts. Rows of a part of a task are marked, follow those of whole tasks, and replace none of them.

With the lines of its tables: which are compared and ranked, and which are only listed. A paired test between two rows
takes the values of single groups (`GroupValues`). `print_board` prints a board.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util.console import one_line, print_line
from ttmbench.errors import DataError, UsageError
from ttmbench.report import terminal
from ttmbench.report.exporters import csv_text
from ttmbench.report.terminal import TableColumn, headline, percent
from ttmbench.results.comparison import LEVEL, paired_test
from ttmbench.results.document import SCHEMA_VERSION, UNKNOWN, mapping
from ttmbench.results.models import with_setting
from ttmbench.results.numbers import (
    BUILT_IN_METHODS,
    CHOICE,
    DISAGREES_LEGEND,
    FROM_FILE,
    NO_MODEL,
    ORACLE,
    PLACEBO,
    RAW,
    RAW_COLUMN,
    SEEN_LEGEND,
    SHUFFLE,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM,
    TTM_COLUMN,
    Number,
    column_of,
    merged,
    rows_of,
    same_rows,
    together,
)
from ttmbench.results.reader import CELL, ResultsFile, read_files
from ttmbench.results.summary import cluster_numbers

NOT_RUN = "published numbers of "  # prefix of skipped published numbers, which have no file
ROW = (
    *("track", "model", "task", "version", "metric", "method", "method_name", "value", "stderr", "seed_std", "seeds"),
    *("groups", "groups_of_task", "limited", "fingerprint", "data", "date", "source", "published", "seen"),
    *("trained_on", "disagrees", "from_file", "chance"),
)


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
    runs: list[ResultsFile] = field(default_factory=list)  # every document, with its rows

    @property
    def conflicts(self) -> dict[str, list[str]]:
        """Task -> files with rows of another version or other data, which do not rank."""
        facts = facts_of_tasks(self, {})
        files = {
            task: sorted({row.origin.file for row in of.rows if of.standing(row) == OTHER})
            for task, of in facts.items()
        }
        return {task: of_task for task, of_task in files.items() if of_task}


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
    newest, superseded = [], list[tuple[Number, Number]]()
    identity = attrgetter("model", "track", "task", "origin.version", "metric", "column", "limited")
    for same in same_rows((row for run in runs for row in run.ranked), identity):
        first, left = merged(same)
        newest.append(first)
        superseded += [(row, first) for row in left if row.origin.file != first.origin.file]
    tasks = {row.task for row in (*newest, *(published if every_task else ()))}
    rows = [*newest, *(row for row in published if row.task in tasks)]
    for task in dict.fromkeys(row.task for row in published if row.task not in tasks):
        skipped[f"{NOT_RUN}{task}"] = "no run has this task"
    downwards = {row.metric for row in rows if not row.higher_is_better}  # published numbers lack the direction
    rows = [replace(row, higher_is_better=False) if row.metric in downwards else row for row in rows]
    rows.sort(key=_order)
    return Leaderboard(rows, skipped, superseded, runs)


def as_document(board: Leaderboard) -> dict[str, object]:
    """The leaderboard as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "leaderboard",
        "tracks": [track for track in TRACK_TITLES if any(row.track == track for row in board.rows)],
        "rows": [as_row(row) for row in board.rows],
        "skipped": board.skipped,
        "superseded": [
            {
                "what": f"{old.model}, {old.task}, {old.metric}, {old.column}",
                "file": old.origin.file,
                "by": new.origin.file,
            }
            for old, new in board.superseded
        ],
        "conflicts": board.conflicts,
    }


def as_row(number: Number) -> dict[str, object]:
    """A row of ``leaderboard.json`` and of the CSV, with the setting where runs have several."""
    about = number.row() | {"source": number.origin.file}
    row = {key: about[key] for key in ROW}
    return row | {"setting": number.setting} if number.setting else row


def beats_chance(row: Number) -> bool:
    """Whether a number is better than random scores; also where their level is unknown."""
    if row.chance is None or row.value is None:
        return row.value is not None
    return row.value > row.chance if row.higher_is_better else row.value < row.chance


def legends(rows: Sequence[Number]) -> list[str]:
    """The meanings of the marks that appear."""
    lines = []
    if any(row.origin.seen for row in rows):
        unknown = sorted({row.model for row in rows if row.origin.trained_on == UNKNOWN})
        lines.append(f"{SEEN_LEGEND}; unknown for {', '.join(unknown)}" if unknown else SEEN_LEGEND)
    if any(row.origin.disagrees for row in rows):
        lines.append(DISAGREES_LEGEND)
    return lines


def _order(row: Number) -> tuple[object, ...]:
    value = -(row.value or 0.0) if row.higher_is_better else (row.value or 0.0)
    track = list(TRACK_TITLES).index(row.track or "")
    return (track, row.task, row.metric, row.limited, row.column, value, row.model)


def to_csv(board: Leaderboard) -> str:
    """One line per row, in fractions."""
    columns = (*ROW, "setting") if any(row.setting for row in board.rows) else ROW
    return csv_text(columns, ({"setting": "", **as_row(row)} for row in board.rows))


_MARKED = {"supervised": "supervised", "forced_choice": "forced choice", NO_MODEL: "no model"}
"""Tracks that are added to the name of the model, since a column holds numbers of several tracks."""


@dataclass(frozen=True)
class AnswerRow:
    """A task and a model, with another metric where that of a column is missing."""

    task: str
    model: str  # with the track where the column does not imply it
    raw: Number | None  # group score, else text score; a model's forced choices; the first metric of a task that ranks
    matched: Number | None  # SimpleMatch: the group match, for global tasks the assignment accuracy
    ttm: Number | None  # the same metric after TTM
    limited: bool = False  # of a part of the task's groups
    source: str = ""  # the paper and its table; empty for a run
    before: Number | None = None  # SimpleMatch, which is in another row where several settings adapt the model

    @property
    def numbers(self) -> list[Number]:
        """The numbers of the row, without the missing ones."""
        return [number for number in (self.raw, self.matched, self.ttm) if number is not None]

    @property
    def gain(self) -> float | None:
        """TTM minus SimpleMatch; None unless both are known for one metric."""
        if self.ttm is None or self.before is None or self.ttm.metric != self.before.metric:
            return None
        return _difference(self.ttm.value, self.before.value)

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
    configs = {task: config for run in runs for task, config in run.document.configs.items()}
    numbers = [number for run in runs for number in run.numbers if number.value is not None]
    answer: list[AnswerRow] = []
    for of_task in same_rows(numbers, attrgetter("task")):
        task = of_task[0].task
        is_global = configs.get(task, {}).get("matching") == "global"
        chances = dict.fromkeys(number.metric for number in of_task)
        chances |= {number.metric: number.chance for number in of_task if number.method in (RAW, TTM)}
        ours = [
            [replace(row, model=with_setting(*name), setting=name[1]) for row in same]
            for limited in (False, True)
            for name, same in rows_of(number for number in of_task if number.limited is limited).items()
        ]
        ours.sort(key=lambda same: (same[0].limited, any(n.track == "supervised" for n in same), same[0].model))
        of_papers = [
            row if row.method == CHOICE else replace(row, chance=chances.get(row.metric))
            for row in published
            if row.task == task
        ]
        theirs = same_rows(of_papers, attrgetter("model", "origin.file"))
        known = {same[0].model for same in ours if not same[0].limited}
        for same in ours:
            metrics = dict.fromkeys(number.metric for number in same if number.method in (RAW, CHOICE))
            answer += _answer_row(same, metrics, is_global, of_task)
            others = [other for other in theirs if other[0].model == same[0].model and not same[0].limited]
            answer += [row for other in others for row in _answer_row(other, chances, is_global)]
        others = [other for other in theirs if other[0].model not in known]
        answer += [row for other in others for row in _answer_row(other, chances, is_global)]
    return answer


def _answer_row(
    numbers: Sequence[Number], metrics: Collection[str], is_global: bool, every: Sequence[Number] = ()
) -> list[AnswerRow]:
    """The row of one model's numbers of a task that has some metrics; none without a number for its columns.

    ``every`` has the numbers of the task's other rows: SimpleMatch of the same run, if it is in another one.
    """
    raw_metric, match_metric = headline(metrics, is_global)
    raw_metric = raw_metric if raw_metric in metrics else next(iter(metrics), raw_metric)

    def pick(chosen: list[Number], metric: str) -> Number | None:
        return next((number for number in chosen if number.metric == metric), chosen[0] if chosen else None)

    first = numbers[0]
    matched = [number for number in numbers if number.column == SIMPLE_MATCH_COLUMN.name]
    raw = [number for number in numbers if number.method in (RAW, CHOICE) and number not in matched]
    adapted = [number for number in numbers if number.method == TTM]
    picked = pick(raw, raw_metric), pick(matched, match_metric), pick(adapted, match_metric)
    shown = [number for number in picked if number is not None]
    notes = [_MARKED[number.track] for number in shown if number.track in _MARKED][:1]
    notes += [FROM_FILE] if any(number.origin.from_file for number in shown) else []
    model = " ".join([first.model, *(f"({note})" for note in notes)])
    source = first.origin.file if first.origin.published else ""
    before = picked[1] or next((one for one in every if _is_before(one, picked[2])), None)
    return [AnswerRow(first.task, model, *picked, first.limited, source, before)] if shown else []


def _is_before(one: Number, adapted: Number | None) -> bool:
    """Whether a number is SimpleMatch of the run that an adapted one is of."""
    about = attrgetter("metric", "origin.file")
    return one.method == RAW and adapted is not None and about(one) == about(adapted)


class GroupValues:
    """Values of the single groups of runs, from the samples beside them, which are read when they are asked for."""

    def __init__(self, runs: Iterable[ResultsFile]) -> None:
        self._runs = {run.file: run for run in runs}
        self._clusters: dict[tuple[str, ...], np.ndarray | None] = {}  # metrics and methods mostly have the same groups

    def pair(
        self, task: str, *keys: tuple[str, str, str], tag: str = "", value: str = ""
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
        """Values of the same groups (or those with a ``value`` of a tag) for two keys, and the clusters of the groups.

        A key is a file, a method and a metric. None if the samples of one are missing or damaged, or the groups differ.
        """
        known, values = [], []
        for file, method, metric in keys:
            try:
                known.append(self._runs[file].groups[task])
            except DataError:
                self._runs.pop(file)  # damaged ones are read once
                return None
            except KeyError:
                return None
            values.append(known[-1].values.get(method, {}).get(metric, {}))
        left, right = values
        if left.keys() != right.keys():
            return None
        ids = known[0].with_value(left, tag, value) if tag else list(left)
        if not ids:
            return None
        same = (task, *(file for file, _, _ in keys), *ids)
        if same not in self._clusters:
            self._clusters[same] = cluster_numbers(ids, [groups.clusters for groups in known])
        return np.array([left[group] for group in ids]), np.array([right[group] for group in ids]), self._clusters[same]


RUN, PUBLISHED, PART, OTHER = "run", "published", "part of the groups", "other data or version"
STORED = FROM_FILE  # beside runs, since it is unknown whether the images are the same
REFERENCE = "reference"  # random chance and humans
RANKED = (RUN, PUBLISHED)
CHANCE = "random chance"
FAMILIES = {
    **{"2x2": "2×2 groups", "1xk": "1×k groups", "retrieval": "Retrieval", "other": "Other shapes"},
    "builtin": "Built-in toy tasks",
}
"""Families of tasks by the shape of their groups, a tab each; classification is with retrieval, which ranks too."""


@dataclass(frozen=True)
class TaskFacts:
    """The numbers of a task, and the version and data that rank on its page."""

    rows: Sequence[Number]
    version: int | None  # the newest one
    data: str | None  # the most frequent fingerprint of whole runs; None if all rows are published
    metrics: Sequence[str]  # those that the task file names first
    headlines: tuple[str, str]  # the metrics of the raw model, and of matching and adaptation
    config: Mapping[str, object]  # its task file, from the newest document or from the registry
    groups: int | None  # number of groups
    from_runs: bool  # whether the data are those of a run, not of scores from files
    family: str  # one of `FAMILIES`

    def of(self, track: str, metric: str | None = None) -> list[Number]:
        """The numbers of a track, or those of a metric."""
        return [row for row in self.rows if row.track == track and metric in (None, row.metric)]

    def first_metric(self, track: str) -> str:
        """The metric by which a track is ranked: that of the raw model where some rows are of it."""
        rows, (raw, match) = self.of(track), self.headlines
        is_raw = any(row.metric == raw and (row.method == CHOICE or row.column == RAW_COLUMN.name) for row in rows)
        known = {row.metric for row in rows}
        return next((name for name in (raw if is_raw else match, *self.metrics) if name in known), "")

    def standing(self, row: Number) -> str:
        """Why a row ranks (`RANKED`) or does not."""
        if row.origin.published:
            return PUBLISHED
        if row.limited:
            return PART
        if (row.origin.version, row.origin.data) == (self.version, self.data):
            return RUN
        return STORED if row.origin.from_file and self.from_runs and row.origin.version == self.version else OTHER


def facts_of_tasks(board: Leaderboard, published: Mapping[str, Mapping[str, object]]) -> dict[str, TaskFacts]:
    """The facts of every task by name, from its rows, and its task file in runs, or else in that of published numbers.

    Scores from files rank only where no run has the data.
    """
    oldest = sorted(board.runs, key=lambda run: run.document.date)
    configs = {task: config for run in oldest for task, config in run.document.configs.items()}
    shapes = {task: data.shape for run in oldest for task, data in run.document.datasets.items()}
    facts = {}
    for rows in same_rows(sorted(board.rows, key=lambda row: row.task.lower()), attrgetter("task")):
        task, own = rows[0].task, rows[0].own_task
        config: Mapping[str, Any] = configs.get(own) or published.get(task, {})
        whole = [row for row in rows if not row.origin.published and not row.limited]
        version = max((row.origin.version for row in whole if row.origin.version is not None), default=None)
        newest = [row for row in whole if row.origin.version == version]
        seen = [row for row in newest if not row.origin.from_file]
        files = Counter(data for data, _ in {(row.origin.data, row.origin.file) for row in seen or newest})
        known, stated = {row.metric for row in rows}, config.get("metrics")
        stated = [name for name in stated if name in known] if isinstance(stated, list) else []
        metrics = [*stated, *sorted(known - {*stated})]
        raw, match = (
            name if name in known else metrics[0] for name in headline(known, config.get("matching") == "global")
        )
        facts[task] = TaskFacts(
            rows,
            version,
            max(files, key=lambda digest: (files[digest], str(digest)), default=None),
            metrics,
            (raw, match),
            config,
            next((row.extent.of for row in (*whole, *rows) if row.extent.of), None),
            bool(seen),
            _family_of(config, shapes.get(own), known),
        )
    return facts


def _family_of(config: Mapping[str, object], shape: object, metrics: Collection[str]) -> str:
    """By the task file, or else by the shape of the data, or else by the metrics that it has."""
    if mapping(config.get("source")).get("kind") == "rendered":
        return "builtin"
    ranks = any(name.startswith(("i2t_", "t2i_", "accuracy_")) for name in metrics)
    if ranks or config.get("kind", "groups") != "groups":
        return "retrieval"
    sizes = mapping(config.get("group")).get("shape") or shape
    if not isinstance(sizes, list | tuple):
        return "2x2" if "image_score" in metrics else "1xk"
    return "2x2" if [*sizes] == [2, 2] else "1xk" if 1 in sizes else "other"


@dataclass(frozen=True)
class BoardLine:
    """A model and a method in the table of a track."""

    model: str  # its name
    method: str  # of the column
    standing: str  # `RANKED` if it ranks, `REFERENCE` for chance and humans, else why it does not rank
    cells: Mapping[str, Number]  # column -> number
    ranks: Mapping[str, int] = field(default_factory=dict)  # column -> from 1, shared without a difference

    @property
    def any(self) -> Number:
        """One of its numbers; on a task's page all are of one document."""
        return next(iter(self.cells.values()))


def lines_of(rows: Iterable[Number], facts: Mapping[str, TaskFacts], column: str) -> list[BoardLine]:
    """The lines of a track, whose columns are the values of an attribute: ``metric`` or ``task``."""
    cells: dict[tuple[str, str, str, str], dict[str, Number]] = {}
    for row in rows:
        standing = facts[row.task].standing(row)
        # Two papers may use one name for two models; on a task's page every source has a line.
        source = ""
        if standing == PUBLISHED and (column == "metric" or not row.origin.published_as):
            source = row.origin.file if column == "metric" else row.origin.file.partition(", ")[0]
        line, name = cells.setdefault((row.model, row.column, standing, source), {}), getattr(row, column)
        line[name] = max(line.get(name, row), row, key=lambda one: (one.origin.version or 0, one.origin.date or ""))
    return [BoardLine(model, method, standing, line) for (model, method, standing, _), line in cells.items()]


def in_order(lines: Sequence[BoardLine], first: str | None) -> list[BoardLine]:
    """Lines by the value of a column, the best first, or else by name; those that do not rank, or lack it, last."""
    known = [line.cells.get(first or "") for line in lines]
    up = all(row.higher_is_better for row in known if row is not None)

    def order(line: BoardLine) -> tuple[object, ...]:
        row = line.cells.get(first or "")
        value = None if row is None else row.value
        signed = 0.0 if value is None else -value if up else value
        return (line.standing in (PART, OTHER), value is None, signed, line.model.lower(), line.method)

    return sorted(lines, key=order)


def with_ranks(lines: Sequence[BoardLine], samples: GroupValues) -> list[BoardLine]:
    """Lines with the rank of each number: 1, and 1 more for each number of its column that is significantly better.

    That is one whose 95 % interval lies beyond, or that a paired test of the groups distinguishes.
    """
    ranks: list[dict[str, int]] = [{} for _ in lines]
    for name in {name for line in lines for name in line.cells}:
        rows = {at: line.cells[name] for at, line in enumerate(lines) if line.standing in RANKED and name in line.cells}
        ends = {at: end for at, row in rows.items() if (end := _signed_ends(row)) is not None}
        for at, (_, high) in ends.items():
            better = (low > high or _is_better(rows[other], rows[at], samples) for other, (low, _) in ends.items())
            ranks[at][name] = 1 + sum(better)
    return [replace(line, ranks=rank) for line, rank in zip(lines, ranks, strict=True)]


def _signed_ends(row: Number) -> tuple[float, float] | None:
    """The interval of a number, turned around if smaller is better."""
    ends = interval_of(row)
    return ends if ends is None or row.higher_is_better else (-ends[1], -ends[0])


def _is_better(one: Number, other: Number, samples: GroupValues) -> bool:
    """Whether a paired test, McNemar's or a permutation test of fractions, finds a number better than another one."""
    sign = 1 if one.higher_is_better else -1
    if one.origin.published or sign * ((one.value or 0.0) - (other.value or 0.0)) <= 0:
        return False
    pair = samples.pair(one.task, *((row.origin.file, row.method, row.metric) for row in (one, other)))
    return pair is not None and paired_test(*pair)[0] < LEVEL


def interval_of(row: Number) -> tuple[float, float] | None:
    """The stated 95 % interval of a number, else the score interval that its value and number of groups give."""
    if row.interval is not None or row.value is None or not row.groups or not 0 <= row.value <= 1 or "/" in row.task:
        return row.interval
    return stats.proportion_interval(row.value, row.groups)


def chance_levels(rows: Iterable[Number]) -> dict[str, float]:
    """The chance level of each metric: that of random scores, else the most frequent one of test-time methods.

    Where neither is known, a published one.
    """
    levels: dict[str, Counter[tuple[int, float]]] = {}
    for row in rows:
        if row.chance is not None:
            levels.setdefault(row.metric, Counter())[1 + (row.method in BUILT_IN_METHODS), row.chance] += 1
        elif row.track == NO_MODEL and row.model == CHANCE and row.value is not None:
            levels.setdefault(row.metric, Counter())[0, row.value] += 1
    return {metric: max(counts, key=lambda level: (level[0], counts[level]))[1] for metric, counts in levels.items()}


HEADLINES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("winoground", "mmvp_vlm", "colorswap"), ()),
    "sugarcrepe": tuple(
        f"sugarcrepe_{name}"
        for name in ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
    ),
}
"""The tasks of the first table, and those whose groups one of them has together."""


def headline_lines(facts: Mapping[str, TaskFacts], superseded: Iterable[Number]) -> list[BoardLine]:
    """Raw, SimpleMatch and TTM of `HEADLINES`, by model; a run precedes a paper, then the newest number counts.

    The ``superseded`` numbers show which settings share a model's raw numbers (`rows_of`). Models with raw numbers only
    are excluded.
    """
    rows = list[Number]()
    for (task, parts), column in product(HEADLINES.items(), (RAW_COLUMN, SIMPLE_MATCH_COLUMN, TTM_COLUMN)):
        metric = "group_match" if column is not RAW_COLUMN else "text_score" if parts else "group_score"
        ranked = [
            row
            for of in (facts[name] for name in (task, *parts) if name in facts)
            for row in of.of(str(column.track), metric)
            if row.column == column.name and of.standing(row) in RANKED
        ]
        rows += [row for row in ranked if row.task == task]
        for same in same_rows(ranked, lambda row: (row.model, row.origin.published and row.origin.file)):
            by_task = {row.task: row for row in same if row.groups}
            if parts and by_task.keys() >= {*parts}:
                rows.append(_pooled(task, [by_task[part] for part in parts]))
    of_column = same_rows(rows, attrgetter("own_model", "task", "column"))
    chosen = [row for same in of_column for row in [one for one in same if not one.origin.published] or same]
    kinds = {(row.task, row.key, row.limited) for row in chosen}
    chosen += [row for row in superseded if (row.task, row.key, row.limited) in kinds]
    return [
        BoardLine(
            with_setting(*name),
            "",
            PUBLISHED if all(row.origin.published for row in same) else RUN,
            {f"{row.task} {row.column}": row for row in same},
        )
        for name, same in rows_of(chosen).items()
        if {row.column for row in same} != {RAW_COLUMN.name}
    ]


def _pooled(task: str, rows: Sequence[Number]) -> Number:
    """The number over the groups of several tasks together."""
    extent = together(row.extent for row in rows)
    value = sum((row.value or 0) * (row.groups or 0) for row in rows) / (extent.groups or 1)
    return replace(rows[0], task=task, value=value, stderr=None, interval=None, ties=None, seed_std=None, extent=extent)


def references(
    columns: Mapping[str, tuple[str, str]], levels: Mapping[str, float], facts: Mapping[str, TaskFacts]
) -> list[BoardLine]:
    """The lines of random chance and of humans: columns -> task and metric, columns -> chance level."""
    cells = {name: Number(*columns[name], "", level, chance=level) for name, level in levels.items()}
    lines = [BoardLine(CHANCE, "", REFERENCE, cells)] if cells else []
    by_source: dict[str, dict[str, Number]] = {}
    for name, (task, metric) in columns.items():
        for row in facts[task].of(NO_MODEL, metric) if task in facts else ():
            if row.model != CHANCE:
                by_source.setdefault(f"{row.model} {row.origin.file}", {})[name] = row
    quoted: set[tuple[str, str, float | None]] = set()
    for same in sorted(by_source.values(), key=len, reverse=True):
        values = {(row.model, name, row.value) for name, row in same.items()}
        if not values <= quoted:  # several papers quote the same
            lines.append(BoardLine(next(iter(same.values())).model, "", REFERENCE, same))
            quoted |= values
    return lines


def best_of(lines: Sequence[BoardLine]) -> dict[str, float]:
    """The best value of each column with several ranked lines, where it is better than chance."""
    columns: dict[str, list[Number]] = {}
    for line in lines:
        for name, row in line.cells.items() if line.standing in RANKED else ():
            columns.setdefault(name, []).append(row)
    best = {}
    for name, rows in columns.items():
        better = [row.value or 0.0 for row in rows if beats_chance(row)] if len(rows) > 1 else []
        if better:
            best[name] = (max if rows[0].higher_is_better else min)(better)
    return best


def print_board(board: Leaderboard) -> None:
    """Print a table for each track, with the metric by which each task ranks."""
    columns = [TableColumn("model", "key"), TableColumn("method", "key"), TableColumn("value", "number", 4)]
    columns += [TableColumn("95% interval", "number", 2), TableColumn("chance", "number", 3)]
    columns += [TableColumn("groups", "number", 1), TableColumn("source")]
    facts = facts_of_tasks(board, {})
    for of_track in same_rows(board.rows, attrgetter("track")):
        cells: list[list[str]] = []
        for rows in same_rows(of_track, attrgetter("task")):
            metric = facts[rows[0].task].first_metric(rows[0].track or "")
            cells.append([f"{rows[0].task}: {metric}"])
            for row in (row for row in rows if row.metric == metric):
                cells.append([row.model, row.column, terminal.number_text(row) + terminal.marks(row)])
                cells[-1] += [terminal.interval_text(row.interval), percent(row.chance)]
                cells[-1] += [row.extent.words]
                cells[-1] += [row.origin.file if row.origin.published else FROM_FILE if row.origin.from_file else ""]
        caption = " ".join(legends(of_track))
        terminal.print_table(columns, cells, title=TRACK_TITLES[of_track[0].track or ""], caption=caption)
        print_line()
    print_line("All values are in percent. Intervals are over groups; ± is the standard deviation over seeds.")


NOT_RANKED = {ORACLE: "uses labels", PLACEBO: "control", SHUFFLE: "control"}


def methods_of(run: ResultsFile) -> Iterator[dict[str, Any]]:
    """The methods of a run, task by task, as fractions: gains are over SimpleMatch, of group scores over the raw model.

    Scores that assume a matching are compared with SimpleMatch in both. Cost is that of one seed; passes are encoder
    passes over the data (scoring once is 2).
    """
    numbers = {(row.task, row.metric, row.method): row for row in run.numbers}
    values = {key: row.value for key, row in numbers.items()}
    for task in run.document.results:
        raw_score, raw_match = (values.get((task, metric, RAW)) for metric in ("group_score", "group_match"))
        for key, record in run.document.methods.get(task, {}).items():
            if not record.cost:
                continue
            score, match = (values.get((task, metric, key)) for metric in ("group_score", "group_match"))
            yield {
                **{"task": task, "model": run.model, "method": column_of(key).name, "key": key, "match": match},
                **{"gain": _difference(match, raw_match), "interval": None, "score": score},
                "score_gain": _difference(score, raw_match if record.uses_matching else raw_score),
                "passes": fmean(cost.encoder_passes for cost in record.cost),
                "seconds": fmean(cost.seconds for cost in record.cost),
                "parameters": None if record.trained is None else record.trained.parameters,
                **{"scope": record.scope, "source": run.file, "published": False},
                "number": numbers.get((task, "group_match", key)),
            }


def compared_methods(
    runs: Iterable[ResultsFile], published: Iterable[Number], samples: GroupValues, facts: Mapping[str, TaskFacts]
) -> list[dict[str, Any]]:
    """Every method whose gain is known, by task and model, the largest gain first; runs of one setting are `merged`.

    Runs that do not rank on their task's page are excluded. Gains of runs have 95 % intervals, paired over groups,
    where ``samples`` are stored. Methods of the same task, model and metric are ranked by its value (`with_ranks`).
    """
    rows, same = [*_published_methods(published)], dict[tuple[str, ...], list[dict[str, Any]]]()
    for run in sorted(runs, key=lambda run: run.document.date):
        for row in methods_of(run):
            of = facts.get(row["task"])
            if row["gain"] is not None and of is not None and of.standing(row["number"]) in RANKED:
                same.setdefault((row["task"], row["number"].model, row["key"]), []).append(row)
    for alike in same.values():
        row, number = alike[-1], merged([row["number"] for row in alike])[0]
        row |= {"number": number, "match": number.value, "gain": row["gain"] + number.value - row["match"]}
        row["model"] = number.own_model
        keys = ((row["source"], method, number.metric) for method in (RAW, row["key"]))
        if (pair := samples.pair(row["task"], *keys)) is not None:
            row["interval"] = stats.paired_difference(*pair[:2], 1000, 0, clusters=pair[2])[1]
        rows.append(row)
    rows.sort(key=lambda row: (row["task"].lower(), row["model"].lower(), -row["gain"]))
    ranked = [row for row in rows if row["method"] not in NOT_RANKED]
    # A column for each task and model.
    names = ["\n".join((row["task"], row["model"], row["number"].metric)) for row in ranked]
    lines = [BoardLine("", "", RUN, {name: row["number"]}) for name, row in zip(names, ranked, strict=True)]
    for row, line in zip(ranked, with_ranks(lines, samples), strict=True):
        row["rank"] = next(iter(line.ranks.values()), "")
    return rows


def _published_methods(numbers: Iterable[Number]) -> Iterator[dict[str, Any]]:
    """Test-time numbers of a table that has SimpleMatch of the same model, task and metric."""
    known = [row for row in numbers if row.track not in (None, NO_MODEL) and row.value is not None]
    before = {
        (row.origin.file, row.task, row.model, row.metric): row.value
        for row in known
        if row.column == SIMPLE_MATCH_COLUMN.name
    }
    for row in known:
        gain = _difference(row.value, before.get((row.origin.file, row.task, row.model, row.metric)))
        if row.track == "test_time" and gain is not None:
            yield {
                **{"task": row.task, "model": row.model, "method": row.column, "match": row.value, "gain": gain},
                **{"interval": None, "passes": None, "seconds": None, "source": row.origin.file, "published": True},
                "number": row,
            }


def _difference(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else value - baseline
