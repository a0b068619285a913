"""Entropies and confident views, against plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ttmbench.errors import UsageError
from ttmbench.methods.losses import confident, entropies, entropy, marginal_entropy

LOGITS = torch.from_numpy(np.random.default_rng(0).normal(scale=3, size=(5, 3, 4)).astype(np.float32))


def softmax(values):
    raised = np.exp(values - values.max())
    return raised / raised.sum()


def plain_entropy(values):
    return -sum(p * math.log(p) for p in softmax(values))


@pytest.mark.parametrize("direction", ["i2t", "t2i", "both"])
def test_mean_entropy_of_rows_and_of_columns(direction):
    values = LOGITS.double().numpy()
    rows = np.mean([plain_entropy(group[i]) for group in values for i in range(3)])
    columns = np.mean([plain_entropy(group[:, j]) for group in values for j in range(4)])
    expected = {"i2t": rows, "t2i": columns, "both": (rows + columns) / 2}[direction]
    assert float(entropy(LOGITS, direction)) == pytest.approx(expected, abs=1e-6)


def test_a_direction_with_one_item_is_dropped_from_both_and_refused_alone():
    one_caption, one_image = LOGITS[:, :, :1], LOGITS[:, :1]
    assert entropy(one_caption, "both") == entropy(one_caption, "t2i")
    assert entropy(one_image, "both") == entropy(one_image, "i2t")
    assert [most for _, most in entropies(LOGITS, "both")] == [math.log(4), math.log(3)]
    with pytest.raises(UsageError, match=r"direction=i2t needs groups of at least two captions .* not 3x1"):
        entropy(one_caption, "i2t")
    with pytest.raises(UsageError, match=r"direction=t2i needs groups of at least two images .* not 1x4"):
        entropy(one_image, "t2i")


def test_confident_views_by_plain_sorting():
    views = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 3, 64, 4)).astype(np.float32))
    kept = confident(views, 0.1)
    assert kept.shape == (2, 3, 6)
    for image, row in zip(views.reshape(6, 64, 4), kept.reshape(6, 6), strict=True):
        order = sorted(range(64), key=lambda view, image=image: plain_entropy(image[view].double().numpy()))
        assert row.tolist() == order[:6]
    assert confident(views[:, :, :5], 0.1).shape[-1] == 1, "never none"
    assert confident(torch.zeros(10, 3), 0.5).tolist() == [0, 1, 2, 3, 4], "ties keep their order"


def test_marginal_entropy_is_that_of_the_mean_probability():
    values = LOGITS.double().numpy()
    expected = []
    for views in values:
        mean = np.mean([softmax(view) for view in views], axis=0)
        expected.append(-sum(p * math.log(p) for p in mean))
    assert marginal_entropy(LOGITS).tolist() == pytest.approx(expected, abs=1e-6)


def test_entropies_of_certain_answers_have_finite_gradients():
    sure = torch.tensor([[[1e4, 0.0], [0.0, 1e4]]], requires_grad=True)
    loss = entropy(sure, "both") + marginal_entropy(sure).mean() + marginal_entropy(sure[:, :1]).mean()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(sure.grad).all()
