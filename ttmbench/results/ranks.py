"""Ranks of queries among their candidates, and their recall, accuracy, chance, ties and intervals.

A query is an image whose captions (``i2t``) or class (``class``) are the correct candidates, or a caption whose image
is (``t2i``). It is found at k if a correct candidate is among the first k. Ranks count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import ttmbench.stats as stats
from ttmbench._annotations import Bool, Int
from ttmbench._util.third_party import foreign_errors
from ttmbench.results.numbers import RAW, Number
from ttmbench.results.summary import number_of, refuse_unless_fractions, whose_metric
from ttmbench.types import MetricSpec

I2T, T2I, CLASS = "i2t", "t2i", "class"  # scopes: who looks for what
RESAMPLED = "queries, all about one image together; the candidates stay"
DEPTHS = {I2T: (1, 5, 10), T2I: (1, 5, 10), CLASS: (1, 5)}
AS_TOPK = "_as_topk"


@dataclass(frozen=True)
class Ranks:
    """Ranks of the best correct candidate of each query, in three counts of incorrect candidates; None: unknown."""

    strict: Int[np.ndarray, " queries"]  # that score as high or higher: a tie is not a success
    as_topk: Int[np.ndarray, " queries"] | None  # that come first in a stable sort, as in ``torch.topk``
    above: Int[np.ndarray, " queries"] | None  # that score higher
    true: Int[np.ndarray, " queries"]  # number of correct candidates of each query
    candidates: int  # number of all candidates

    def __len__(self) -> int:
        return len(self.strict)


def hits(k: int, ranks: Ranks, count: str = "strict") -> Bool[np.ndarray, " queries"] | None:
    """Whether fewer than k incorrect candidates, by one of their counts, are before the best correct one.

    None if that count is unknown; ``as_topk``: the first in the data wins ties.

    >>> ranks = Ranks(np.array([0, 1]), np.array([0, 0]), np.array([0, 0]), np.array([1, 1]), 4)
    >>> hits(1, ranks).tolist(), hits(1, ranks, "as_topk").tolist(), undecided(1, ranks).tolist()
    ([True, False], [True, True], [False, True])
    """
    counts = getattr(ranks, count)
    return None if counts is None else counts < k


def undecided(k: int, ranks: Ranks) -> Bool[np.ndarray, " queries"]:
    """Queries that are found at k or not by how ties are broken."""
    return np.zeros(len(ranks), bool) if ranks.above is None else (ranks.above < k) & (ranks.strict >= k)


def chance(k: int, ranks: Ranks) -> float:
    """The expected share of queries that are found at k in a random order: 1 - C(n - t, k) / C(n, k), their mean.

    >>> ranks = Ranks(np.zeros(2, int), None, None, np.array([1, 2]), 4)
    >>> chance(1, ranks), round(chance(3, ranks), 4)
    (0.375, 0.875)
    """
    counts, queries = np.unique(ranks.true, return_counts=True)
    missed, hit = np.ones(len(counts)), np.zeros(len(counts))
    for drawn in range(min(k, ranks.candidates)):  # summed draw by draw, so that small chances keep their digits
        left = ranks.candidates - drawn
        hit += missed * np.minimum(counts / left, 1)
        missed *= np.clip(left - counts, 0, None) / left
    return math.fsum((hit * queries).tolist()) / len(ranks)


def summarise_ranks(
    ranks: Mapping[str, Ranks],
    metrics: Sequence[MetricSpec],
    bootstrap_iters: int,
    seed: int,
    interval: stats.IntervalMethod = "wilson",
    clusters: Mapping[str, np.ndarray] | None = None,
    task: str = "",
) -> list[Number]:
    """Every metric of ranks by scope under the method ``none``; metrics of other scopes are undefined.

    Intervals and standard errors are over queries; ``clusters`` are numbers of queries by scope, equal for queries
    about one image. Without ``bootstrap_iters`` there is no interval of any kind.
    """
    numbers = []
    for metric in metrics:
        ranked = ranks.get(metric.scope)
        values = None if ranked is None else rank_values(metric, ranked)
        known: dict[str, Any] = {"track": metric.track}
        known["chance"] = None if ranked is None or metric.chance is None else metric.chance(ranked)
        if values is not None and metric.ties is not None and ranked is not None and ranked.above is not None:
            known["ties"] = int(np.sum(metric.ties(ranked)))  # ties of stored ranks are unknown
        among = (clusters or {}).get(metric.scope)
        numbers.append(number_of(task, metric.name, RAW, values, (bootstrap_iters, seed, interval), among, **known))
    return numbers


def ranking_record(kind: str, ranks: Mapping[str, Ranks], about: Mapping[str, object]) -> dict[str, object]:
    """The record of a ranking task in a results document."""
    return {
        "kind": kind,
        "queries": {scope: len(ranked) for scope, ranked in ranks.items()},
        "candidates": {scope: ranked.candidates for scope, ranked in ranks.items()},
        "resampled": RESAMPLED,
        **about,
    }


def rank_values(metric: MetricSpec, ranks: Ranks) -> np.ndarray | None:
    """The metric's value for every query, fractions; None where it is undefined.

    TtmbenchError if a plugin's metric does not give one fraction for each query.
    """
    with foreign_errors(whose_metric(metric)):
        result = metric.compute(ranks)
    if result is None:
        return None
    values = np.asarray(result).astype(np.float64)
    refuse_unless_fractions(metric, values, len(ranks))
    return values


RANK_METRICS: list[MetricSpec] = []
"""The metrics of retrieval and classification, as `ttmbench ls metrics` lists them."""
_FOUND = {I2T: "images with one of their captions", T2I: "captions with their image"}
_RULES = {"": ("ties count as incorrect", "strict"), AS_TOPK: ("the first in the data wins ties", "as_topk")}
for _scope, _depths in DEPTHS.items():
    for _k in _depths:
        for _suffix, (_rule, _count) in _RULES.items():
            RANK_METRICS.append(
                MetricSpec(
                    (f"accuracy_top{_k}" if _scope == CLASS else f"{_scope}_recall_at_{_k}") + _suffix,
                    partial(hits, _k, count=_count),
                    f"fraction of {_FOUND.get(_scope, 'images with their class')} in the top {_k}; {_rule}",
                    partial(undecided, _k),
                    partial(chance, _k),
                    scope=_scope,  # type: ignore[arg-type]
                )
            )
