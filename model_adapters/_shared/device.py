"""Where a model computes, and in which precision: float32, or half precision as autocast has it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttmbench.errors import UsageError

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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


def pick_device(device: str) -> str:
    """The device that ``auto`` means here; UsageError for one that is not here."""
    if "," in device:
        raise UsageError(f"device {device} names several devices, and only `run` divides its work among them; name one")
    if device != "auto":
        kind, _, number = device.partition(":")
        if kind == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"device {device} was asked for, but torch sees no CUDA device; use --device cpu")
        if kind == "cuda" and number.isdecimal() and int(number) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(f"device {device} was asked for, but the last that torch sees is cuda:{last}")
        if kind == "mps" and not torch.backends.mps.is_available():
            raise UsageError("device mps was asked for, but torch has none here; use --device cpu")
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
