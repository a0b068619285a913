"""Controls of TTM, which show where a gain comes from: its units with random or with exchanged pseudo-labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ttmbench.methods.model_task import ModelTask, Selection
from ttmbench.methods.parts import all_captions
from ttmbench.methods.training import Iteration
from ttmbench.methods.ttm import ttm


def placebo(task: ModelTask) -> Iterator[Iteration]:
    """TTM on the units that it selects, each with a random matching: the effect of training as such.

    In the global variant the selected images get captions drawn without repetition from all captions.
    """
    return ttm(task, random_matchings)


def shuffle(task: ModelTask) -> Iterator[Iteration]:
    """TTM's units and pseudo-labels, with each label moved to another selected unit.

    With fewer than two selected units, no label can be moved and nothing is trained.
    """
    return ttm(task, exchanged)


def random_matchings(task: ModelTask, choice: Selection, tie: np.ndarray) -> Selection:
    """The selected units, each with a random matching."""
    captions, rng, every = choice.captions.copy(), task.draws(), np.arange(task.first.shape[-1])
    n_units, images = captions.shape
    if task.is_global:
        drawn = rng.permutation(len(every))[:n_units, None]
    else:
        drawn = rng.permuted(np.broadcast_to(every, (n_units, len(every))), axis=1)[:, :images]
    captions[choice.selected] = drawn[choice.selected]
    if choice.soft is None:
        return replace(choice, captions=captions)
    soft = np.empty_like(choice.soft)  # the captions of soft labels change as those of hard ones
    old, new = (all_captions(each, len(every))[:, None, :] for each in (choice.captions, captions))
    np.put_along_axis(soft, new, np.take_along_axis(choice.soft, old, axis=2), axis=2)
    return replace(choice, captions=captions, soft=soft)


def exchanged(task: ModelTask, choice: Selection, tie: np.ndarray) -> Selection:
    """The selected units, each with the pseudo-label of another one; none if there are fewer than two."""
    units = task.draws().permutation(np.flatnonzero(choice.selected))
    if len(units) < 2:
        return replace(choice, selected=np.zeros_like(choice.selected))
    others = np.arange(len(choice.selected))
    others[units] = np.roll(units, 1)
    soft = None if choice.soft is None else choice.soft[others]
    return replace(choice, captions=choice.captions[others], soft=soft)
