"""The first table of a report: raw, SimpleMatch and TTM of every task and model, with chance and published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ttmbench.report.leaderboard import with_chance
from ttmbench.report.load import ReportedRun
from ttmbench.report.terminal import headline
from ttmbench.results.labels import CHOICE, FROM_FILE, NO_MODEL, RAW, SIMPLE_MATCH_COLUMN, TTM
from ttmbench.results.numbers import Number, newest

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


def answer_of(runs: Sequence[ReportedRun], published: Sequence[Number] = ()) -> list[AnswerRow]:
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
    numbers = [number for run in runs for number in run.numbers if number.of_tasks is None and number.value is not None]
    published = with_chance(published, (run.document for run in runs))
    rows: list[AnswerRow] = []
    for task in dict.fromkeys(number.task for number in numbers):
        of_task = [number for number in numbers if number.task == task]
        ours = _of_runs(task, of_task, is_global.get(task, False))
        chances = dict.fromkeys(number.metric for number in of_task)
        chances |= {number.metric: number.chance for number in of_task if number.filter in (RAW, TTM)}
        theirs = _of_papers(
            task, [number for number in published if number.task == task], chances, is_global.get(task, False)
        )
        for row in ours:
            rows += [row, *(other for other in theirs if other.model == row.model and not row.limited)]
        known = {row.model for row in ours if not row.limited}
        rows += [other for other in theirs if other.model not in known]
    return rows


def _of_runs(task: str, numbers: Sequence[Number], is_global: bool) -> list[AnswerRow]:
    rows = []
    for limited in (False, True):
        latest = newest(number for number in numbers if number.limited is limited)
        supervised = {number.model for number in latest if number.track == "supervised"}
        by_model: dict[str, dict[tuple[str, str], Number]] = {}
        for number in latest:
            by_model.setdefault(number.model, {})[number.metric, number.filter] = number
        for model, by_key in sorted(by_model.items(), key=lambda item: (item[0] in supervised, item[0])):
            raw_metric, match_metric = headline({metric for metric, name in by_key if name in (RAW, CHOICE)}, is_global)
            raw = by_key.get((raw_metric, RAW)) or by_key.get((raw_metric, CHOICE))
            if not {(raw_metric, RAW), (match_metric, RAW), (raw_metric, CHOICE)} & by_key.keys():  # a task that ranks
                raw = next((number for (_, name), number in by_key.items() if name == RAW), None)
            row = AnswerRow(
                task, model, raw, by_key.get((match_metric, RAW)), by_key.get((match_metric, TTM)), limited=limited
            )
            rows += [_marked(row)] if row.numbers else []
    return rows


def _of_papers(
    task: str, numbers: Iterable[Number], chances: Mapping[str, float | None], is_global: bool
) -> list[AnswerRow]:
    """One row per model and published table, with another metric where the paper lacks that of the column.

    ``chances`` are the chance levels of the task's metrics, from runs.
    """
    raw_metric, match_metric = headline(chances, is_global)
    raw_metric = raw_metric if raw_metric in chances else next(iter(chances), raw_metric)
    by_source: dict[tuple[str, str], list[Number]] = {}
    for number in numbers:
        chance = number.chance if number.filter == CHOICE else chances.get(number.metric)
        by_source.setdefault((number.model, number.file), []).append(replace(number, chance=chance))
    rows = []
    for (model, source), same in by_source.items():
        raw = [
            number for number in same if number.filter in (RAW, CHOICE) and number.method != SIMPLE_MATCH_COLUMN.name
        ]
        matched = [number for number in same if number.method == SIMPLE_MATCH_COLUMN.name]
        adapted = [number for number in same if number.filter == TTM]
        row = AnswerRow(
            task,
            model,
            _pick(raw, raw_metric),
            _pick(matched, match_metric),
            _pick(adapted, match_metric),
            source=source,
        )
        rows += [_marked(row)] if row.numbers else []
    return rows


def _marked(row: AnswerRow) -> AnswerRow:
    track = next((number.track for number in row.numbers if number.track in _MARKED), None)
    marks = [
        *([_MARKED[track]] if track else []),
        *([FROM_FILE] if any(number.from_file for number in row.numbers) else []),
    ]
    return replace(row, model=" ".join([row.model, *(f"({mark})" for mark in marks)]))


def _pick(numbers: Sequence[Number], metric: str) -> Number | None:
    return next((number for number in numbers if number.metric == metric), numbers[0] if numbers else None)
