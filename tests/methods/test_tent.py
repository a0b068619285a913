"""Tent, ETA and SAR restated with loops over images and captions, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from support.norm_towers import (
    NormTowers,
    PlainAdam,
    PlainMomentum,
    batches_of,
    copied,
    norms_of,
    plain_entropy,
    plain_logits,
    run_method,
    vector_task,
)

from ttmbench.errors import UsageError
from ttmbench.methods import tent as file
from ttmbench.methods.losses import entropies
from ttmbench.methods.task import TrainingTask
from ttmbench.methods.tent import tent

CLOSE = {"abs": 1e-10, "rel": 0}
SMALL = {"images": 6}  # three groups of two images: three batches of nine groups


def run(model, shape=(9, 2, 2), **settings):
    return run_method(tent, model, shape, **{**SMALL, **settings})


def answers_of(logits, direction):
    """Entropies with the largest possible one, by direction."""
    rows = [(plain_entropy(row), math.log(logits[0].shape[1])) for group in logits for row in group]
    columns = [(plain_entropy(column), math.log(logits[0].shape[0])) for group in logits for column in group.T]
    sides = {"i2t": [rows], "t2i": [columns], "both": [rows, columns]}[direction]
    return [side for side in sides if side[0][1] > 0]


def mean_of_means(sides, weigh=lambda h, most: 1.0):
    means = [sum(weigh(h, most) * h for h, most in side) / len(side) for side in sides if side]
    return sum(means) / len(means) if means else None


@pytest.mark.parametrize("direction", ["i2t", "t2i", "both"])
def test_three_batches_of_tent(direction):
    model = NormTowers()
    mine = copied(model)
    scores, steps, task = run(model, direction=direction, lr=0.05)
    optimizer = PlainAdam(norms_of(mine), 0.05)
    batches = batches_of(task, 6)
    assert [step.groups.tolist() for step in steps] == batches and len(batches) == 3
    for step, groups in zip(steps, batches, strict=True):
        logits = [plain_logits(mine, task, group) for group in groups]
        assert torch.allclose(step.scores, torch.stack(logits).detach(), rtol=0, atol=1e-10), "before the update"
        loss = mean_of_means(answers_of(logits, direction))
        assert step.loss == pytest.approx(float(loss.detach()), **CLOSE) and step.updated
        optimizer.step(torch.autograd.grad(loss, optimizer.parameters))
    for name, value in mine.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-9), name
    first = batches[0]
    assert torch.allclose(scores[first], task.scores[first], rtol=0, atol=1e-10), "nothing is trained before it"
    assert task.cost.image_rows == task.cost.image_rows_backward == 18 and task.cost.caption_rows == 0


@pytest.mark.parametrize("shape", [(9, 2, 2), (6, 3, 3), (7, 2, 4), (12, 1, 3)])
@pytest.mark.parametrize("direction", ["i2t", "both"])
def test_three_batches_of_eta(direction, shape):
    model = NormTowers(scale=14.0, seed=1)
    mine, dropped = copied(model), 0
    _, steps, task = run(model, shape, filter="eta", direction=direction, lr=0.05)
    optimizer = PlainAdam(norms_of(mine), 0.05)
    for step, groups in zip(steps, batches_of(task, 6), strict=True):
        logits = [plain_logits(mine, task, group) for group in groups]
        sides = answers_of(logits, direction)
        kept = [[(h, most) for h, most in side if h < 0.4 * most] for side in sides]
        dropped += sum(map(len, sides)) - sum(map(len, kept))
        found = file.reliable(entropies(step.scores, direction), 0.4)
        assert [mask.flatten().tolist() for mask in found] == [[bool(h < 0.4 * most) for h, most in s] for s in sides]
        loss = mean_of_means(kept, lambda h, most: math.exp(0.4 * most - float(h.detach())))
        assert step.updated == (loss is not None)
        if loss is not None:
            assert step.loss == pytest.approx(float(loss.detach()), **CLOSE)
            optimizer.step(torch.autograd.grad(loss, optimizer.parameters))
    assert dropped and any(step.updated for step in steps)
    for name, value in mine.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-9), name


def plain_sar(model, task, lr):
    """Loss of each batch, None for none, and the batches after which the model is reset."""
    parameters = norms_of(model)
    original = [one.detach().clone() for one in parameters]
    optimizer, average, losses, resets = PlainMomentum(parameters, lr * 6 / 64), None, [], []
    for number, groups in enumerate(batches_of(task, 6)):
        sides = answers_of([plain_logits(model, task, group) for group in groups], "both")
        first = [[at for at, (h, most) in enumerate(side) if h < 0.4 * most] for side in sides]
        losses.append(None)
        loss = mean_of_means([[side[at] for at in kept] for side, kept in zip(sides, first, strict=True)])
        if loss is None:
            continue
        gradients = torch.autograd.grad(loss, parameters)
        length = math.sqrt(sum(float((one**2).sum()) for one in gradients))
        up = [0.05 * one / (length + 1e-12) for one in gradients]
        for parameter, step in zip(parameters, up, strict=True):
            parameter.data += step
        sides = answers_of([plain_logits(model, task, group) for group in groups], "both")
        kept = [
            [side[at] for at in chosen if side[at][0] < 0.4 * side[at][1]]
            for side, chosen in zip(sides, first, strict=True)
        ]
        loss = mean_of_means(kept)
        gradients = None if loss is None else torch.autograd.grad(loss, parameters)
        for parameter, step in zip(parameters, up, strict=True):
            parameter.data -= step
        if loss is None:
            continue
        losses[-1] = float(loss.detach())
        optimizer.step(gradients)
        average = float(loss.detach()) if average is None else 0.9 * average + 0.1 * float(loss.detach())
        if average < 0.2 / math.log(1000) * math.log(2):
            resets.append(number)
            average, optimizer.past = None, None
            for parameter, value in zip(parameters, original, strict=True):
                parameter.data.copy_(value)
    return losses, resets


@pytest.mark.parametrize(
    ("seed", "scale", "lr", "resets"), [(0, 10, 0.5, []), (2, 25, 3, [0, 1, 6]), (0, 400, 0.5, list(range(8)))]
)
def test_both_passes_of_sar_and_its_resets(seed, scale, lr, resets, monkeypatch):
    model, shape = NormTowers(scale=scale, seed=seed), (24, 2, 2)
    mine = copied(model)
    losses, expected = plain_sar(mine, vector_task(copied(model), shape), lr)
    calls, reset, found, at = [], TrainingTask.reset, [], []
    monkeypatch.setattr(TrainingTask, "reset", lambda task, **kept: (calls.append(task), reset(task, **kept)))
    task = vector_task(model, shape)
    for number, step in enumerate(tent(task, filter="sar", lr=lr, **SMALL)):
        found.append(step.loss)
        at += [number] * (len(calls) - len(at))
    assert at == expected == resets
    assert found == pytest.approx(losses, abs=1e-10)
    for name, value in mine.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-8), name
    assert ([f"SAR reset the model {len(resets)} times"] if resets else []) == task.notes
    assert task.cost.optimizer_steps == 8 and task.cost.image_rows_backward == 2 * 48


@pytest.mark.parametrize("filter", ["eta", "sar"])
def test_a_batch_without_reliable_answers_is_not_trained_on(filter):
    model = NormTowers(scale=0.1)
    before = copied(model).state_dict()
    scores, steps, task = run(model, filter=filter)
    assert not any(step.updated for step in steps) and all(step.loss is None for step in steps)
    assert task.cost.optimizer_steps == 0 and torch.equal(scores, task.scores)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_answers_that_are_reliable_no_more_at_the_second_pass_are_not_trained_on(monkeypatch):
    model = NormTowers(scale=20)
    monkeypatch.setattr(file, "RADIUS", 1e3)
    before = copied(model).state_dict()
    _, steps, task = run(model, (9, 2, 2), filter="sar", images=2)
    skipped = [step for step in steps if not step.updated]
    assert skipped and all(step.loss is None for step in skipped)
    assert task.cost.optimizer_steps == len(steps) - len(skipped)
    if len(skipped) == len(steps):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("filter", ["none", "eta", "sar"])
def test_equal_features_stay_equal(filter):
    scores, _, _ = run(NormTowers(), filter=filter, same=True)
    assert (scores - scores[:, :1, :1]).abs().max() < 1e-9


CHANGES = {
    "filter": ["eta", "sar"],
    "direction": ["i2t", "t2i"],
    "train": ["norm", "norm_captions", "all", "bias"],
    "lr": [0.01],
    "images": [2, 10],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values])
def test_every_option_changes_what_is_scored(name, value):
    usual, changed = {"lr": 0.05}, {"lr": 0.05, name: value}
    assert not torch.equal(run(NormTowers(), **usual)[0], run(NormTowers(), **changed)[0])


def test_one_direction_without_a_choice_is_refused():
    with pytest.raises(UsageError, match="direction=t2i"):
        run(NormTowers(), (8, 1, 3), direction="t2i")
    with pytest.raises(UsageError, match="direction=i2t"):
        run(NormTowers(), (8, 3, 1), direction="i2t")


def test_the_temperature_is_trained_where_it_is_asked_for_alone():
    task = run(NormTowers(), train="all")[2]
    assert not task.notes and len(task.trained) == 12 and not any("logit" in name for name in task.trained)
    model = NormTowers()
    task = run(model, train="temperature")[2]
    assert set(task.trained) == {"logit_scale", "logit_bias"} and "temperature is trained" in task.notes[0]
    assert model.logit_scale > NormTowers().logit_scale and task.cost.image_rows == task.cost.caption_rows == 0


def test_a_single_batch_is_scored_as_by_the_model_and_that_is_noted():
    scores, steps, task = run(NormTowers(), images=18)
    assert len(steps) == 1 and steps[0].updated and torch.equal(scores, task.scores)
    assert task.notes == [
        "all groups are in one batch, which is scored before the only update: the scores are the model's"
    ]
    assert not run(NormTowers(), images=17)[2].notes


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("filter", ["none", "eta", "sar"])
def test_a_stopped_run_resumes_bit_for_bit(filter, every):
    settings = {"filter": filter, "lr": 0.5, "reset_every": every, **SMALL}
    whole = [step.scores for step in tent(vector_task(NormTowers(scale=25), (24, 2, 2)), **settings)]
    task = vector_task(NormTowers(scale=25), (24, 2, 2))
    turns = tent(task, **settings)
    first = [next(turns).scores for _ in range(4)]
    kept = task.snapshot()
    resumed = vector_task(NormTowers(scale=25), (24, 2, 2), resume=kept)
    rest = [step.scores for step in tent(resumed, **settings)]
    assert len(first + rest) == len(whole) and all(map(torch.equal, first + rest, whole))
