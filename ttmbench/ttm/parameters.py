"""Which parameters a test-time method trains (``train=``), chosen by the types of modules and printed with a digest."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttmbench.errors import UsageError
from ttmbench.scoring.capabilities import TrainableDualEncoder


def select(adapter: TrainableDualEncoder, which: str) -> Mapping[str, torch.nn.Parameter]:
    """Name -> parameter; UsageError for a set that is unknown, or that this model does not have."""
    model = getattr(adapter, "model", None)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"train={which} chooses among modules, and this adapter has no attribute 'model' that is one")
    return dict(model.named_parameters())
