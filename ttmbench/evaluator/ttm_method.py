"""A method of ``--methods`` that is TTM with other settings (``selftrain``), with the record that all methods have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from ttmbench.config import DEFAULT_LEARNING_RATE, TTMConfig
from ttmbench.methods.cost import Cost
from ttmbench.methods.run import MethodRun, trained_record
from ttmbench.results.summary import MethodScores
from ttmbench.ttm.checkpoint import SeedProgress
from ttmbench.ttm.low_rank import low_rank_removed, parameters_of
from ttmbench.ttm.parameters import is_of_captions, is_of_images, is_temperature
from ttmbench.ttm.trainer import Step, batch_of
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import MethodSpec, Record, Scores


def run_ttm_method(stage: Adaptation, spec: MethodSpec, given: Mapping[str, object]) -> MethodScores:
    """TTM for every seed with the settings of a method, which the given ones override; the model is restored."""
    adaptation = replace(stage, settings=settings_of(spec, given, stage.settings))
    seeds = adaptation.runs(spec.name)
    scores = [run.final for run in seeds.values() if run.final is not None]
    return MethodScores(spec.name, scores, _record(adaptation, spec, seeds, scores))


def settings_of(spec: MethodSpec, given: Mapping[str, object], of_run: TTMConfig) -> TTMConfig:
    """Settings of a method that is TTM: those of the run, its own, and the user's; UsageError for a wrong one."""
    return of_run.with_changes({**spec.settings, **given}, f"--method_args {spec.name}")


def recorded(settings: TTMConfig) -> Record:
    """Settings as the record of a method has them."""
    return {**settings.model_dump(mode="json"), "lr": settings.lr or DEFAULT_LEARNING_RATE, "train": settings.train}


def _record(stage: Adaptation, spec: MethodSpec, seeds: Mapping[int, SeedProgress], scores: Sequence[Scores]) -> Record:
    task, settings = stage.stage, stage.settings
    with low_rank_removed(task.adapter):
        parameters = parameters_of(task.adapter, settings.train)
    losses = [[value for step in run.steps for value in step.loss] for run in seeds.values()]
    first = next(iter(seeds.values())).steps
    images, captions = (len(np.unique(rows)) for rows in vars(task.prepared.rows).values())
    as_method = MethodRun(stage.raw, stage.spec.shape, stage.metrics, stage.seeds)
    positions = [as_method.positions(spec, final.groups, seed) for final, seed in zip(scores, seeds, strict=True)]
    return {
        "settings": recorded(settings),
        **spec.declared,
        "seeds": list(seeds),
        "turns": len(first),
        "updates": sum(bool(step.loss) for step in first),
        "loss": [fmean(values) if values else None for values in losses],
        "trained": trained_record(settings.train, {name: tensor.numel() for name, tensor in parameters.items()}),
        "cost": [
            cost_of(stage, run.steps, list(parameters)).record(
                images, captions, sum(step.seconds for step in run.steps)
            )
            for run in seeds.values()
        ],
        "chance": None,
        "positions": np.mean(positions, axis=0).tolist(),
        "notes": [],
    }


def cost_of(stage: Adaptation, steps: Sequence[Step], trained: Sequence[str]) -> Cost:
    """What TTM's iterations cost, counted from what they selected: the task is scored first and after each update.

    A model that scores pairs sees an image and a caption for each pair.
    """
    task, settings, cost = stage.stage, stage.settings, Cost()
    rows = task.prepared.rows
    m, k = rows.images.shape[1], rows.captions.shape[1]
    units = rows.images.size if task.is_global else len(rows.images)
    batch = batch_of(settings, units, min(m, k), task.is_global)
    whole = [len(np.unique(side)) for side in (rows.images, rows.captions)]
    of_unit = [1, 1] if task.is_global else [min(m, k)] * 2 if settings.loss == "own" else [m, k]
    if stage.learns_pairs:
        whole, of_unit = [rows.images.size * k] * 2, [m * k] * 2
    towers = [name for name in trained if not is_temperature(name)]
    backward = (not all(map(is_of_captions, towers)), not all(map(is_of_images, towers)))
    cost.count(image_rows=whole[0], caption_rows=whole[1])
    for step in (step for step in steps if step.loss):
        selected, epochs = int(step.selected.sum()), len(step.loss)
        cost.count(optimizer_steps=-(-selected // batch) * epochs)
        for side, every, each, is_trained in zip(("image", "caption"), whole, of_unit, backward, strict=True):
            seen = selected * each * epochs
            cost.count(**{f"{side}_rows": every + seen, f"{side}_rows_backward": seen if is_trained else 0})
    return cost
