"""Pairs whose score is a bound or missing: how many a run has, and whether its numbers can be read at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNDECIDED = "undecided"
MOST = 0.5  # of a task's pairs; beyond it most comparisons are between bounds


def undecided_tasks(document: Mapping[str, Any]) -> dict[str, str]:
    """Tasks of which most pairs are undecided.

    Args:
        document: a results document.

    Returns:
        Task -> how many pairs, and what helps, in a sentence.

    >>> list(undecided_tasks({"undecided": {"a": {"pairs": 3, "of": 4}, "b": {"pairs": 2, "of": 4}}}))
    ['a']
    """
    return {
        task: f"{found['pairs']} of {found['of']} pairs are undecided (a bound, or neither yes nor no among the listed "
        "tokens), so the numbers say little of the model; a larger top_logprobs, score_as=probability or a model that "
        "answers yes or no helps"
        for task, found in document.get(UNDECIDED, {}).items()
        if found["pairs"] > MOST * found["of"]
    }
