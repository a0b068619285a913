"""Forced choices -> the numbers of a results file, under the filter ``choice`` and with their own chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttmbench import stats
from ttmbench.results.clusters import Clusters
from ttmbench.results.summary import Summary
from ttmbench.scoring.forced_choice.arrays import CHOICE, Choices, choice_chance, choice_values
from ttmbench.types import GroupShape

SHOWN, LENGTH = 5, 60  # answers in a note, and characters of each


def summarise_choices(
    choices: Choices,
    shape: GroupShape,
    orders: int,
    bootstrap_iters: int,
    seed: int,
    interval: stats.IntervalMethod = "wilson",
    clusters: Clusters | None = None,
) -> Summary:
    """Computes the scores that follow from the questions that were asked.

    Args:
        choices: which were answered right.
        shape: of the groups.
        orders: how often each question was asked.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        seed: of the resampling.
        interval: how intervals are made.
        clusters: of the groups, where it is known which share images.

    Returns:
        The numbers. There are no ties: an answer names one option, or it is wrong.
    """
    summary = Summary()
    among = None if clusters is None else clusters.groups
    chance = choice_chance(shape.images, shape.captions, orders)
    for metric, right in choice_values(choices).items():
        key, values = f"{metric},{CHOICE}", right.astype(np.float64)
        summary.results[key] = stats.mean(values)
        summary.results[f"{metric}_stderr,{CHOICE}"] = stats.standard_error(values, among)
        ends = stats.interval(values, interval, bootstrap_iters, seed, clusters=among)
        summary.ci[key] = None if ends is None else list(ends)
        summary.ties[key] = None
        summary.chance[metric] = chance[metric]
        summary.tracks[key] = "forced_choice"
    return summary


def unread_notes(unread: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """A sentence on the answers that choose no option, if there are any.

    Args:
        unread: (group id, question, answer); the answer is None where the model refused.

    Returns:
        No or one sentence.
    """
    if not unread:
        return []
    shown = [f"group {group}, {question}: {_short(answer)}" for group, question, answer in unread[:SHOWN]]
    rest = f"; {len(unread) - SHOWN} more are listed under 'choice' in the results" if len(unread) > SHOWN else ""
    return [f"{len(unread)} answers choose no option and count as wrong: {'; '.join(shown)}{rest}"]


def _short(answer: str | None) -> str:
    if answer is None:
        return "refused"
    words = " ".join(answer.split())
    return repr(words if len(words) <= LENGTH else words[: LENGTH - 3] + "...")
