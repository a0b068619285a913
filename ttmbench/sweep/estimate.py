"""What a sweep will do, before it does it: counted from the plan, and timed where earlier documents have times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench._util.option_values import groups_of
from ttmbench.results.reader import walk_documents
from ttmbench.sweep.plan import PlannedCell

_SCORING = ("load", "look_up", "prepare", "score")


@dataclass(frozen=True)
class Work:
    """What there is to do in a cell.

    Attributes:
        groups: number of groups; None where only the data say.
        images: in all groups, as far as these are counted; captions likewise.
        captions: see above.
        iterations: of TTM, over all seeds; 0 without a test-time stage.
        epochs: in each.
        seeds: how many.
    """

    groups: int | None
    images: int | None
    captions: int | None
    iterations: int
    epochs: int
    seeds: int


@dataclass(frozen=True)
class Rate:
    """Mean seconds of a model in earlier documents: a group's raw scores, and a group in an epoch of TTM."""

    scoring: float | None
    training: float | None


def work_of(one: PlannedCell) -> Work:
    """What a cell does, by its plan."""
    config, spec = one.cell.config, one.chosen.tasks[one.cell.task].spec
    groups = groups_of(config.limit, spec.group.n_groups)
    if groups is None or (spec.group.n_groups is not None and groups > spec.group.n_groups):
        groups = spec.group.n_groups
    shape = spec.group.shape
    settings, seeds = one.chosen.settings[one.cell.task], len(config.run_seeds) if config.adapts else 0
    return Work(
        groups,
        None if groups is None or shape is None else groups * shape[0],
        None if groups is None or shape is None else groups * shape[1],
        settings.iterations * seeds if config.ttm else 0,
        settings.epochs,
        seeds,
    )


def rates(root: Path) -> dict[str, Rate]:
    """Model -> how long it took, from the documents below a folder that are done."""
    scored: dict[str, list[tuple[float, int]]] = defaultdict(list)
    trained: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for _, found in walk_documents(root) if root.is_dir() else ():
        document = {} if isinstance(found, str) else found.to_dict()
        for task in document.get("timing", {}):
            groups = document.get("n-samples", {}).get(task, {}).get("effective")
            if not isinstance(groups, int) or groups < 1:
                continue
            name, seconds = str(document.get("model_name")), document["timing"][task]
            if task not in document.get("from_store", {}):
                scored[name].append((sum(seconds.get(step, 0.0) for step in _SCORING), groups))
            of_ttm = document.get("ttm", {}).get(task)
            if of_ttm:
                trained[name].append(_training(of_ttm, groups))
    return {name: Rate(_mean(scored[name]), _mean(trained[name])) for name in {*scored, *trained}}


def seconds_of(work: Work, rate: Rate | None) -> float | None:
    """How long a cell takes by the times of earlier ones; None where these do not say."""
    if rate is None or work.groups is None or rate.scoring is None or (work.iterations and rate.training is None):
        return None
    training = 0.0 if rate.training is None else rate.training * work.groups * work.iterations * work.epochs
    return rate.scoring * work.groups + training


def _training(of_ttm: Mapping[str, Any], groups: int) -> tuple[float, int]:
    """Seconds of all iterations, and groups times epochs in them."""
    iterations: Sequence[Mapping[str, Any]] = of_ttm.get("iterations", ())
    epochs = int(of_ttm.get("hyperparameters", {}).get("epochs", 1))
    return sum(float(one.get("seconds", 0.0)) for one in iterations), len(iterations) * epochs * groups


def _mean(found: Sequence[tuple[float, int]]) -> float | None:
    total = sum(count for _, count in found)
    return sum(seconds for seconds, _ in found) / total if total else None
