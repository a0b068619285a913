"""Checks of a method on the task that it was run on: that no label reached it, and whether its gain carries over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ttmbench._arrays.scores import fewer_first
from ttmbench.errors import AssertionNotMet
from ttmbench.matching import match_groups
from ttmbench.results.clusters import held_out
from ttmbench.results.summary import metric_mean
from ttmbench.scoring.inputs import subset
from ttmbench.types import MethodSpec, Record, Scores

if TYPE_CHECKING:
    from ttmbench.methods.run import MethodRun

CLEAR = 0.01  # of the median margin: below it rounding may decide


def audit_labels(
    run: MethodRun, spec: MethodSpec, settings: Record, plugin: str, found: Mapping[int, Scores]
) -> dict[str, object]:
    """Runs every seed again with the captions of each group in another order; every clear matching must be the same.

    A method that knows nothing but what it is given answers alike. Sums in another order differ by rounding, which
    training carries on: groups whose margin is below 1 % of the median margin are not compared.

    Args:
        run: the task and the model.
        spec: the method.
        settings: all of its settings.
        plugin: that registered it.
        found: seed -> its scores.

    Returns:
        For results: ``passed``, and how many groups were ``compared`` of how many.

    Raises:
        AssertionNotMet: a clear matching differs.
    """
    compared = 0
    for seed, scores in found.items():
        again = replace(run, folder=None).seed_run(spec, settings, seed, plugin, order=run.order(seed, 4)).scores
        one, other = (match_groups(fewer_first(each.groups)) for each in (scores, again))
        clear = one.margin > CLEAR * np.median(one.margin)
        differs = clear & (one.captions != other.captions).any(axis=1)
        if differs.any():
            raise AssertionNotMet(
                f"method '{spec.name}', seed {seed}: with the captions of every group in another order, "
                f"{int(differs.sum())} of {int(clear.sum())} clear matchings differ, that of group "
                f"{int(np.argmax(differs))} first: something reads positions"
            )
        compared += int(clear.sum())
    return {"passed": True, "compared": compared, "of": sum(len(scores.groups) for scores in found.values())}


def hold_out(run: MethodRun, spec: MethodSpec, settings: Record, plugin: str, seeds: Sequence[int]) -> Record:
    """Trains on a part of the groups and scores the others with the model before and after it.

    Groups that share an image are on the same side. UsageError if the fraction leaves one side without groups.

    Returns:
        For results: the ``share``, how many groups were ``adapted`` to and ``scored``, and of each metric its ``raw``
        value and those of each seed (``adapted``).
    """
    assert run.stage is not None and run.holdout is not None, "asked for, of a method that trains"
    clusters = np.arange(len(run.raw.groups)) if run.clusters is None else run.clusters
    is_held = held_out(clusters, run.holdout, run.seed)
    held, used = np.flatnonzero(is_held), np.flatnonzero(~is_held)
    apart = replace(run.stage, prepared=subset(run.stage.prepared, held))
    stage = replace(run.stage, prepared=subset(run.stage.prepared, used))
    texts = [run.texts[row] for row in np.unique(run.stage.prepared.rows.captions[used])] if run.texts else ()
    part = replace(run, stage=stage, raw=stage.score(), folder=None, views=None, texts=texts, encoded={})
    before, after = apart.score(), []
    for seed in seeds:
        part.seed_run(spec, settings, seed, plugin, trained=lambda: after.append(apart.score()))
    return {
        "share": run.holdout,
        "adapted": len(used),
        "scored": len(held),
        "metrics": {
            metric.name: {
                "raw": metric_mean(metric, before),
                "adapted": [metric_mean(metric, scores) for scores in after],
            }
            for metric in run.metrics
            if metric.scope == "group"
        },
    }
