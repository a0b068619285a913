"""Ranks of queries among their candidates, and their recall, accuracy, chance, ties and intervals.

A query is an image whose captions (``i2t``) or class (``class``) are the correct candidates, or a caption whose image
is (``t2i``). It is found at k if a correct candidate is among the first k. Ranks count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._annotations import Bool, Int
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.errors import TtmbenchError
from ttmbench.results.numbers import RAW, Number
from ttmbench.results.summary import number_of
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


def hits(k: int, ranks: Ranks) -> Bool[np.ndarray, " queries"]:
    """Whether fewer than k incorrect candidates score at least as high as the best correct one.

    >>> ranks = Ranks(np.array([0, 1]), np.array([0, 0]), np.array([0, 0]), np.array([1, 1]), 4)
    >>> hits(1, ranks).tolist(), hits_as_topk(1, ranks).tolist(), undecided(1, ranks).tolist()
    ([True, False], [True, True], [False, True])
    """
    return ranks.strict < k


def hits_as_topk(k: int, ranks: Ranks) -> Bool[np.ndarray, " queries"] | None:
    """Whether a correct candidate is in the top k if the first in the data wins ties; None if the order is unknown."""
    return None if ranks.as_topk is None else ranks.as_topk < k


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
    """Every metric of ranks under the method ``none``; intervals and standard errors are over queries.

    Args:
        ranks: scope -> ranks of its queries; metrics of other scopes are undefined.
        metrics: what to compute, in the order of the output.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        seed: of the resampling.
        interval: how intervals are made.
        clusters: scope -> a number for each query, equal for queries about one image.
        task: that was ranked.
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
    whose = f"metric '{metric.name}'" + (f" of plugin '{metric.plugin}'" if metric.plugin else "")
    with foreign_errors(whose):
        result = metric.compute(ranks)
    if result is None:
        return None
    values = np.asarray(result).astype(np.float64)
    if values.shape != (len(ranks),) or not ((values >= 0) & (values <= 1)).all():
        raise TtmbenchError(
            f"{whose} gave an array of shape {list(values.shape)} for {len(ranks)} queries; one fraction each is needed"
        )
    return values


RANK_METRICS: list[MetricSpec] = []
"""The metrics of retrieval and classification, as `ttmbench ls metrics` lists them."""
_FOUND = {I2T: "images with one of their captions", T2I: "captions with their image"}
_RULES: Mapping[str, tuple[str, Callable[[int, Ranks], np.ndarray | None]]] = {
    "": ("ties count as incorrect", hits),
    AS_TOPK: ("the first in the data wins ties", hits_as_topk),
}
for _scope, _depths in DEPTHS.items():
    for _k in _depths:
        for _suffix, (_rule, _compute) in _RULES.items():
            RANK_METRICS.append(
                MetricSpec(
                    (f"accuracy_top{_k}" if _scope == CLASS else f"{_scope}_recall_at_{_k}") + _suffix,
                    partial(_compute, _k),
                    f"fraction of {_FOUND.get(_scope, 'images with their class')} in the top {_k}; {_rule}",
                    partial(undecided, _k),
                    partial(chance, _k),
                    scope=_scope,  # type: ignore[arg-type]
                )
            )
