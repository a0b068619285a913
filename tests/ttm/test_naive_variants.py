"""The global variant, and an optimiser that keeps its state, against loops in plain torch and scipy (section 3.2.1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from support.rounding import Noise
from support.small_models import Towers, adapt, stage_of

from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.types import ScheduleSpec

GROUPS, ITERATIONS, EPOCHS, LR = 12, 4, 3, 2e-2


def naive(prepared, given, thresholds, keep, dtype):
    """Eq. 2 over all images and captions, the top 1 - tau_t of its pairs, one full batch a step.

    Pairs are selected by ``given``, the scores before each iteration, so that rounding decides none.
    """
    model = Towers().to(dtype)
    images, captions = prepared.images.to(dtype), prepared.captions.to(dtype)
    optimizer, history = None, []
    for t, (tau, before) in enumerate(zip(thresholds, given, strict=True), 1):
        scores = before.astype(np.float64)
        rows, columns = linear_sum_assignment(scores, maximize=True)
        best = sorted(range(len(rows)), key=lambda i: -scores[rows[i], columns[i]])[: round((1 - tau) * len(rows))]
        if optimizer is None or not keep:
            optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.05)
        losses = []
        for epoch in range(EPOCHS):
            falling = 0.1 + 0.9 * (1 + math.cos(math.pi * epoch / EPOCHS)) / 2
            optimizer.param_groups[0]["lr"] = LR * 0.95 ** (t - 1) * falling
            optimizer.zero_grad()
            loss = model.matching_loss(images[rows[best]], captions[columns[best]])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        chosen = (sorted(rows[best].tolist()), columns[best][np.argsort(rows[best])].tolist())
        after = model.logits(model.encode_images(images), model.encode_captions(captions)).numpy()
        history.append((tau, *chosen, losses, after))
    return history


@pytest.mark.parametrize("keep", [False, True])
def test_the_global_variant_equals_a_naive_one(keep):
    stage = stage_of(GROUPS, is_global=True)
    config = TTMConfig(iterations=ITERATIONS, epochs=EPOCHS, tau_start=0.5, keep_optimizer_state=keep)
    cosine = ScheduleSpec("cosine", schedules.cosine)
    raw = stage.score()
    steps = list(adapt(stage, raw, config=config, schedule=cosine, learning_rate=LR, seed=7))
    thresholds = [0.25 * (1 + math.cos(math.pi * t / (ITERATIONS - 1))) for t in range(ITERATIONS)]
    given = [raw.all_pairs, *(step.scores.all_pairs for step in steps[:-1])]
    single, exact = (naive(stage.prepared, given, thresholds, keep, dtype) for dtype in (torch.float32, torch.float64))
    of_scores, of_losses = Noise(), Noise()
    for step, near, (tau, rows, columns, losses, scores) in zip(steps, single, exact, strict=True):
        assert step.threshold == pytest.approx(tau)
        assert np.flatnonzero(step.selected).tolist() == rows
        assert step.captions[step.selected, 0].tolist() == columns
        np.testing.assert_allclose(step.scores.all_pairs, scores, atol=of_scores.after(near[4], scores), rtol=0)
        np.testing.assert_allclose(step.loss, losses, atol=of_losses.after(near[3], losses), rtol=0)
    assert steps[0].loss != steps[-1].loss
