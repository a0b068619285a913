"""Controls of TTM, which show where a gain comes from: its units with random or with exchanged pseudo-labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.parts import Selection, SelectionProposal, all_captions
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


def random_matchings(proposal: SelectionProposal) -> Selection:
    """The selected units, each with a random matching."""
    chosen = proposal.choice
    captions = chosen.captions.copy()
    n_units, images = captions.shape
    if proposal.is_global:
        drawn = proposal.rng.permutation(proposal.n_captions)[:n_units, None]
    else:
        every = np.broadcast_to(np.arange(proposal.n_captions), (n_units, proposal.n_captions))
        drawn = proposal.rng.permuted(every, axis=1)[:, :images]
    captions[chosen.selected] = drawn[chosen.selected]
    if chosen.soft is None:
        return Selection(captions, chosen.selected)
    soft = np.empty_like(chosen.soft)  # the captions of soft labels change as those of hard ones
    old, new = (all_captions(each, soft.shape[2])[:, None, :] for each in (chosen.captions, captions))
    np.put_along_axis(soft, new, np.take_along_axis(chosen.soft, old, axis=2), axis=2)
    return Selection(captions, chosen.selected, soft)


def exchanged(proposal: SelectionProposal) -> Selection:
    """The selected units, each with the pseudo-label of another one; none if there are fewer than two."""
    chosen = proposal.choice
    units = proposal.rng.permutation(np.flatnonzero(chosen.selected))
    if len(units) < 2:
        return replace(chosen, selected=np.zeros_like(chosen.selected))
    captions, soft = chosen.captions.copy(), None if chosen.soft is None else chosen.soft.copy()
    captions[units] = chosen.captions[np.roll(units, 1)]
    if soft is not None and chosen.soft is not None:
        soft[units] = chosen.soft[np.roll(units, 1)]
    return Selection(captions, chosen.selected, soft)
