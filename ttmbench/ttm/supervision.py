"""What TTM trains on instead of its own choice: an oracle, and the controls that show what a gain is made of.

Each is an `algorithm.Supervision`. The oracle reads labels and is named so wherever its numbers stand; the controls
read none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ttmbench.ttm.algorithm import SelectionProposal, Supervision
from ttmbench.ttm.selection import Selection


def oracle(truth: np.ndarray) -> Supervision:
    """Keeps a unit if and only if its matching is right and no tie (section 4.5): a skyline, never a result.

    Args:
        truth: the true captions by their positions in the task's own order, int [units, images of a unit].

    Returns:
        A supervision; thresholds do not matter to it.
    """

    def choose(proposal: SelectionProposal) -> Selection:
        right = (proposal.in_task_order == truth).all(axis=1)
        return Selection(proposal.choice.captions, right & ~proposal.tie)

    return choose


def placebo(proposal: SelectionProposal) -> Selection:
    """The units that TTM selects, each with a matching drawn at random: what training as such does to a model.

    In the global variant the selected images get captions drawn without repetition from all captions.
    """
    chosen = proposal.choice
    captions = chosen.captions.copy()
    n_units, images = captions.shape
    if proposal.is_global:
        drawn = proposal.rng.permutation(proposal.n_captions)[:n_units, None]
    else:
        every = np.broadcast_to(np.arange(proposal.n_captions), (n_units, proposal.n_captions))
        drawn = proposal.rng.permuted(every, axis=1)[:, :images]
    captions[chosen.selected] = drawn[chosen.selected]
    return Selection(captions, chosen.selected)


def shuffle(proposal: SelectionProposal) -> Selection:
    """TTM's own pseudo-labels, each moved to another selected unit: same labels, same units, wrong company.

    With fewer than two selected units nothing can be moved, and nothing is trained on.
    """
    chosen = proposal.choice
    units = proposal.rng.permutation(np.flatnonzero(chosen.selected))
    if len(units) < 2:
        return Selection(chosen.captions, np.zeros_like(chosen.selected))
    captions = chosen.captions.copy()
    captions[units] = chosen.captions[np.roll(units, 1)]
    return Selection(captions, chosen.selected)


CONTROLS: Mapping[str, Callable[[SelectionProposal], Selection]] = {"placebo": placebo, "shuffle": shuffle}
