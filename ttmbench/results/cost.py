"""What a number cost: time, speed and memory, derived from what a results document records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ttmbench.results.document import ResultsDocument
from ttmbench.results.method_record import MethodCost

COST_FIELDS = (
    *("seconds", "images_per_second", "pairs_per_second", "tokens_per_second"),
    "peak_memory_bytes",
)
_SCORING = ("prepare", "score")


def cost_of(document: ResultsDocument, task: str, filter_: str) -> dict[str, float | None]:
    """The cost of a task's numbers under a filter, by `COST_FIELDS`; None where it is not known.

    ``seconds`` are those of preparing and scoring the task, with one seed of what the filter stands for; they are not
    known where scores came from the cache. Rates are of scoring. Memory is of the whole task, with all methods of
    the run.
    """
    stages, data = document.timing.get(task, {}), document.datasets.get(task)
    scored = sum(stages.get(stage, 0.0) for stage in _SCORING)
    trained = _seconds_of_seed(document, task, filter_)
    is_known = scored > 0 and data is not None and data.from_store is None and trained is not None
    used = document.efficiency.get(task)
    return {
        "seconds": scored + (trained or 0.0) if is_known else None,
        **{name: None if used is None else getattr(used, name) for name in COST_FIELDS[1:]},
    }


def _seconds_of_seed(document: ResultsDocument, task: str, filter_: str) -> float | None:
    """What one seed of a method took; 0 for the model as it is, None where that is not known."""
    training = document.training(task, filter_)
    if training is None:
        return 0.0
    costs: Sequence[MethodCost] | None = getattr(training, "cost", None)
    return fmean(cost.seconds for cost in costs) if costs else None
