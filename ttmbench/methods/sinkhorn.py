"""Sinkhorn normalisation: soft matchings inside each group."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.methods.features import ScoreTask


def sinkhorn(
    task: ScoreTask,
    *,
    eps: Annotated[float, Field(gt=0)] = 1.0,
    tolerance: Annotated[float, Field(gt=0)] = 1e-6,
    rounds: Annotated[int, Field(ge=1)] = 10_000,
) -> torch.Tensor:
    """Entropic optimal transport (arXiv:1306.0895) between the images and captions of each group: s = eps ln P.

    P is exp(s / eps) with rows and columns scaled in turn until each image's row sums to 1 within ``tolerance``, and
    each caption's column to 1. With more captions than images, an extra row of zeros takes up the remaining captions.
    On square groups the best matching and its margin do not change, and at 2x2 the group score of P equals the group
    match: compare it with SimpleMatch, not with the raw group score.
    """
    groups, images, captions = task.scores.shape
    if images > captions:
        raise UsageError(f"sinkhorn needs at least as many captions as images, not {images}x{captions}: transpose them")
    spare = captions - images
    plan = task.scores.double() / eps
    marginals = plan.new_zeros(images, 1)  # logs of the row sums
    if spare:
        plan = torch.cat([plan, plan.new_zeros(groups, 1, captions)], dim=1)
        marginals = torch.cat([marginals, marginals.new_full((1, 1), math.log(spare))])
    off = _balance(plan, marginals, tolerance, rounds)
    missed = int((off > tolerance).sum())
    if missed:
        task.notes.append(
            f"sinkhorn did not converge in {missed} of {groups} groups: "
            f"after {rounds} rounds rows sum to 1 within {float(off.max()):.1g} only"
        )
    return (eps * plan[:, :images]).float()


def _balance(plan: torch.Tensor, marginals: torch.Tensor, tolerance: float, rounds: int) -> torch.Tensor:
    """Scales log plans [groups, rows, columns] in place until rows converge; returns the remaining error per group."""
    off = plan.new_full((len(plan),), math.inf)
    open_groups = torch.arange(len(plan), device=plan.device)  # converged groups are not changed any further
    work, sums = plan, plan.logsumexp(dim=2, keepdim=True)
    for _ in range(rounds):
        work = work + (marginals - sums)
        work = work - work.logsumexp(dim=1, keepdim=True)
        sums = work.logsumexp(dim=2, keepdim=True)
        off[open_groups] = (sums.exp() - marginals.exp()).abs().amax(dim=(1, 2))
        going = off[open_groups] > tolerance
        if not going.all():
            plan[open_groups] = work
            open_groups, work, sums = open_groups[going], work[going], sums[going]
            if not len(open_groups):
                break
    plan[open_groups] = work
    return off
