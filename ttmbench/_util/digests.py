"""One digest of tensors: what fingerprints, the cache's keys and checkpoints mean by it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def tensors_digest(state: Mapping[str, Any]) -> str:
    """sha256 over names, types, shapes and bytes of tensors, in the order of their names.

    Args:
        state: tensors as a ``state_dict`` has them; what is no tensor counts by its ``repr``.

    Returns:
        Hexadecimal digits.

    >>> one = tensors_digest({"b": torch.zeros(2), "a": torch.ones(1)})
    >>> one == tensors_digest({"a": torch.ones(1), "b": torch.zeros(2)}) != tensors_digest({"a": torch.ones(1)})
    True
    """
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            total.update(f"{name}={tensor!r};".encode())
            continue
        tensor = tensor.detach().cpu().contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        if tensor.numel():  # straight from its memory: weights are large
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
