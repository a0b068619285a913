"""Rows of a leaderboard as lines of a page: which are compared and ranked, and which are only listed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ttmbench import stats
from ttmbench.report.group_values import GroupValues
from ttmbench.report.leaderboard import beats_chance, extent_of_line
from ttmbench.report.terminal import headline
from ttmbench.results.document import mapping
from ttmbench.results.labels import BUILT_IN_FILTERS, CHOICE, CHOICE_COLUMN, FROM_FILE, NO_MODEL, RAW_COLUMN
from ttmbench.results.numbers import Number

RUN, PUBLISHED, PART, OTHER = "run", "published", "part of the groups", "other data or version"
REFERENCE = "reference"  # random chance and humans
STORED = FROM_FILE  # beside runs, since it is unknown whether the images are the same
RANKED = (RUN, PUBLISHED)
CHANCE = "random chance"
FAMILIES = {
    "2x2": "2×2 groups",
    "1xk": "1×k groups",
    "retrieval": "Retrieval",
    "other": "Other shapes",
}
"""Families of tasks by the shape of their groups, a tab each; classification is with retrieval, which ranks too."""
SIZES = {"up to 200M": 2e8, "200M to 1B": 1e9, "1B to 5B": 5e9, "above 5B": float("inf")}
"""Ranges of numbers of parameters, each with its end."""
_LEVEL = 0.05


@dataclass(frozen=True)
class TaskFacts:
    """The version and data of a task that rank on its page.

    Attributes:
        version: the newest one.
        data: the most frequent fingerprint of whole runs; None if all rows are published.
        metrics: the headline metrics of the raw model, and of matching and adaptation.
        config: its task file, from the newest document or from the registry.
        groups: number of groups.
        from_runs: whether the data are those of a run, not of scores from files.
        family: one of `FAMILIES`.
    """

    version: int | None
    data: str | None
    metrics: tuple[str, str]
    config: Mapping[str, object]
    groups: int | None
    from_runs: bool
    family: str

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
        data = max(files, key=lambda digest: (files[digest], str(digest)), default=None)
        metrics = {row.metric for row in rows}
        first = next((name for name in _stated_metrics(config) if name in metrics), min(metrics, default=""))
        compared = headline(metrics, config.get("matching") == "global")
        raw, match = (name if name in metrics else first for name in compared)
        sizes = (row.groups_of_task for row in (*whole, *rows))
        return cls(
            version,
            data,
            (raw, match),
            config,
            next((size for size in sizes if size), None),
            bool(seen),
            family_of(config, shape, metrics),
        )

    def first_metric(self, rows: Sequence[Number]) -> str:
        """The metric by which the rows of a track are ranked: that of the raw model where some rows are of it."""
        raw, match = self.metrics
        metrics = {row.metric for row in rows}
        wanted = raw if any(is_raw(row) and row.metric == raw for row in rows) else match
        return wanted if wanted in metrics else next((name for name in self.columns(rows) if name in metrics), "")

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


def family_of(config: Mapping[str, object], shape: object, metrics: Iterable[str]) -> str:
    """The family of a task by its task file, or else by the shape of its data, or else by the metrics that it has.

    >>> family_of({}, [2, 2], []), family_of({}, (10, 1), []), family_of({}, None, ["i2t_recall_at_1"])
    ('2x2', '1xk', 'retrieval')
    """
    names = set(metrics)
    ranks = any(name.startswith(("i2t_", "t2i_", "accuracy_")) for name in names)
    if ranks or config.get("kind", "groups") != "groups":
        return "retrieval"
    sizes = mapping(config.get("group")).get("shape") or shape
    if not isinstance(sizes, list | tuple):
        return "2x2" if "image_score" in names else "1xk"
    return "2x2" if [*sizes] == [2, 2] else "1xk" if 1 in sizes else "other"


def size_range(parameters: float | None) -> str:
    """The range of a number of parameters.

    >>> size_range(1.5e8), size_range(None)
    ('up to 200M', 'unknown')
    """
    return next((name for name, end in SIZES.items() if parameters is not None and parameters <= end), "unknown")


def is_raw(row: Number) -> bool:
    """Whether a number is of the model without matching or adaptation."""
    return row.method in (RAW_COLUMN.name, CHOICE_COLUMN.name) or row.filter == CHOICE


def _stated_metrics(config: Mapping[str, object]) -> list[str]:
    metrics = config.get("metrics")
    return [str(metric) for metric in metrics] if isinstance(metrics, list) else []


@dataclass(frozen=True)
class BoardLine:
    """A model and a method in the table of a track.

    Attributes:
        model: its name.
        method: of the column.
        standing: `RANKED` if it ranks, `REFERENCE` for chance and humans, else why it does not rank.
        cells: column -> number.
        ranks: column -> rank from 1, shared by rows that no test distinguishes.
    """

    model: str
    method: str
    standing: str
    cells: Mapping[str, Number]
    ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def any(self) -> Number:
        """One of its numbers; on a task's page all are of one document."""
        return next(iter(self.cells.values()))

    @property
    def groups(self) -> str:
        """The number of groups, and of how many they are a part."""
        extent = extent_of_line({row.task: row for row in self.cells.values()})
        return extent.words if extent.limited or extent.groups != extent.of else str(extent.groups or "-")


def lines_of(
    rows: Iterable[Number],
    facts: Mapping[str, TaskFacts],
    column: str,
    first: str | None,
    samples: GroupValues | None = None,
) -> list[BoardLine]:
    """The lines of a track: those that rank by value, then the others.

    Args:
        rows: of a track.
        facts: of their tasks.
        column: what the columns hold, ``metric`` or ``task``.
        first: the column by which lines are ordered; None orders them by name, without ranks.
        samples: values of single groups, for paired tests.
    """
    cells: dict[tuple[str, str, str, str], dict[str, Number]] = {}
    for row in rows:
        standing = facts[row.task].standing(row)
        # Two papers may use one name for two models; on a task's page every source has a line.
        source = row.file if column == "metric" else "" if row.published_as else row.file.partition(", ")[0]
        line = cells.setdefault((row.model, row.method, standing, source if standing == PUBLISHED else ""), {})
        before = line.get(getattr(row, column))
        if before is None or (row.version or 0, row.date or "") > (before.version or 0, before.date or ""):
            line[getattr(row, column)] = row
    lines = [BoardLine(model, method, standing, line) for (model, method, standing, _), line in cells.items()]
    if first is None:
        return sorted(lines, key=lambda line: (line.standing not in RANKED, line.model.lower(), line.method))
    return in_order(with_ranks(lines, samples), first)


def in_order(lines: Sequence[BoardLine], first: str) -> list[BoardLine]:
    """Lines by the value of a column, the best first; those that do not rank, and those without a value, last."""
    up = all(line.cells[first].higher_is_better for line in lines if first in line.cells)

    def order(line: BoardLine) -> tuple[object, ...]:
        value = line.cells[first].value if first in line.cells else None
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
        tested = [at for at in ends if samples is not None and rows[at].file in samples.files]
        for at, (_, high) in ends.items():
            better = len(lows) - bisect_right(lows, high)
            if samples is not None and at in tested:
                rivals = [rows[other] for other in tested if ends[other][0] <= high]
                better += sum(_is_better(rival, rows[at], samples) for rival in rivals)
            ranks[at][name] = 1 + better
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
            levels.setdefault(row.metric, Counter())[1 + (row.filter in BUILT_IN_FILTERS), row.chance] += 1
        elif row.track == NO_MODEL and row.model == CHANCE and row.value is not None:
            levels.setdefault(row.metric, Counter())[0, row.value] += 1
    return {metric: max(counts, key=lambda level: (level[0], counts[level]))[1] for metric, counts in levels.items()}


def references(
    columns: Mapping[str, tuple[str, str]], levels: Mapping[str, float], rows_of: Mapping[str, Sequence[Number]]
) -> list[BoardLine]:
    """The lines of random chance and of humans.

    Args:
        columns: column -> its task and metric.
        levels: column -> its chance level.
        rows_of: task -> its rows, those of humans among them.
    """
    lines = []
    if levels:
        cells = {
            name: Number(*columns[name], filter="", method="", track=None, value=level, chance=level)
            for name, level in levels.items()
            if name in columns
        }
        lines.append(BoardLine(CHANCE, "", REFERENCE, cells))
    by_source: dict[str, dict[str, Number]] = {}
    for name, (task, metric) in columns.items():
        for row in rows_of.get(task, ()):
            if row.track == NO_MODEL and row.model != CHANCE and row.metric == metric:
                by_source.setdefault(f"{row.model} {row.file}", {})[name] = row
    told: list[tuple[str, str, float | None]] = []
    for same in sorted(by_source.values(), key=len, reverse=True):
        values = [(row.model, name, row.value) for name, row in same.items()]
        if not all(value in told for value in values):  # several papers quote the same
            lines.append(BoardLine(values[0][0], "", REFERENCE, same))
            told += values
    return lines


def best_of(lines: Sequence[BoardLine]) -> dict[str, float]:
    """The best value of each column with several ranked lines, where it is better than chance."""
    columns: dict[str, list[Number]] = {}
    for line in lines:
        for name, row in line.cells.items() if line.standing in RANKED else ():
            columns.setdefault(name, []).append(row)
    best = {}
    for name, rows in columns.items():
        if len(rows) > 1 and (better := [row.value or 0.0 for row in rows if beats_chance(row)]):
            best[name] = (max if rows[0].higher_is_better else min)(better)
    return best
