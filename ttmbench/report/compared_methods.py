"""What test-time methods gained and cost: from runs, from ``ttmbench analyze methods`` and from published tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ttmbench._util.console import one_line
from ttmbench._util.text import Unreadable, read_json
from ttmbench.report.load import ReportedRun
from ttmbench.report.ranking import GroupValues
from ttmbench.results.document import Holdout, MethodRecord, ResultsDocument
from ttmbench.results.labels import (
    NO_MODEL,
    ORACLE,
    PLACEBO,
    RAW,
    SHUFFLE,
    SIMPLE_MATCH,
    SIMPLE_MATCH_COLUMN,
    TTM,
    key_of,
    name_of,
)
from ttmbench.results.numbers import Number

NOT_RANKED = {ORACLE: "uses labels", PLACEBO: "control", SHUFFLE: "control"}
_OF_TTM = (SIMPLE_MATCH, TTM, PLACEBO, SHUFFLE, ORACLE)
_CELL = 200


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
    """The methods of a run whose cost is known, task by task: TTM and its variants, then others as they were run."""
    for task in document.results:
        numbers = document.results[task]
        raw_score, raw_match = (numbers.get(key_of(metric, RAW)) for metric in ("group_score", "group_match"))
        for name in (*_OF_TTM, *document.methods.get(task, {})):
            record = document.training(task, name)
            if record is None or isinstance(record, Holdout) or not record.cost:
                continue
            own = record if isinstance(record, MethodRecord) else None
            score, match = (numbers.get(key_of(metric, name)) for metric in ("group_score", "group_match"))
            yield ComparedMethod(
                task=task,
                model=model,
                method=name_of(name),
                match=match,
                match_gain=_difference(match, raw_match),
                score=score,
                score_gain=_difference(score, raw_match if own is not None and own.uses_matching else raw_score),
                passes=fmean(cost.tower_passes for cost in record.cost),
                seconds=fmean(cost.seconds for cost in record.cost),
                parameters=None if record.trained is None else record.trained.parameters,
                position=max(record.positions) if record.positions else None,
                scope="task" if own is None else own.scope,
                source=file,
            )


def compared_methods(
    folder: Path, runs: Iterable[ReportedRun], published: Iterable[Number], samples: GroupValues
) -> list[ComparedMethod]:
    """Every method whose gain is known, by task and model, the largest gain first.

    ``folder`` is searched for documents of ``analyze methods``; ``samples`` give the intervals of gains of runs.
    """
    rows = [*_analysed(folder), *_published(published)]
    known = {(row.task, row.model, row.method) for row in rows}
    for run in runs:
        filters = {name_of(name): name for records in run.document.methods.values() for name in records}
        filters |= {name_of(name): name for name in _OF_TTM}
        for row in methods_of(run.document, run.model, run.name):
            is_known = (row.task, row.model, row.method) in known or row.match_gain is None
            if not is_known and not run.document.extent(row.task).limited:
                ends = samples.gain_interval(run.name, row.task, "group_match", filters[row.method])
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
                task=one_line(str(content["task"]), _CELL),
                model=one_line(str(content["model_name"]), _CELL),
                method=one_line(name_of(str(row["method"])), _CELL),
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
        if row.method == SIMPLE_MATCH_COLUMN.name
    }
    for row in known:
        gain = _difference(row.value, before.get((row.file, row.task, row.model, row.metric)))
        if row.track == "test_time" and gain is not None:
            yield ComparedMethod(row.task, row.model, row.method, row.value, gain, source=row.file, published=True)


def _difference(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else value - baseline
