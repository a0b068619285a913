"""The oracle of section 4.5 of arXiv:2510.07632, an upper bound: the only method at test time that reads labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.parts import Selection, SelectionProposal
from ttmbench.methods.training import Iteration
from ttmbench.methods.ttm import ttm


def oracle(task: ModelTask) -> Iterator[Iteration]:
    """TTM that trains on exactly the untied units whose matching is correct, whatever the threshold."""

    def correct(proposal: SelectionProposal) -> Selection:
        is_correct = (proposal.choice.captions == task.truth).all(axis=1)
        return replace(proposal.choice, selected=is_correct & ~proposal.tie)

    return ttm(task, correct)
