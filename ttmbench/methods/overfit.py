"""SimpleMatch's second step (section 3.1 of arXiv:2510.07632): overfits to the matchings of the original model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ttmbench.methods.model_task import ModelTask, Selection
from ttmbench.methods.parts import all_fit
from ttmbench.methods.training import Iteration
from ttmbench.methods.ttm import matching, select


def overfit(task: ModelTask) -> Iterator[Iteration]:
    """Trains on the matchings of the original model, of every unit without a tie, and never matches again.

    With ``ties=include`` it trains on every unit. The budget and the restarts of the learning rate are TTM's; training
    ends early once every selected group satisfies the group score with its pseudo-label as the ground truth. Of TTM's
    parts, those of training apply. The threshold is 0.
    """
    labels = matching(task.first)
    selected = select(labels, -math.inf, by_share=False, ties=task.settings.ties)

    def is_over() -> bool:
        if not selected.any():
            return True
        return not task.is_global and all_fit(task.scores[selected], labels.captions[selected])

    for _ in task.iterations(is_over):
        yield task.train(0.0, labels, Selection(labels.captions, selected))
