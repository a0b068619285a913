"""Optimiser steps, gradients in parts and want of memory, on models of a few weights."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from support.small_models import stage_of, task_of

from ttmbench.config import TTMConfig
from ttmbench.errors import DivergedError, TtmbenchError
from ttmbench.methods import training
from ttmbench.methods.training import TrainingPairs
from ttmbench.model import PairScorer
from ttmbench.scoring import inputs
from ttmbench.scoring.batches import BatchSizer


def optimizer_of(adapter):
    return training.adamw(list(adapter.named_parameters()), TTMConfig())


def fit_of(stage, batch=4, **settings):
    """Fits a model to true pairs, as a task in its first iteration; and its optimiser."""
    task = task_of(stage, config=TTMConfig(batch_groups=batch, **settings))
    assert next(task.iterations()) == 1
    rows = stage.prepared.rows
    return partial(task.fit, 1, TrainingPairs(rows.images, rows.captions)), task._optimizer


def test_the_learning_rate_of_every_step(monkeypatch):
    fit, optimizer = fit_of(stage_of(6), epochs=2, lr=2.0)
    rates = []
    assert optimizer.param_groups[0]["weight_decay"] == 0.05 and optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert optimizer.param_groups[0]["fused"]
    monkeypatch.setattr(optimizer, "step", lambda: rates.append(optimizer.param_groups[0]["lr"]))
    assert len(fit()) == 2
    assert rates == pytest.approx([2 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 4))) for step in range(4)])
    rates.clear()
    fit(lambda step, steps: step + steps / 10)
    assert rates == pytest.approx([2 * (step + 0.4) for step in range(4)])


@pytest.mark.parametrize("part", [1, 3, 4, 7])
def test_a_gradient_in_parts_is_that_of_the_whole_batch(part):
    """Up to the rounding of float32 in sums of seven rows of five numbers, relative to the largest gradient."""
    stage = stage_of(7, 1, 3)
    model, images, captions = stage.adapter, stage.prepared.images, stage.prepared.captions[:7]
    whole = model.matching_loss(images, captions)
    whole.backward()
    expected = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    loss = training.contrastive_in_parts(model, images, captions, part)
    assert float(loss) == pytest.approx(float(whole.detach()), rel=64 * 2.0**-23)
    bound = 64 * 2.0**-23 * max(float(one.abs().max()) for one in expected.values())
    for name, one in model.named_parameters():
        assert torch.allclose(one.grad, expected[name], rtol=0, atol=bound), name
    sizer = BatchSizer(64)
    sizer.training = part
    before, optimizer = len(model.seen), optimizer_of(model)
    training.gradient(model, images, captions, None, optimizer, sizer)
    assert len(model.seen) - before == (1 if part == 7 else 0), "in one piece where a part holds all of it"


class YesOrNo(PairScorer):
    """A pair model of one weight: says of a pair whether it matches."""

    def __init__(self) -> None:
        self.weight, self.sizes = torch.nn.Parameter(torch.tensor(0.3)), []

    def fingerprint(self): ...

    def score_pairs(self, images, captions): ...

    def parameters(self):
        return [self.weight]

    def named_parameters(self):
        return [("weight", self.weight)]

    def pair_loss(self, images, captions, matched):
        self.sizes.append(len(matched))
        wanted = torch.from_numpy(matched.astype(np.float32))
        return torch.nn.functional.binary_cross_entropy_with_logits((images * captions).sum(1) * self.weight, wanted)

    def state_dict(self):
        return {"weight": self.weight.data}

    def load_state_dict(self, state):
        self.weight.data.copy_(state["weight"])


def test_pairs_that_match_or_not_are_trained_in_parts():
    rng, model = np.random.default_rng(0), YesOrNo()
    images, captions = (torch.from_numpy(rng.normal(size=(7, 3)).astype(np.float32)) for _ in range(2))
    matched = rng.random(7) < 0.5
    whole = model.pair_loss(images, captions, matched)
    whole.backward()
    gradient = float(model.weight.grad)
    for part, sizes in ((3, [3, 3, 1]), (7, [7]), (64, [7])):
        model.weight.grad, model.sizes = None, []
        loss = training._pairs_in_parts(model, images, captions, matched, part)
        assert model.sizes == sizes and float(loss) == pytest.approx(float(whole.detach()), rel=64 * 2.0**-23)
        assert float(model.weight.grad) == pytest.approx(gradient, abs=64 * 2.0**-23)
    optimizer, sizer = optimizer_of(model), BatchSizer(4)
    for size, sizes in ((None, [4, 3]), (2, [2, 2, 2, 1])):
        sizer.training, model.sizes = size, []
        training.gradient(model, images, captions, matched, optimizer, sizer)
        assert model.sizes == sizes and float(model.weight.grad) == pytest.approx(gradient, abs=64 * 2.0**-23)


def out_of_memory_above(limit, plain):
    def work(*given):
        if len(given[-1]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(*given)

    return work


def test_training_that_runs_out_of_memory_goes_on_in_parts(capsys):
    stage = stage_of(8, 1, 2)
    model, images, captions = stage.adapter, stage.prepared.images, stage.prepared.captions[:8]
    batch, optimizer = (images, captions, None), optimizer_of(model)
    expected = float(training.gradient(model, *batch, optimizer, BatchSizer(64)))
    gradient = model.image.weight.grad.clone()
    model.train_captions = out_of_memory_above(2, model.train_captions)
    sizer = BatchSizer(64)
    assert float(training.gradient(model, *batch, optimizer, sizer)) == pytest.approx(expected, rel=64 * 2.0**-23)
    assert sizer.training == 2 and "out of memory while training on 8 images" in capsys.readouterr().err
    assert torch.allclose(model.image.weight.grad, gradient, rtol=0, atol=float(gradient.abs().max()) * 64 * 2.0**-23)
    model.trains_in_parts = False
    with pytest.raises(TtmbenchError, match="cannot compute the gradient in parts"):
        training.gradient(model, *batch, optimizer, BatchSizer(64))
    pairs = YesOrNo()
    pairs.pair_loss = out_of_memory_above(2, pairs.pair_loss)
    sizer = BatchSizer(5)
    matched = np.arange(8) % 2 == 0
    training.gradient(pairs, images, captions, matched, optimizer_of(pairs), sizer)
    assert sizer.training == 2 and pairs.sizes == [2, 2, 2, 2], "half of five, rounded up, and half of three"


def test_want_of_memory_for_the_optimizers_state_is_named(monkeypatch):
    fit, optimizer = fit_of(stage_of(2))
    monkeypatch.setattr(optimizer, "step", lambda: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(TtmbenchError, match="keeps two numbers for each of 50 trained"):
        fit()


def test_images_stay_where_they_would_fill_the_device(monkeypatch):
    """A quarter of what is free on a GPU, and no byte more; another device does not say how much it has."""
    pixels = torch.zeros(2, 10, dtype=torch.uint8)
    for free, moves in ((80, True), (79, False), (400, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        moved = []

        class Bytes(torch.Tensor):
            def to(self, device, moved=moved):
                moved.append(device)
                return self

        given = pixels.as_subclass(Bytes)
        assert inputs._moved(given, torch.device("cuda", 0)) is given and bool(moved) == moves
        assert inputs._moved({"pixel_values": given}, torch.device("cuda", 0)).keys() == {"pixel_values"}
        assert len(moved) == 2 * moves
        inputs._moved(given, torch.device("meta"))
        assert len(moved) == 2 * moves + 1


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_loss_that_is_not_finite_ends_training_at_its_epoch(epoch):
    stage, seen = stage_of(4), []

    def loss(images, captions):
        seen.append(len(images))
        return stage.adapter.image.weight.sum() * (float("nan") if len(seen) == epoch else 0.0)

    stage.adapter.matching_loss = loss
    with pytest.raises(DivergedError, match=rf"the loss became nan in epoch {epoch}; .*\(--ttm_args lr=1\.0e-05\)"):
        fit_of(stage, epochs=3, lr=2e-4)[0]()
