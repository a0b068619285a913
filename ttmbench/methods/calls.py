"""Calls a method's function: validates what it returns, and names the method in its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.errors import DivergedError, TtmbenchError, UsageError
from ttmbench.methods.task import MethodStep
from ttmbench.types import MethodSpec


def checked_scores(given: object, shape: tuple[int, ...], spec: MethodSpec, plugin: str = "") -> np.ndarray:
    """Converts a method's scores to float32; TtmbenchError unless there is a finite number for each pair."""
    name = name_of(spec, plugin)
    if not isinstance(given, torch.Tensor) or tuple(given.shape) != shape:
        what = f"a tensor of shape {list(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
        raise TtmbenchError(f"{name} gave {what}; scores of shape {list(shape)} are expected")
    scores = given.detach().float().cpu().numpy()
    wrong = ~np.isfinite(scores).all(axis=(1, 2))
    if wrong.any():
        raise TtmbenchError(
            f"{name} must give every pair a finite score, and gave {int(wrong.sum())} of {len(scores)} groups one that "
            "is NaN or infinite; fix the method, or remove it from --methods"
        )
    return scores


def each_step(turns: Iterator[MethodStep], spec: MethodSpec, plugin: str) -> Iterator[MethodStep]:
    """Yields the validated steps of a method; gradients are enabled only inside the method."""
    name = name_of(spec, plugin)
    if not isinstance(turns, Iterator):
        raise TtmbenchError(f"{name} needs gradients, so it yields a MethodStep for each turn; it gave {turns!r:.60}")
    while True:
        with named(spec, plugin), torch.enable_grad():
            step = next(turns, None)
        if step is None:
            return
        if not isinstance(step, MethodStep):
            raise TtmbenchError(f"{name} yielded {step!r:.60}; a MethodStep is expected (batch.step)")
        if not torch.isfinite(step.scores).all():
            raise DivergedError(f"{name}: the scores became NaN or infinite", None)
        yield step


def name_of(spec: MethodSpec, plugin: str) -> str:
    """Name of a method in messages."""
    return f"method '{spec.name}'" + (f" of plugin '{plugin}'" if plugin else "")


@contextmanager
def named(spec: MethodSpec, plugin: str) -> Iterator[None]:
    """Prefixes errors raised inside with the method's name."""
    try:
        with foreign_errors(name_of(spec, plugin)):
            yield
    except UsageError as error:
        raise UsageError(f"{name_of(spec, plugin)}: {error}") from None


@contextmanager
def frozen_again(adapter: Any) -> Iterator[None]:
    """Restores ``requires_grad`` of all parameters afterwards, and clears gradients."""
    before = [(parameter, parameter.requires_grad) for parameter in adapter.parameters()]
    try:
        yield
    finally:
        for parameter, needs_gradient in before:
            parameter.requires_grad_(needs_gradient)
            parameter.grad = None
