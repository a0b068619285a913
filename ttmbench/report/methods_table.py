"""Test-time methods of runs, side by side: what each gained over its fair baseline, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import RAW, key_of


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
        position: share of rows that choose the most frequent of the shuffled positions.
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
    position: float
    scope: str


def method_rows(document: ResultsDocument) -> Iterator[MethodRow]:
    """The methods of a run, task by task, in the order in which they were run."""
    for task, records in document.methods.items():
        numbers = document.results.get(task, {})
        raw_score, raw_match = (numbers.get(key_of(metric, RAW)) for metric in ("group_score", "group_match"))
        for name, record in records.items():
            score, match = (numbers.get(key_of(metric, name)) for metric in ("group_score", "group_match"))
            yield MethodRow(
                task=task,
                method=name,
                score=score,
                match=match,
                score_gain=_difference(score, raw_match if record.uses_matching else raw_score),
                match_gain=_difference(match, raw_match),
                passes=fmean(cost.tower_passes for cost in record.cost),
                seconds=fmean(cost.seconds for cost in record.cost),
                parameters=None if record.trained is None else record.trained.parameters,
                position=max(record.positions),
                scope=record.scope,
            )


def _difference(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else value - baseline
