"""The global variant, and an optimiser that keeps its state, held to loops in plain torch and scipy (section 3.2.1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from support.rounding import Noise

from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.scoring.prepare import PreparedTask, prepare
from ttmbench.ttm.algorithm import adapt
from ttmbench.types import Group, ImageRef, ScheduleSpec

GROUPS, ITERATIONS, EPOCHS, LR = 12, 4, 3, 2e-2


class Towers(torch.nn.Module):
    """A linear layer on a colour, another on the numbers in a caption, and a temperature."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.image, self.caption = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def prepare_images(self, images):
        return torch.tensor([[value / 255 for value in image.getpixel((0, 0))] for image in images])

    def prepare_captions(self, captions):
        return torch.tensor([[int(word) / 255 for word in caption.split()] for caption in captions])

    def encode_images(self, prepared):
        return torch.nn.functional.normalize(self.image(prepared), dim=-1).detach()

    def encode_captions(self, prepared):
        return torch.nn.functional.normalize(self.caption(prepared), dim=-1).detach()

    def logits(self, images, captions):
        return (images @ captions.T * self.scale.exp()).detach()

    def matching_loss(self, images, captions):
        sides = [torch.nn.functional.normalize(x, dim=-1) for x in (self.image(images), self.caption(captions))]
        scores, own = sides[0] @ sides[1].T * self.scale.exp(), torch.arange(len(images))
        both = (torch.nn.functional.cross_entropy(one, own) for one in (scores, scores.T))
        return sum(both) / 2


def colours():
    rng, groups = np.random.default_rng(0), []
    for number in range(GROUPS):
        rows = [tuple(map(int, row)) for row in rng.integers(0, 256, (2, 3))]
        images = tuple(
            ImageRef(f"{number}_{i}", lambda row=row: Image.new("RGB", (4, 4), row)) for i, row in enumerate(rows)
        )
        groups.append(Group(str(number), images, tuple(" ".join(map(str, row)) for row in rows)))
    return groups


def naive(groups, given, thresholds, keep, dtype=torch.float32):
    """Eq. 2 over all images and captions, the top 1 - tau_t of its pairs, one full batch a step.

    Pairs are selected by ``given``, the scores before each iteration, so that rounding decides none.
    """
    model = Towers().to(dtype)
    images = model.prepare_images([ref.open() for group in groups for ref in group.images]).to(dtype)
    captions = model.prepare_captions([text for group in groups for text in group.captions]).to(dtype)
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
    groups, model = colours(), Towers()
    stage = PreparedTask(model, prepare(model, groups, 32)[0], 32, True, True)
    config = TTMConfig(iterations=ITERATIONS, epochs=EPOCHS, tau_start=0.5, keep_optimizer_state=keep)
    cosine = ScheduleSpec("cosine", schedules.cosine)
    raw = stage.score()
    steps = list(adapt(stage, raw, config=config, schedule=cosine, learning_rate=LR, seed=7))
    thresholds = [0.25 * (1 + math.cos(math.pi * t / (ITERATIONS - 1))) for t in range(ITERATIONS)]
    given = [raw.all_pairs, *(step.scores.all_pairs for step in steps[:-1])]
    single, exact = (naive(groups, given, thresholds, keep, dtype) for dtype in (torch.float32, torch.float64))
    of_scores, of_losses = Noise(), Noise()
    for step, near, (tau, rows, columns, losses, scores) in zip(steps, single, exact, strict=True):
        assert step.threshold == pytest.approx(tau)
        assert np.flatnonzero(step.selected).tolist() == rows
        assert step.captions[step.selected, 0].tolist() == columns
        np.testing.assert_allclose(step.scores.all_pairs, scores, atol=of_scores.after(near[4], scores), rtol=0)
        np.testing.assert_allclose(step.loss, losses, atol=of_losses.after(near[3], losses), rtol=0)
    assert steps[0].loss != steps[-1].loss
