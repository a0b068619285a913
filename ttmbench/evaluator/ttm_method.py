"""A method of ``--methods`` that is TTM with other settings (``selftrain``), with the record that all methods have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from ttmbench.methods.cost import Cost
from ttmbench.methods.run import DECLARED
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.prepare import PreparedTask
from ttmbench.ttm.algorithm import ShuffledTask
from ttmbench.ttm.checkpoint import SeedProgress
from ttmbench.ttm.parameters import is_of_captions, is_of_images, is_temperature, select
from ttmbench.ttm.selection import in_order
from ttmbench.ttm.trainer import Step, batch_of
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import MethodSpec, Record


def run_ttm_method(stage: Adaptation, spec: MethodSpec, given: Mapping[str, object]) -> MethodScores:
    """TTM for every seed with the settings of a method, which the given ones override; the model is restored."""
    settings = stage.settings.with_changes({**spec.settings, **given}, f"--method_args {spec.name}")
    own = replace(stage, settings=settings)
    seeds = own.runs(spec.name)
    scores = [run.final for run in seeds.values() if run.final is not None]
    before = [[step.scores for step in run.steps[:-1]] for run in seeds.values()]
    return MethodScores(spec.name, scores, _record(own, spec, seeds), iterations=before)


def _record(stage: Adaptation, spec: MethodSpec, seeds: Mapping[int, SeedProgress]) -> Record:
    task, settings = stage.stage, stage.settings
    parameters = select(task.adapter, settings.train)
    losses = [[value for step in run.steps for value in step.loss] for run in seeds.values()]
    first = next(iter(seeds.values())).steps
    images, captions = (len(np.unique(rows)) for rows in vars(task.prepared.rows).values())
    return {
        "settings": {**settings.model_dump(mode="json"), "lr": stage.learning_rate},
        "reference": spec.reference,
        "needs": list(spec.needs),
        **{name: getattr(spec, name) for name in DECLARED},
        "seeds": list(seeds),
        "turns": len(first),
        "updates": sum(bool(step.loss) for step in first),
        "loss": [fmean(values) if values else None for values in losses],
        "trained": {
            "train": settings.train,
            "parameters": sum(parameter.numel() for parameter in parameters.values()),
            "names_sha256": hashlib.sha256("\n".join(sorted(parameters)).encode()).hexdigest(),
        },
        "cost": [
            cost_of(stage, run.steps, list(parameters)).record(
                images, captions, sum(step.seconds for step in run.steps)
            )
            for run in seeds.values()
        ],
        "chance": None,
        "positions": _positions(task, seeds),
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


def _positions(task: PreparedTask, seeds: Mapping[int, SeedProgress]) -> list[float]:
    """Share of rows whose best option stands at each shuffled position; empty in the global variant."""
    if task.is_global:
        return []
    shares = []
    for seed, run in seeds.items():
        assert run.final is not None, "every seed is over"
        best = in_order(run.final, False, ShuffledTask(task, seed).order).argmax(axis=2)
        shares.append(np.bincount(best.reshape(-1), minlength=max(run.final.groups.shape[1:])) / best.size)
    return [float(share) for share in np.mean(shares, axis=0)]
