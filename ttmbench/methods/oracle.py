"""The oracle of section 4.5 of arXiv:2510.07632, an upper bound: the only method at test time that reads labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ttmbench.methods.model_task import ModelTask, Selection
from ttmbench.methods.training import Iteration
from ttmbench.methods.ttm import ttm


def oracle(task: ModelTask) -> Iterator[Iteration]:
    """TTM that trains on exactly the untied units whose matching is correct, whatever the threshold."""
    return ttm(task, correct)


def correct(task: ModelTask, choice: Selection, tie: np.ndarray) -> Selection:
    """The untied units whose matching is correct."""
    return replace(choice, selected=(choice.captions == task.truth).all(axis=1) & ~tie)
