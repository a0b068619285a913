"""Test-time methods of runs, side by side: what each gained over its fair baseline, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import ORACLE, PLACEBO, RAW, SHUFFLE, SIMPLE_MATCH, TTM, key_of
from ttmbench.results.method_record import Holdout, MethodRecord

_OF_TTM = (SIMPLE_MATCH, TTM, PLACEBO, SHUFFLE, ORACLE)


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
        parameters: how many numbers were trained; None for none, and of TTM in older documents.
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
