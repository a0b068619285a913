"""The global variant, and an optimiser that keeps its state, held to loops in plain torch and scipy (section 3.2.1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment

from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.scoring.prepare import prepare
from ttmbench.scoring.prepared_task import PreparedTask
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


def naive(groups, thresholds, keep):
    """Eq. 2 over all images and captions, the top 1 - tau_t of its pairs, one full batch a step."""
    model = Towers()
    images = model.prepare_images([ref.open() for group in groups for ref in group.images])
    captions = model.prepare_captions([text for group in groups for text in group.captions])
    optimizer, history = None, []
    for t, tau in enumerate(thresholds, 1):
        scores = model.logits(model.encode_images(images), model.encode_captions(captions)).numpy().astype(np.float64)
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
        history.append((tau, sorted(rows[best].tolist()), columns[best][np.argsort(rows[best])].tolist(), losses))
    return history


@pytest.mark.parametrize("keep", [False, True])
def test_the_global_variant_equals_a_naive_one(keep):
    groups, model = colours(), Towers()
    stage = PreparedTask(model, prepare(model, groups, 32)[0], 32, True, True)
    config = TTMConfig(iterations=ITERATIONS, epochs=EPOCHS, tau_start=0.5, keep_optimizer_state=keep)
    cosine = ScheduleSpec("cosine", schedules.cosine)
    steps = list(adapt(stage, stage.score(), config=config, schedule=cosine, learning_rate=LR, seed=7))
    thresholds = [0.25 * (1 + math.cos(math.pi * t / (ITERATIONS - 1))) for t in range(ITERATIONS)]
    for step, (tau, rows, columns, losses) in zip(steps, naive(groups, thresholds, keep), strict=True):
        assert step.threshold == pytest.approx(tau)
        assert np.flatnonzero(step.selected).tolist() == rows
        assert step.captions[step.selected, 0].tolist() == columns
        assert list(step.loss) == pytest.approx(losses, abs=1e-5)
    assert steps[0].loss != steps[-1].loss
