"""Estimates what a sweep will do: amounts from the plan, and times where earlier documents have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ttmbench._util.option_values import groups_of
from ttmbench.results.reader import walk_documents
from ttmbench.sweep.plan import PlannedCell

_SCORING = ("load", "look_up", "prepare", "score")


class Work(NamedTuple):
    """What a cell does.

    Attributes:
        groups, images, captions: how many; None if unknown.
        iterations: of TTM, over all seeds.
        epochs: of each.
        methods: number of seeds of each method of ``methods``.
    """

    groups: int | None
    images: int | None
    captions: int | None
    iterations: int
    epochs: int
    methods: Mapping[str, int] = MappingProxyType({})


@dataclass
class Rate:
    """Seconds of a model in earlier documents, and for how many groups.

    Attributes:
        scored: of raw scores.
        trained: of TTM, for groups x epochs.
        methods: of other methods, for each seed.
    """

    scored: list[tuple[float, int]] = field(default_factory=list)
    trained: list[tuple[float, int]] = field(default_factory=list)
    methods: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


def work_of(planned: PlannedCell) -> Work:
    """What a cell does, by its plan."""
    config, chosen, task = planned.cell.config, planned.chosen, planned.cell.task
    spec, settings = chosen.tasks[task].spec, chosen.settings[task]
    total, shape = spec.group.n_groups, spec.group.shape
    groups = groups_of(config.limit, total)
    if total is not None and (groups is None or groups > total):
        groups = total
    images, captions = (None, None) if groups is None or shape is None else (groups * shape[0], groups * shape[1])
    iterations = settings.iterations * len(config.run_seeds) if config.ttm else 0
    specs = map(chosen.registry.method, config.methods)
    methods = {spec.name: len(config.run_seeds) if spec.is_random else 1 for spec in specs}
    return Work(groups, images, captions, iterations, settings.epochs, methods)


def rates(root: Path) -> dict[str, Rate]:
    """Model -> how long it took, from the finished documents below a folder."""
    by_model = defaultdict[str, Rate](Rate)
    for _, document in walk_documents(root) if root.is_dir() else ():
        if isinstance(document, str):
            continue
        for task, seconds in document.timing.items():
            groups = document.n_samples[task].effective if task in document.n_samples else 0
            if groups < 1:
                continue
            if document.datasets[task].from_store is None:  # what an earlier run scored took no time
                spent = sum(seconds.get(step, 0.0) for step in _SCORING)
                by_model[document.model_name].scored.append((spent, groups))
            if task in document.ttm:
                record = document.ttm[task]
                epochs = len(record.iterations) * int(record.hyperparameters.get("epochs", 1))
                spent = sum(iteration.seconds for iteration in record.iterations)
                by_model[document.model_name].trained.append((spent, epochs * groups))
            for name, method in document.methods.get(task, {}).items():
                of_seeds = by_model[document.model_name].methods.setdefault(name, [])
                of_seeds += [(float(cost.seconds), groups) for cost in method.cost]
    return dict(by_model)


def seconds_of(work: Work, rate: Rate | None) -> float | None:
    """How long a cell takes, by the mean times of earlier ones; None where these are missing."""
    if rate is None or work.groups is None or not rate.scored or (work.iterations and not rate.trained):
        return None
    if not all(rate.methods.get(name) for name in work.methods):
        return None
    methods = sum(_mean(rate.methods[name]) * seeds for name, seeds in work.methods.items())
    return work.groups * (_mean(rate.scored) + _mean(rate.trained) * work.iterations * work.epochs + methods)


def _mean(spent: list[tuple[float, int]]) -> float:
    return sum(seconds for seconds, _ in spent) / max(1, sum(count for _, count in spent))
