"""Rows of a leaderboard as lines of a table: which are compared and ranked, and which are only listed.

A paired test between two rows takes the values of single groups (`GroupValues`). `print_board` prints a board.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util.console import one_line
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError
from ttmbench.report.leaderboard import CELL, COST_COLUMNS, Leaderboard, beats_chance, cost_text, legends
from ttmbench.report.table import NOTHING, TableColumn, marks, number_text, percent, print_line, print_table
from ttmbench.report.terminal import headline
from ttmbench.results.comparison import paired_test
from ttmbench.results.document import ResultsDocument, mapping
from ttmbench.results.numbers import (
    BUILT_IN_FILTERS,
    CHOICE,
    FROM_FILE,
    NO_MODEL,
    ORACLE,
    PLACEBO,
    RAW,
    RAW_COLUMN,
    SHUFFLE,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    Number,
    key_of,
    name_of,
    together,
)
from ttmbench.results.reader import ResultsFile, TaskGroups
from ttmbench.results.summary import cluster_numbers

_RESAMPLES = 1000


class GroupValues:
    """Reads the samples beside results documents when they are first asked for.

    Args:
        runs: whose samples are asked for.
    """

    def __init__(self, runs: Iterable[ResultsFile]) -> None:
        self._runs = {run.file: run for run in runs}
        self._groups = lru_cache(maxsize=None)(self._read)

    def p_value(self, one: Number, other: Number) -> float | None:
        """P of the paired test of two numbers on the same groups: McNemar's, or a permutation test of fractions.

        None if the samples of one are missing or damaged, or the groups differ.
        """
        pair = self._pair(one.task, (one.file, one.method, one.metric), (other.file, other.method, other.metric))
        return None if pair is None else paired_test(*pair[:2], _RESAMPLES, 0, pair[2])[0]

    def gain_interval(self, file: str, task: str, metric: str, filter_: str) -> tuple[float, float] | None:
        """The 95 % interval of a filter's number minus that of the raw model; None without samples."""
        pair = self._pair(task, (file, RAW, metric), (file, filter_, metric))
        return None if pair is None else stats.paired_difference(*pair[:2], _RESAMPLES, 0, clusters=pair[2])[1]

    def _pair(self, task: str, *keys: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
        """Values of the same groups for two keys (file, filter, metric), and the clusters of the groups."""
        known = [groups for file, _, _ in keys if (groups := self._groups(file).get(task)) is not None]
        if len(known) < len(keys):
            return None
        left, right = (
            groups.values.get(filter_, {}).get(metric, {})
            for groups, (_, filter_, metric) in zip(known, keys, strict=True)
        )
        if not left or left.keys() != right.keys():
            return None
        ids = list(left)
        clusters = cluster_numbers(ids, [groups.clusters for groups in known])
        return np.array([left[group] for group in ids]), np.array([right[group] for group in ids]), clusters

    def _read(self, file: str) -> Mapping[str, TaskGroups]:
        try:
            return self._runs[file].groups if file in self._runs else {}
        except DataError:
            return {}


RUN, PUBLISHED, PART, OTHER = "run", "published", "part of the groups", "other data or version"
STORED = FROM_FILE  # beside runs, since it is unknown whether the images are the same
REFERENCE = "reference"  # random chance and humans
RANKED = (RUN, PUBLISHED)
CHANCE = "random chance"
FAMILIES = {"2x2": "2×2 groups", "1xk": "1×k groups", "retrieval": "Retrieval", "other": "Other shapes"}
"""Families of tasks by the shape of their groups, a tab each; classification is with retrieval, which ranks too."""
_LEVEL = 0.05


@dataclass(frozen=True)
class TaskFacts:
    """The version and data of a task that rank on its page."""

    version: int | None  # the newest one
    data: str | None  # the most frequent fingerprint of whole runs; None if all rows are published
    metrics: tuple[str, str]  # the headline metrics of the raw model, and of matching and adaptation
    config: Mapping[str, object]  # its task file, from the newest document or from the registry
    groups: int | None  # number of groups
    from_runs: bool  # whether the data are those of a run, not of scores from files
    family: str  # one of `FAMILIES`

    @classmethod
    def of(cls, rows: Sequence[Number], config: Mapping[str, object], shape: object = None) -> TaskFacts:
        """The facts of a task from its rows, its task file and the shape that its runs state.

        Scores from files rank only where no run has the data.
        """
        whole = [row for row in rows if not row.published and not row.limited]
        version = max((row.version for row in whole if row.version is not None), default=None)
        newest = [row for row in whole if row.version == version]
        seen = [row for row in newest if not row.from_file]
        files = Counter(data for data, _ in {(row.data, row.file) for row in seen or newest})
        metrics = {row.metric for row in rows}
        first = next((name for name in _stated_metrics(config) if name in metrics), min(metrics, default=""))
        raw, match = (
            name if name in metrics else first for name in headline(metrics, config.get("matching") == "global")
        )
        return cls(
            version,
            max(files, key=lambda digest: (files[digest], str(digest)), default=None),
            (raw, match),
            config,
            next((row.extent.of for row in (*whole, *rows) if row.extent.of), None),
            bool(seen),
            _family_of(config, shape, metrics),
        )

    def first_metric(self, rows: Sequence[Number]) -> str:
        """The metric by which the rows of a track are ranked: that of the raw model where some rows are of it."""
        raw, match = self.metrics
        metrics = {row.metric for row in rows}
        is_raw = any(row.metric == raw and (row.method == CHOICE or row.column == RAW_COLUMN.name) for row in rows)
        wanted = raw if is_raw else match
        return wanted if wanted in metrics else next(iter(self.columns(rows)), "")

    def columns(self, rows: Sequence[Number]) -> list[str]:
        """The metrics of some rows, those that the task file names first."""
        metrics = {row.metric for row in rows}
        ordered = [name for name in _stated_metrics(self.config) if name in metrics]
        return [*ordered, *sorted(metrics - set(ordered))]

    def standing(self, row: Number) -> str:
        """Why a row ranks (`RANKED`) or does not."""
        if row.published:
            return PUBLISHED
        if row.limited:
            return PART
        if (row.version, row.data) == (self.version, self.data):
            return RUN
        return STORED if row.from_file and self.from_runs and row.version == self.version else OTHER


def _family_of(config: Mapping[str, object], shape: object, metrics: Iterable[str]) -> str:
    """By the task file, or else by the shape of the data, or else by the metrics that it has."""
    names = set(metrics)
    ranks = any(name.startswith(("i2t_", "t2i_", "accuracy_")) for name in names)
    if ranks or config.get("kind", "groups") != "groups":
        return "retrieval"
    sizes = mapping(config.get("group")).get("shape") or shape
    if not isinstance(sizes, list | tuple):
        return "2x2" if "image_score" in names else "1xk"
    return "2x2" if [*sizes] == [2, 2] else "1xk" if 1 in sizes else "other"


def _stated_metrics(config: Mapping[str, object]) -> list[str]:
    metrics = config.get("metrics")
    return [str(metric) for metric in metrics] if isinstance(metrics, list) else []


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

    @property
    def groups(self) -> str:
        """The number of groups, and of how many they are a part."""
        extent = together({row.task: row.extent for row in self.cells.values()}.values())
        return extent.words if extent.limited or extent.groups != extent.of else str(extent.groups or "-")


def lines_of(rows: Iterable[Number], facts: Mapping[str, TaskFacts], column: str) -> list[BoardLine]:
    """The lines of a track, whose columns are the values of an attribute: ``metric`` or ``task``."""
    cells: dict[tuple[str, str, str, str], dict[str, Number]] = {}
    for row in rows:
        standing = facts[row.task].standing(row)
        # Two papers may use one name for two models; on a task's page every source has a line.
        source = row.file if column == "metric" else "" if row.published_as else row.file.partition(", ")[0]
        line = cells.setdefault((row.model, row.column, standing, source if standing == PUBLISHED else ""), {})
        before = line.get(getattr(row, column))
        if before is None or (row.version or 0, row.date or "") > (before.version or 0, before.date or ""):
            line[getattr(row, column)] = row
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


def with_ranks(lines: Sequence[BoardLine], samples: GroupValues | None = None) -> list[BoardLine]:
    """Lines with the rank of each number: 1, and 1 more for each number of its column that is significantly better.

    That is one whose 95 % interval lies beyond, or that a paired test of the groups distinguishes.
    """
    ranks: list[dict[str, int]] = [{} for _ in lines]
    for name in {name for line in lines for name in line.cells}:
        rows = {at: line.cells[name] for at, line in enumerate(lines) if line.standing in RANKED and name in line.cells}
        ends = {at: end for at, row in rows.items() if (end := _signed_interval(row)) is not None}
        lows = sorted(low for low, _ in ends.values())
        for at, (_, high) in ends.items():
            rivals = [rows[other] for other, (low, _) in ends.items() if low <= high and not rows[other].published]
            better = sum(_is_better(rival, rows[at], samples) for rival in rivals) if samples else 0
            ranks[at][name] = 1 + len(lows) - bisect_right(lows, high) + better
    return [replace(line, ranks=rank) for line, rank in zip(lines, ranks, strict=True)]


def _signed_interval(row: Number) -> tuple[float, float] | None:
    """The interval of a number, turned around if smaller is better."""
    ends = interval_of(row)
    return ends if ends is None or row.higher_is_better else (-ends[1], -ends[0])


def _is_better(one: Number, other: Number, samples: GroupValues) -> bool:
    """Whether a paired test finds a number better than another one."""
    sign = 1 if one.higher_is_better else -1
    if sign * ((one.value or 0.0) - (other.value or 0.0)) <= 0:
        return False
    p = samples.p_value(one, other)
    return p is not None and p < _LEVEL


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
            levels.setdefault(row.metric, Counter())[1 + (row.method in BUILT_IN_FILTERS), row.chance] += 1
        elif row.track == NO_MODEL and row.model == CHANCE and row.value is not None:
            levels.setdefault(row.metric, Counter())[0, row.value] += 1
    return {metric: max(counts, key=lambda level: (level[0], counts[level]))[1] for metric, counts in levels.items()}


def references(
    columns: Mapping[str, tuple[str, str]], levels: Mapping[str, float], rows_of: Mapping[str, Sequence[Number]]
) -> list[BoardLine]:
    """The lines of random chance and of humans: columns -> task and metric, columns -> chance level, task -> rows."""
    cells = {name: Number(*columns[name], "", level, chance=level) for name, level in levels.items()}
    lines = [BoardLine(CHANCE, "", REFERENCE, cells)] if cells else []
    by_source: dict[str, dict[str, Number]] = {}
    for name, (task, metric) in columns.items():
        for row in rows_of[task]:
            if row.track == NO_MODEL and row.model != CHANCE and row.metric == metric:
                by_source.setdefault(f"{row.model} {row.file}", {})[name] = row
    told: set[tuple[str, str, float | None]] = set()
    for same in sorted(by_source.values(), key=len, reverse=True):
        values = {(row.model, name, row.value) for name, row in same.items()}
        if not values <= told:  # several papers quote the same
            lines.append(BoardLine(next(iter(same.values())).model, "", REFERENCE, same))
            told |= values
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


_COLUMNS = [
    *(TableColumn(name, "key") for name in ("model", "method")),
    TableColumn("value", "number", 4),
    TableColumn("95% interval", "number", 2),
    TableColumn("chance", "number", 3),
    TableColumn("groups", "number", 1),
    TableColumn("source"),
]
_SOURCE = len(_COLUMNS) - 1


def print_board(board: Leaderboard, cost: bool = False, width: int | None = None) -> None:
    """Print one table per track, with a row for each model, method and task; with ``cost`` also what each cost.

    ``width`` as for `print_table`.
    """
    costs = [column for column in COST_COLUMNS if cost and any(board.cost(row)[column[1]] for row in board.rows)]
    heads = [*_COLUMNS, *(TableColumn(name, "number", 2 if name == "seconds" else 0) for name, _, _ in costs)]
    configs = {task: config for run in board.runs for task, config in run.document.configs.items()}
    tasks = {
        task: [row for row in board.rows if row.task == task] for task in dict.fromkeys(r.task for r in board.rows)
    }
    facts = {task: TaskFacts.of(rows, configs.get(task, {})) for task, rows in tasks.items()}
    for track, title in TRACK_TITLES.items():
        rows: list[list[str]] = []
        for task, of_task in tasks.items():
            of_track = [row for row in of_task if row.track == track]
            metric = facts[task].first_metric(of_track) if of_track else ""
            shown = [row for row in of_track if row.metric == metric]
            rows += [[], [f"{task}: {metric}"]] if shown else []
            for row, cost_of_row in ((row, board.cost(row)) for row in shown):
                rows.append([*_cells(row), *(cost_text(cost_of_row[key], unit) for _, key, unit in costs)])
        if rows:
            used = [at for at in range(len(heads)) if at != _SOURCE or any(row[at] for row in rows if len(row) > 1)]
            cells = [row if len(row) < 2 else [row[at] for at in used] for row in rows[1:]]
            print_table([heads[at] for at in used], cells, title=title, width=width)
            print_line(width=width)
    print_line("All values are in percent. Intervals are over groups.", width)
    if any(row.seed_std is not None for row in board.rows):
        print_line("± is the standard deviation over seeds.", width)
    for line in legends(board.rows):
        print_line(line, width)


def _cells(row: Number) -> list[str]:
    interval = NOTHING if row.interval is None else f"{percent(row.interval[0], 1)} .. {percent(row.interval[1], 1)}"
    source = row.file if row.published else FROM_FILE if row.from_file else ""
    value = number_text(row) + marks(row)
    groups = row.extent.words if row.limited else NOTHING if row.groups is None else str(row.groups)
    return [row.model, row.column, value, interval, percent(row.chance), groups, source]


NOT_RANKED = {ORACLE: "uses labels", PLACEBO: "control", SHUFFLE: "control"}


@dataclass(frozen=True)
class ComparedMethod:
    """One method on one task with one model; numbers are fractions, None where they are undefined or unknown."""

    task: str
    model: str
    method: str
    match: float | None  # group match
    match_gain: float | None  # over SimpleMatch of the model as it is
    score: float | None = None  # group score
    score_gain: float | None = None  # over the raw model; of scores that assume a matching, over SimpleMatch
    interval: tuple[float, float] | None = None  # of ``match_gain``, 95 %, paired over groups
    passes: float | None = None  # of images and captions through the towers, a mean over seeds; scoring once is 2
    seconds: float | None = None  # of one seed
    parameters: int | None = None  # how many numbers were trained; None for none
    position: float | None = None  # share of rows that choose the most frequent of the shuffled positions
    scope: str = ""  # what an answer depends on
    source: str = ""  # the file, or the paper and its table
    published: bool = False  # copied from a paper
    rank: int | None = None  # among methods of the same task and model; None without an interval, and for controls


def methods_of(document: ResultsDocument, model: str = "", file: str = "") -> Iterator[ComparedMethod]:
    """The methods of a run, task by task, as they were run."""
    for task in document.results:
        numbers = document.results[task]
        raw_score, raw_match = (numbers.get(key_of(metric, RAW)) for metric in ("group_score", "group_match"))
        for name, record in document.methods.get(task, {}).items():
            if not record.cost:
                continue
            score, match = (numbers.get(key_of(metric, name)) for metric in ("group_score", "group_match"))
            yield ComparedMethod(
                task=task,
                model=model,
                method=name_of(name),
                match=match,
                match_gain=_difference(match, raw_match),
                score=score,
                score_gain=_difference(score, raw_match if record.uses_matching else raw_score),
                passes=fmean(cost.tower_passes for cost in record.cost),
                seconds=fmean(cost.seconds for cost in record.cost),
                parameters=None if record.trained is None else record.trained.parameters,
                position=max(record.positions) if record.positions else None,
                scope=record.scope,
                source=file,
            )


def compared_methods(
    folder: Path, runs: Iterable[ResultsFile], published: Iterable[Number], samples: GroupValues
) -> list[ComparedMethod]:
    """Every method whose gain is known, by task and model, the largest gain first.

    ``folder`` is searched for documents of ``analyze methods``; ``samples`` give the intervals of gains of runs.
    """
    rows = [*_analysed(folder), *_published(published)]
    known = {(row.task, row.model, row.method) for row in rows}
    for run in runs:
        filters = {name_of(name): name for records in run.document.methods.values() for name in records}
        for row in methods_of(run.document, run.model, run.file):
            is_known = (row.task, row.model, row.method) in known or row.match_gain is None
            if not is_known and not run.document.extent(row.task).limited:
                ends = samples.gain_interval(run.file, row.task, "group_match", filters[row.method])
                rows.append(replace(row, interval=ends))
    together: dict[tuple[str, str], list[ComparedMethod]] = {}
    for row in sorted(rows, key=lambda row: (row.task.lower(), row.model.lower(), -(row.match_gain or 0))):
        together.setdefault((row.task, row.model), []).append(row)
    return [row for same in together.values() for row in _ranked(same)]


def _ranked(same: Sequence[ComparedMethod]) -> Iterator[ComparedMethod]:
    lows = {row: row.interval[0] for row in same if row.interval is not None and row.method not in NOT_RANKED}
    for row in same:
        high = row.interval[1] if row in lows and row.interval is not None else math.nan
        yield replace(row, rank=1 + sum(low > high for low in lows.values()) if row in lows else None)


def _analysed(folder: Path) -> Iterator[ComparedMethod]:
    """The rows of every readable analysis of methods below a folder."""
    for path in sorted(folder.rglob("*.json")):
        try:
            content = read_json(path)
            if isinstance(content, dict) and content.get("analysis") == "methods":
                yield from [*_rows(content, path.relative_to(folder).as_posix())]
        except (Unreadable, AttributeError, KeyError, TypeError, ValueError):
            continue  # `merge` says why other files are skipped


def _rows(content: Mapping[str, Any], source: str) -> Iterator[ComparedMethod]:
    data = content["data"]
    for row in data["rows"]:
        about = data["methods"].get(row["method"])
        match, gain = (_finite(row.get(key)) for key in ("value", "gain"))
        if row["metric"] == "group_match" and match is not None and gain is not None and about is not None:
            low, high = map(_finite, row.get("ci") or (None, None))
            yield ComparedMethod(
                task=one_line(str(content["task"]), CELL),
                model=one_line(str(content["model_name"]), CELL),
                method=one_line(name_of(str(row["method"])), CELL),
                match=match,
                match_gain=gain,
                interval=None if low is None or high is None else (low, high),
                passes=_finite(about.get("tower_passes")),
                seconds=_finite(about.get("seconds")),
                source=source,
            )


def _finite(value: object) -> float | None:
    """A number of a document of anyone's."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is not a finite number")
    return float(value)


def _published(numbers: Iterable[Number]) -> Iterator[ComparedMethod]:
    """Test-time numbers of a table that has SimpleMatch of the same model, task and metric."""
    known = [row for row in numbers if row.track not in (None, NO_MODEL) and row.value is not None]
    before = {
        (row.file, row.task, row.model, row.metric): row.value
        for row in known
        if row.column == SIMPLE_MATCH_COLUMN.name
    }
    for row in known:
        gain = _difference(row.value, before.get((row.file, row.task, row.model, row.metric)))
        if row.track == "test_time" and gain is not None:
            yield ComparedMethod(row.task, row.model, row.column, row.value, gain, source=row.file, published=True)


def _difference(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else value - baseline
