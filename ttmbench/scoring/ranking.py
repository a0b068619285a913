"""Ranks, counted a block of queries at a time: the whole matrix of scores is never in memory.

A block has some queries and all candidates. Its size depends on the number of candidates alone, so that a rank depends
neither on the batch size nor on where a run began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ttmbench._annotations import Int
from ttmbench._util.console import progress_bar
from ttmbench.errors import TtmbenchError
from ttmbench.results.ranks import Ranks

BLOCK = 1 << 20  # scores held at a time

ScoreRows = Callable[[slice], np.ndarray]
"""Rows of queries -> their scores with every candidate, float32 [rows, candidates]."""


def rank_queries(
    score: ScoreRows,
    queries: Int[np.ndarray, " queries"],
    candidates: Int[np.ndarray, " candidates"],
    what: str = "queries",
    block: int = BLOCK,
) -> Ranks:
    """Ranks the best true candidate of each query; a candidate is true if it has the query's label.

    ``score`` gives scores of some queries, ``what`` names the queries in messages, ``block`` scores are held at a time.
    TtmbenchError if a score is not finite, or there is not one for each query and candidate; ValueError if a query has
    no true candidate.

    >>> table = np.array([[2.0, 1.0, 2.0], [0.0, 3.0, 1.0]])
    >>> ranks = rank_queries(lambda rows: table[rows], np.array([0, 2]), np.array([2, 2, 0]))
    >>> ranks.strict.tolist(), ranks.as_topk.tolist(), ranks.above.tolist(), ranks.true.tolist()
    ([1, 0], [1, 0], [0, 0], [1, 2])
    """
    total = len(queries)
    absent = ~np.isin(queries, candidates)
    if absent.any():
        raise ValueError(f"{what}: number {int(np.argmax(absent))} has no true candidate")
    counts = {name: np.empty(total, np.int64) for name in ("strict", "as_topk", "above", "true")}
    for rows, scores in _in_blocks(score, total, len(candidates), block, what, f"ranking {what}"):
        is_true = queries[rows, None] == candidates
        counts["true"][rows] = is_true.sum(axis=1)
        for name, values in rank_rows(scores, is_true).items():
            counts[name][rows] = values
    return Ranks(**counts, candidates=len(candidates))


def best_candidates(score: ScoreRows, total: int, candidates: int, k: int, what: str) -> Int[np.ndarray, "total k"]:
    """Positions of the k (at most all) highest-scoring candidates of each query, ascending; of equals the first ones.

    TtmbenchError if a score is not finite, or there is not one for each query and candidate.
    """
    best = np.empty((total, k), np.int32)
    for rows, scores in _in_blocks(score, total, candidates, BLOCK, what, f"choosing {k} for each of"):
        best[rows] = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :k], axis=1)
    return best


def _in_blocks(
    score: ScoreRows, total: int, candidates: int, block: int, what: str, doing: str
) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of queries and their scores, checked, so many scores at a time."""
    step = max(1, block // max(1, candidates))
    with progress_bar(total, doing, what) as shown:
        for start in range(0, total, step):
            rows = slice(start, min(start + step, total))
            scores, wanted = np.asarray(score(rows)), (rows.stop - rows.start, candidates)
            if scores.shape != wanted:
                shape = list(scores.shape)
                raise TtmbenchError(f"the model's logits have shape {shape}, {list(wanted)} are expected ({what})")
            finite = np.isfinite(scores).all(axis=1)
            if not finite.all():
                number = rows.start + int(np.argmin(finite))
                raise TtmbenchError(f"the model gave number {number} of the {what} a score that is NaN or infinite")
            yield rows, scores
            shown.update(rows.stop - rows.start)


def rank_chosen(
    score: ScoreRows,
    chosen: Int[np.ndarray, "queries k"],
    queries: Int[np.ndarray, " queries"],
    candidates: Int[np.ndarray, " candidates"],
    what: str = "queries",
) -> Ranks:
    """Ranks queries among the candidates that a first stage chose; one without a true candidate there is never found.

    Arguments and errors as of `rank_queries`, but ``score`` gives scores of some queries with the candidates ``chosen``
    for them (positions, ascending). Where no true candidate was chosen, all three ranks are the number of candidates.
    """
    total, k = chosen.shape
    labels, counts = np.unique(candidates, return_counts=True)
    true = counts[np.searchsorted(labels, queries)]
    places = {name: np.full(total, len(candidates), np.int64) for name in ("strict", "as_topk", "above")}
    for rows, scores in _in_blocks(score, total, k, BLOCK, what, f"ranking {what}"):
        is_true = candidates[chosen[rows]] == queries[rows, None]
        reached = np.flatnonzero(is_true.any(axis=1))
        for name, values in rank_rows(scores[reached], is_true[reached]).items():
            places[name][rows.start + reached] = values
    return Ranks(**places, true=true, candidates=len(candidates))


def rank_rows(scores: np.ndarray, own: np.ndarray) -> dict[str, np.ndarray]:
    """Counts ``strict``, ``as_topk`` and ``above`` of `Ranks`, int [queries], for queries with a true candidate each.

    ``own`` says which candidates are true, bool of the shape of the scores, [queries, candidates].
    """
    best = np.where(own, scores, -np.inf).max(axis=1, keepdims=True)
    higher, equal = scores > best, scores == best
    first = (own & equal).argmax(axis=1)[:, None]
    equal &= ~own
    above = higher.sum(axis=1)  # no true one is higher than the best of them
    before = equal & (np.arange(scores.shape[1]) < first)
    return {"strict": above + equal.sum(axis=1), "as_topk": above + before.sum(axis=1), "above": above}
