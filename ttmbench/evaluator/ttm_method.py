"""A method of ``--methods`` that is TTM with other settings (``selftrain``), with the record that all methods have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np

from ttmbench.config import DEFAULT_LEARNING_RATE, TTMConfig
from ttmbench.methods.audit import audit_labels, held_out_record
from ttmbench.methods.run import MethodRun
from ttmbench.results.summary import MethodScores
from ttmbench.ttm.checkpoint import AFTER_SEED, AfterSeed, SeedProgress, TaskCheckpoint
from ttmbench.ttm.trainer import restored
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import MethodSpec, Record, Scores


def run_ttm_method(
    stage: Adaptation,
    spec: MethodSpec,
    given: Mapping[str, object],
    *,
    audit: bool = False,
    holdout: float | None = None,
    after: AfterSeed = AFTER_SEED,
) -> MethodScores:
    """TTM for every seed with the settings of a method, which the given ones override; the model is restored.

    ``audit`` and ``holdout`` as in `MethodRun`, ``after`` as in `Adaptation.column`.
    """
    adaptation = replace(stage, settings=settings_of(spec, given, stage.settings))
    seeds = adaptation.runs(spec, after)
    scores = {seed: run.final for seed, run in seeds.items() if run.final is not None}
    record = _record(adaptation, spec, seeds, list(scores.values()))
    if audit:
        record["audit_labels"] = audit_labels(spec.name, scores, partial(_permuted_scores, adaptation))
    if holdout is not None:
        raw, adapted = replace(adaptation, checkpoint=TaskCheckpoint()).holdout(spec, holdout)
        groups = len(adapted.record["adapted_groups"]), len(adapted.record["scored_groups"])
        record["holdout"] = held_out_record(holdout, groups, stage.metrics, raw.scores[0], adapted.scores)
    return MethodScores(spec.name, list(scores.values()), record)


def _permuted_scores(stage: Adaptation, seed: int) -> Scores:
    """Scores after a seed with the captions of every group in another order, put back into the task's."""
    again, order = stage.permuted(seed)
    with restored(again.stage):
        *_, last = again.steps(seed)
    back = np.argsort(order, axis=1)
    groups = last.scores.groups
    of_images = groups.shape[1] > groups.shape[2]
    back = back[:, :, None] if of_images else back[:, None, :]
    return Scores(np.take_along_axis(groups, back, axis=1 if of_images else 2))


def settings_of(spec: MethodSpec, given: Mapping[str, object], of_run: TTMConfig) -> TTMConfig:
    """Settings of a method that is TTM: those of the run, its own, and the user's; UsageError for a wrong one."""
    return of_run.with_changes({**spec.settings, **given}, f"--method_args {spec.name}")


def recorded(settings: TTMConfig) -> Record:
    """Settings as the record of a method has them."""
    return {**settings.model_dump(mode="json"), "lr": settings.lr or DEFAULT_LEARNING_RATE, "train": settings.train}


def _record(stage: Adaptation, spec: MethodSpec, seeds: Mapping[int, SeedProgress], scores: Sequence[Scores]) -> Record:
    losses = [[value for step in run.steps for value in step.loss] for run in seeds.values()]
    first = next(iter(seeds.values())).steps
    as_method = MethodRun(stage.raw, stage.spec.shape, stage.metrics, stage.seeds)
    positions = [as_method.positions(spec, final.groups, seed) for final, seed in zip(scores, seeds, strict=True)]
    return {
        "settings": recorded(stage.settings),
        **spec.declared,
        **stage.header(seeds),
        "turns": len(first),
        "updates": sum(bool(step.loss) for step in first),
        "loss": [fmean(values) if values else None for values in losses],
        "chance": None,
        "positions": np.mean(positions, axis=0).tolist(),
        "notes": [],
    }
