"""Test-Time Matching: Algorithm 1 of arXiv:2510.07632, inside groups and over the whole dataset (section 3.2.1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ttmbench.errors import TtmbenchError
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.parts import Selection, Supervision, eligible, first_threshold
from ttmbench.methods.training import Iteration


def ttm(task: ModelTask, supervise: Supervision = lambda proposal: proposal.choice) -> Iterator[Iteration]:
    """Test-Time Matching (section 3.2): trains on the model's own confident matchings, and matches again.

    In every iteration all groups are matched by the current model, and those whose margin is at least tau_t are its
    pseudo-labels (Algorithm 1, lines 4 and 5); the model is trained on them and scored (line 6). In the global variant
    one assignment over all images and captions takes the place of the groups' matchings.

    Args:
        task: the task and its model, which is trained in place.
        supervise: replaces the selection or the pseudo-labels: the oracle and the controls.
    """
    settings, parts = task.settings, task.parts
    by_share = settings.by_share(task.is_global)
    labels = parts.pseudo_labels(task.first)
    tau = thresholds(task, first_threshold(settings, labels, by_share))
    stopping = parts.stopping
    for t in task.iterations(lambda: stopping is not None and bool(stopping(task.rounds))):
        labels = labels if t == 1 else parts.pseudo_labels(task.scores)
        confident = parts.selection(labels, tau[t - 1], by_share, settings.ties) & eligible(labels, settings.ties)
        choice = Selection(labels.captions, confident, labels.soft)
        yield task.train(tau[t - 1], labels, supervise(task.proposal(choice, labels.tie)))


def thresholds(task: ModelTask, first: float) -> list[float]:
    """tau_1 to tau_T by the schedule; TtmbenchError unless it gives a finite number for each iteration."""
    settings, schedule = task.settings, task.schedule
    values = np.asarray(schedule.compute(first, settings.tau_end, settings.iterations))
    if values.shape != (settings.iterations,) or not np.isfinite(values).all():
        raise TtmbenchError(
            f"schedule '{schedule.name}' gave thresholds of shape {list(values.shape)} for {settings.iterations} "
            "iterations; one finite number each is expected"
        )
    return [float(value) for value in values]
