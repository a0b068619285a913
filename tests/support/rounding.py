"""How far two float results may differ when the same sums are computed in another order, by another CPU or batch."""

from __future__ import annotations

import numpy as np
import torch


def gamma(roundings: int, dtype: torch.dtype = torch.float32) -> float:
    """The relative error of as many roundings in a row: n u / (1 - n u), with u half the distance of floats at 1.

    A sum of n products is off by at most gamma(n) times the sum of their magnitudes, in whatever order it is computed.
    """
    error = roundings * torch.finfo(dtype).eps / 2
    assert error < 0.5, f"{roundings} roundings in {dtype} leave nothing to compare"
    return error / (1 - error)


def length(model: torch.nn.Module) -> int:
    """How many roundings lead from the input of a model to its output: the lengths of all its layers' sums together.

    A weight of shape [out, ...] takes one for each product that it adds up, a bias or a scale one.
    """
    return sum(int(np.prod(parameter.shape[1:])) for parameter in model.parameters())


def bound(model: torch.nn.Module, size, passes: int = 1) -> float:
    """How far two results of one float32 model may be apart: its roundings of each, at the size of the largest.

    ``passes`` is 2 for gradients, which go through the model forwards and backwards.
    """
    return 2 * gamma(passes * length(model)) * float(torch.as_tensor(size).detach().abs().max())


class Noise:
    """What rounding does to a model in training, measured: the same training is run in float32 and in float64.

    Training amplifies rounding by as much as the model is curved, which no formula knows. So how far float32 is from
    float64 on this machine bounds how far another computation in float32 may be from it.
    """

    FACTOR = 10  # between two largest differences that come from rounding alone

    def __init__(self) -> None:
        self.largest = 0.0

    def after(self, single, double) -> float:
        """An absolute tolerance after the same training, which only grows, as what is amplified does."""
        least = np.abs(double).max() * torch.finfo(torch.float32).eps
        self.largest = max(self.largest, float(np.abs(np.subtract(single, double)).max()), float(least))
        return self.FACTOR * self.largest
