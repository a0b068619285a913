"""What a sweep will do, before it does it: counted from the plan, and timed where earlier documents have times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def work_of(planned: PlannedCell) -> Work:
    """What a cell does, by its plan."""
    config, spec, settings = planned.cell.config, *planned.of_task
    total, shape = spec.group.n_groups, spec.group.shape
    groups = groups_of(config.limit, total)
    if total is not None and (groups is None or groups > total):
        groups = total
    images, captions = (None, None) if groups is None or shape is None else (groups * shape[0], groups * shape[1])
    seeds = len(config.run_seeds) if config.adapts else 0
    return Work(groups, images, captions, settings.iterations * seeds if config.ttm else 0, settings.epochs, seeds)


def rates(root: Path) -> dict[str, Rate]:
    """Model -> how long it took, from the documents below a folder that are done."""
    scored, trained = defaultdict[str, list[tuple[float, int]]](list), defaultdict[str, list[tuple[float, int]]](list)
    found = [document for _, document in walk_documents(root)] if root.is_dir() else []
    for document in (one for one in found if not isinstance(one, str)):
        for task, seconds in document.timing.items():
            groups = document.n_samples[task].effective if task in document.n_samples else 0
            if groups < 1:
                continue
            if document.datasets[task].from_store is None:  # what an earlier run scored took no time
                scored[document.model_name].append((sum(seconds.get(step, 0.0) for step in _SCORING), groups))
            if task in document.ttm:
                record = document.ttm[task]
                epochs = len(record.iterations) * int(record.hyperparameters.get("epochs", 1))
                took = sum(iteration.seconds for iteration in record.iterations)
                trained[document.model_name].append((took, epochs * groups))
    return {name: Rate(_mean(scored[name]), _mean(trained[name])) for name in {*scored, *trained}}


def seconds_of(work: Work, rate: Rate | None) -> float | None:
    """How long a cell takes by the times of earlier ones; None where these do not say."""
    if rate is None or work.groups is None or rate.scoring is None or (work.iterations and rate.training is None):
        return None
    return work.groups * (rate.scoring + (rate.training or 0.0) * work.iterations * work.epochs)


def _mean(found: Sequence[tuple[float, int]]) -> float | None:
    total = sum(count for _, count in found)
    return sum(seconds for seconds, _ in found) / total if total else None
