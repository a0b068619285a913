"""What test-time methods gained and cost: from runs, from ``ttmbench analyze methods`` and from published tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from ttmbench._util.console import one_line
from ttmbench._util.text import Unreadable, read_json
from ttmbench.report.group_values import GroupValues
from ttmbench.results.document import ResultsDocument
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
from ttmbench.results.method_record import Holdout, MethodRecord
from ttmbench.results.numbers import Number

NOT_RANKED = {ORACLE: "uses labels", PLACEBO: "control", SHUFFLE: "control"}
_OF_TTM = (SIMPLE_MATCH, TTM, PLACEBO, SHUFFLE, ORACLE)
_CELL = 200
_Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class ComparedMethod:
    """What a method gained on one task with one model over SimpleMatch of the model as it is.

    Attributes:
        task, model, method: names.
        value, gain: of the metric, fractions.
        interval: of the gain, 95 %, paired over groups; None if unknown.
        passes: through the towers; scoring the task once is 2. ``seconds``: of one seed.
        source: the file, or the paper and its table.
        published: copied from a paper.
        rank: from 1 among the methods of the same task and model; None without an interval, and for controls.
    """

    task: str
    model: str
    method: str
    value: float
    gain: float
    interval: tuple[float, float] | None = None
    passes: float | None = None
    seconds: float | None = None
    source: str = ""
    published: bool = False
    rank: int | None = None


class _Row(BaseModel):
    method: str
    metric: str
    value: _Finite | None = None
    gain: _Finite | None = None
    ci: tuple[_Finite, _Finite] | None = None


class _About(BaseModel):
    tower_passes: _Finite | None = None
    seconds: _Finite | None = None


class _Data(BaseModel):
    rows: list[_Row]
    methods: dict[str, _About]


class _Analysis(BaseModel):
    task: str
    model_name: str
    data: _Data


def compared_methods(
    folder: Path,
    runs: Iterable[tuple[str, str, ResultsDocument]],
    published: Iterable[Number],
    samples: GroupValues | None = None,
) -> list[ComparedMethod]:
    """Every method whose gain is known, by task and model, the largest gain first.

    Args:
        folder: searched for documents of ``analyze methods``.
        runs: name of the model, file and results document.
        published: numbers; TTM's gain is known where a table has SimpleMatch too.
        samples: of the runs, for the intervals of their gains.
    """
    rows = [*_analysed(folder), *_published(published)]
    known = {(row.task, row.model, row.method) for row in rows}
    for model, file, document in runs:
        for row in method_rows(document):
            key = (row.task, model, name_of(row.method))
            whole = not document.extent(row.task).limited
            if whole and row.match is not None and row.match_gain is not None and key not in known:
                ends = None if samples is None else samples.gain_interval(file, row.task, "group_match", row.method)
                rows.append(ComparedMethod(*key, row.match, row.match_gain, ends, row.passes, row.seconds, file))
    together: dict[tuple[str, str], list[ComparedMethod]] = {}
    for found in rows:
        together.setdefault((found.task, found.model), []).append(found)
    ordered = [together[key] for key in sorted(together, key=lambda key: (key[0].lower(), key[1].lower()))]
    return [row for same in ordered for row in _ranked(sorted(same, key=lambda row: -row.gain))]


def _ranked(same: Sequence[ComparedMethod]) -> Iterator[ComparedMethod]:
    rivals = [row for row in same if row.interval is not None and row.method not in NOT_RANKED]
    for row in same:
        if row in rivals and row.interval is not None:
            better = sum(rival.interval is not None and rival.interval[0] > row.interval[1] for rival in rivals)
            yield replace(row, rank=1 + better)
        else:
            yield row


def _analysed(folder: Path) -> Iterator[ComparedMethod]:
    for path in sorted(folder.rglob("*.json")):
        try:
            content = read_json(path)
            if not isinstance(content, dict) or content.get("analysis") != "methods":
                continue
            document = _Analysis.model_validate(content)
        except (Unreadable, ValidationError):
            continue  # `merge` says why other files are skipped
        for row in document.data.rows:
            about = document.data.methods.get(row.method)
            if row.metric == "group_match" and row.gain is not None and row.value is not None and about is not None:
                yield ComparedMethod(
                    task=one_line(document.task, _CELL),
                    model=one_line(document.model_name, _CELL),
                    method=one_line(name_of(row.method), _CELL),
                    value=row.value,
                    gain=row.gain,
                    interval=row.ci,
                    passes=about.tower_passes,
                    seconds=about.seconds,
                    source=path.relative_to(folder).as_posix(),
                )


def _published(numbers: Iterable[Number]) -> Iterator[ComparedMethod]:
    """Test-time numbers of a table that has SimpleMatch of the same model, task and metric."""
    known = [row for row in numbers if row.track not in (None, NO_MODEL) and row.value is not None]
    before = {
        (row.file, row.task, row.model, row.metric): row.value or 0.0
        for row in known
        if row.method == SIMPLE_MATCH_COLUMN.name
    }
    for row in known:
        start = before.get((row.file, row.task, row.model, row.metric))
        if row.track == "test_time" and start is not None and row.value is not None:
            gain = row.value - start
            yield ComparedMethod(row.task, row.model, row.method, row.value, gain, source=row.file, published=True)


@dataclass(frozen=True)
class MethodRow:
    """One method on one task; numbers are fractions, None where they are undefined.

    Attributes:
        task, method: names.
        score, match: group score and group match.
        score_gain, match_gain: over the raw group score, and over SimpleMatch; scores that assume a matching are
            compared with SimpleMatch in both.
        passes: of images and captions through the towers, a mean over seeds; scoring the task once is 2.
        seconds: of one seed.
        parameters: how many numbers were trained; None for none.
        position: share of rows that choose the most frequent of the shuffled positions; None of TTM likewise.
        scope: what an answer depends on.
    """

    task: str
    method: str
    score: float | None
    match: float | None
    score_gain: float | None
    match_gain: float | None
    passes: float
    seconds: float
    parameters: int | None
    position: float | None
    scope: str


def method_rows(document: ResultsDocument) -> Iterator[MethodRow]:
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
            yield MethodRow(
                task=task,
                method=name,
                score=score,
                match=match,
                score_gain=_difference(score, raw_match if own is not None and own.uses_matching else raw_score),
                match_gain=_difference(match, raw_match),
                passes=fmean(cost.tower_passes for cost in record.cost),
                seconds=fmean(cost.seconds for cost in record.cost),
                parameters=None if record.trained is None else record.trained.parameters,
                position=max(record.positions) if record.positions else None,
                scope="task" if own is None else own.scope,
            )


def _difference(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else value - baseline
