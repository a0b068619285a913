"""The arithmetic of a model: float32, or half precision as autocast has it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttmbench.errors import UsageError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_dtype(dtype: str) -> torch.dtype:
    """What ``--dtype`` means to torch; UsageError for an unknown one."""
    if dtype not in DTYPES:
        raise UsageError(f"dtype '{dtype}' is unknown; known: {', '.join(DTYPES)}")
    return DTYPES[dtype]


def arithmetic(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """A context in which matrix products are computed in ``dtype``, which is that of the weights or half precision."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def plain_attention(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[None]:
    """A context in which attention in bf16 on a CPU is matrix products and a softmax.

    The backward pass of torch's fused kernel is slow there: it takes more time than all the rest of a training run.
    """
    if device.type == "cpu" and dtype == torch.bfloat16:
        return sdpa_kernel(SDPBackend.MATH)
    return nullcontext()
