"""The arithmetic of a model: float32, or half precision as autocast has it.

A processor without instructions for half precision (AVX2 alone) multiplies matrices in it 10 to 100 times slower than
in float32. There numbers are rounded as they would be and their products computed in float32, which is what a processor
with such instructions does: it adds products up in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ttmbench.errors import UsageError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PRODUCTS: set[Callable[..., Any]] = {
    functional.linear,
    functional.multi_head_attention_forward,
    *(functional.conv1d, functional.conv2d, functional.conv3d),
    *(torch.mm, torch.bmm, torch.matmul, torch.addmm, torch.baddbmm, torch.einsum),
    *(torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__),
    *(torch.Tensor.addmm, torch.Tensor.addmm_, torch.Tensor.baddbmm),
}
_FEW_ROWS = 8  # of a product: so few are faster as they are, because rounding passes over all weights


def check_dtype(dtype: str) -> torch.dtype:
    """What ``--dtype`` means to torch; UsageError for an unknown one."""
    if dtype not in DTYPES:
        raise UsageError(f"dtype '{dtype}' is unknown; known: {', '.join(DTYPES)}")
    return DTYPES[dtype]


@contextmanager
def arithmetic(device: torch.device, dtype: torch.dtype, weights: torch.dtype = torch.float32) -> Iterator[None]:
    """Inside, matrix products are in ``dtype``.

    Args:
        device: of the model.
        dtype: of the arithmetic.
        weights: in what precision they are kept.
    """
    half = weights if dtype == torch.float32 else dtype
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32), products(device, half):
        yield


@contextmanager
def products(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Inside, products of numbers in ``dtype`` are computed as fast as the device can."""
    if device.type != "cpu" or multiplies(dtype):
        yield
        return
    with _InFloat32(dtype):
        yield


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether this processor has instructions for products in a precision that torch's library uses."""
    if dtype == torch.float32:
        return True
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    known = torch.ops.mkldnn
    return bool(known._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else known._is_mkldnn_fp16_supported())


class _InFloat32(TorchFunctionMode):
    """Computes products that would be in half precision in float32, of rounded numbers, and rounds what they give."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _PRODUCTS or not _in_half((*args, *kwargs.values())) or _of_few_rows(func, *args):
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            exact = func(*_widened(args, self.dtype), **_widened(kwargs, self.dtype))
        if func is torch.Tensor.addmm_:
            return args[0].copy_(exact)
        if isinstance(exact, tuple):  # of attention: means, and weights or None
            return tuple(None if one is None else one.to(self.dtype) for one in exact)
        return exact.to(self.dtype)


def _in_half(given: tuple[Any, ...]) -> bool:
    """Whether a product of these would be in half precision: autocast leaves whole numbers and float64 as they are."""
    halves = (torch.bfloat16, torch.float16, *([torch.float32] if torch.is_autocast_enabled("cpu") else []))
    return any(isinstance(one, torch.Tensor) and one.dtype in halves for one in given)


def _of_few_rows(func: Callable[..., Any], left: Any = None, *_: Any) -> bool:
    if func is not functional.linear or left is None or torch.is_grad_enabled():
        return False
    return bool(left.numel() < _FEW_ROWS * left.shape[-1])


def _widened(given: Any, dtype: torch.dtype) -> Any:
    """Arguments whose tensors of numbers are rounded to a precision and are in float32."""
    if isinstance(given, torch.Tensor):
        return given.to(dtype).float() if given.is_floating_point() else given
    if isinstance(given, dict):
        return {name: _widened(one, dtype) for name, one in given.items()}
    if isinstance(given, list | tuple):
        return [_widened(one, dtype) for one in given]
    return given
