"""`tests/support/rounding.py`: its bounds hold for sums in any order, and a sum of other terms is outside them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.rounding import bound, gamma, length


@pytest.mark.parametrize("n", [3, 100, 10_000])
def test_a_sum_in_any_order_is_within_gamma(n):
    rng = np.random.default_rng(n)
    values = (rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3, n)).astype(np.float32)
    exact, size = math.fsum(values.tolist()), float(np.abs(values.astype(np.float64)).sum())
    orders = (values, values[::-1], np.sort(values), rng.permutation(values))
    sums = [float(one.cumsum(dtype=np.float32)[-1]) for one in orders] + [float(values.sum())]
    assert all(abs(one - exact) <= gamma(n) * size for one in sums)
    assert abs(exact - math.fsum(values[np.abs(values).argsort()][:-1].tolist())) > gamma(n) * size


def test_the_length_of_a_model_is_that_of_its_sums():
    model = torch.nn.Sequential(torch.nn.Linear(30, 7), torch.nn.LayerNorm(7), torch.nn.Conv1d(3, 2, 5, bias=False))
    assert length(model) == (30 + 1) + (1 + 1) + 3 * 5
    assert bound(model, torch.tensor([1.0, -4.0])) == pytest.approx(2 * 4 * gamma(48))
    assert bound(model, 1, passes=2) == pytest.approx(2 * gamma(96))
