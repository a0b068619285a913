"""Methods that train on a stream (tent, cliptta): published steps by plain loops, shared images, and resets."""

from __future__ import annotations

import math
import shutil
from itertools import permutations

import numpy as np
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

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.methods import cliptta as cliptta_file
from ttmbench.methods import task
from ttmbench.methods import tent as tent_file
from ttmbench.methods.cliptta import cliptta, pseudo_captions
from ttmbench.methods.losses import entropies
from ttmbench.methods.task import TrainingTask
from ttmbench.methods.tent import tent

CLOSE = {"abs": 1e-10, "rel": 0}
SMALL_OF_TENT = {"images": 6}  # three groups of two images: three batches of nine groups


def run_of_tent(model, shape=(9, 2, 2), **settings):
    return run_method(tent, model, shape, **{**SMALL_OF_TENT, **settings})


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
    scores, steps, task = run_of_tent(model, direction=direction, lr=0.05)
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
    assert task.cost["image_rows"] == task.cost["image_rows_backward"] == 18 and task.cost["caption_rows"] == 0


@pytest.mark.parametrize("shape", [(9, 2, 2), (6, 3, 3), (7, 2, 4), (12, 1, 3)])
@pytest.mark.parametrize("direction", ["i2t", "both"])
def test_three_batches_of_eta(direction, shape):
    model = NormTowers(scale=14.0, seed=1)
    mine, dropped = copied(model), 0
    _, steps, task = run_of_tent(model, shape, filter="eta", direction=direction, lr=0.05)
    optimizer = PlainAdam(norms_of(mine), 0.05)
    for step, groups in zip(steps, batches_of(task, 6), strict=True):
        logits = [plain_logits(mine, task, group) for group in groups]
        sides = answers_of(logits, direction)
        kept = [[(h, most) for h, most in side if h < 0.4 * most] for side in sides]
        dropped += sum(map(len, sides)) - sum(map(len, kept))
        found = tent_file.reliable(entropies(step.scores, direction), 0.4)
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
        pairs = zip(sides, first, strict=True)
        loss = mean_of_means([[side[at] for at in kept if side[at][0] < 0.4 * side[at][1]] for side, kept in pairs])
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
    for number, step in enumerate(tent(task, filter="sar", lr=lr, **SMALL_OF_TENT)):
        found.append(step.loss)
        at += [number] * (len(calls) - len(at))
    assert at == expected == resets
    assert found == pytest.approx(losses, abs=1e-10)
    for name, value in mine.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-8), name
    assert ([f"SAR reset the model {len(resets)} times"] if resets else []) == task.notes
    assert task.cost["optimizer_steps"] == 8 and task.cost["image_rows_backward"] == 2 * 48


@pytest.mark.parametrize("filter", ["eta", "sar"])
def test_a_batch_without_reliable_answers_is_not_trained_on(filter):
    model = NormTowers(scale=0.1)
    before = copied(model).state_dict()
    scores, steps, task = run_of_tent(model, filter=filter)
    assert not any(step.updated for step in steps) and all(step.loss is None for step in steps)
    assert task.cost["optimizer_steps"] == 0 and torch.equal(scores, task.scores)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_answers_that_are_reliable_no_more_at_the_second_pass_are_not_trained_on(monkeypatch):
    model = NormTowers(scale=20)
    monkeypatch.setattr(tent_file, "RADIUS", 1e3)
    before = copied(model).state_dict()
    _, steps, task = run_of_tent(model, (9, 2, 2), filter="sar", images=2)
    skipped = [step for step in steps if not step.updated]
    assert skipped and all(step.loss is None for step in skipped)
    assert task.cost["optimizer_steps"] == len(steps) - len(skipped)
    if len(skipped) == len(steps):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tent_trains_the_temperature_where_asked_alone():
    task = run_of_tent(NormTowers(), train="all")[2]
    assert not task.notes and len(task.trained) == 12 and not any("logit" in name for name in task.trained)
    model = NormTowers()
    task = run_of_tent(model, train="temperature")[2]
    assert set(task.trained) == {"logit_scale", "logit_bias"} and "temperature is trained" in task.notes[0]
    assert model.logit_scale > NormTowers().logit_scale and task.cost["image_rows"] == task.cost["caption_rows"] == 0


def test_a_single_batch_is_scored_as_by_the_model_and_that_is_noted():
    scores, steps, task = run_of_tent(NormTowers(), images=18)
    assert len(steps) == 1 and steps[0].updated and torch.equal(scores, task.scores)
    assert len(task.notes) == 1 and task.notes[0].startswith("all groups are in one batch, which is scored before")
    assert not run_of_tent(NormTowers(), images=17)[2].notes


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("filter", ["none", "eta", "sar"])
def test_a_stopped_run_resumes_bit_for_bit(filter, every):
    settings = {"filter": filter, "lr": 0.5, "reset_every": every, **SMALL_OF_TENT}
    whole = [step.scores for step in tent(vector_task(NormTowers(scale=25), (24, 2, 2)), **settings)]
    task = vector_task(NormTowers(scale=25), (24, 2, 2))
    turns = tent(task, **settings)
    first = [next(turns).scores for _ in range(4)]
    kept = task.snapshot()
    resumed = vector_task(NormTowers(scale=25), (24, 2, 2), resume=kept)
    rest = [step.scores for step in tent(resumed, **settings)]
    assert len(first + rest) == len(whole) and all(map(torch.equal, first + rest, whole))


SMALL_OF_CLIPTTA = {"images": 6, "steps": 3, "lr": 0.05}


def run_of_cliptta(model, shape=(9, 2, 2), **settings):
    return run_method(cliptta, model, shape, **{**SMALL_OF_CLIPTTA, **settings})


def plain_captions(logits, labels):
    """The caption of each image of a group."""
    m, n = logits.shape
    if labels == "argmax":
        return [max(range(n), key=lambda j, i=i: float(logits[i, j].detach())) for i in range(m)]
    return max(permutations(range(n), m), key=lambda js: sum(float(logits[i, j].detach()) for i, j in enumerate(js)))


def plain_loss(model, task, groups, labels, beta, as_published):
    """Loss, pseudo-captions and the logits of every image with every pseudo-caption of the batch."""
    by_group = [plain_logits(model, task, group) for group in groups]
    chosen = [plain_captions(logits, labels) for logits in by_group]
    inputs = task._prepared
    images = [inputs.images[row] for group in groups for row in task.image_rows[group].tolist()]
    own = zip(task.caption_rows[groups], chosen, strict=True)
    captions = [inputs.captions[rows[j]] for rows, picked in own for j in picked]
    v = [one / one.norm() for one in map(model.visual, images)]
    t = [one / one.norm() for one in map(model.text, captions)]
    scale, bias = torch.exp(model.logit_scale), model.logit_bias
    pairs = torch.stack([torch.stack([scale * (a @ b) + bias for b in t]) for a in v])
    rows = sum(plain_entropy(row) for row in pairs) / len(v)
    columns = rows if as_published else sum(plain_entropy(column) for column in pairs.T) / len(v)
    loss = (rows + columns) / 2
    m, n = by_group[0].shape
    if m == n:
        spread = 0
        for logits in by_group:
            mean = sum(torch.exp(row) / torch.exp(row).sum() for row in logits) / m
            spread = spread - sum(p * torch.log(p) for p in mean)
        loss = loss - beta * spread / len(groups)
    return loss, chosen, pairs


@pytest.mark.parametrize(("beta", "as_published"), [(1.0, False), (0.0, True)])
@pytest.mark.parametrize("labels", ["argmax", "matching"])
@pytest.mark.parametrize("shape", [(9, 2, 2), (6, 3, 3), (7, 2, 4), (18, 1, 3)])
def test_three_batches_of_cliptta(shape, labels, beta, as_published, monkeypatch):
    model = NormTowers()
    mine, entropies = copied(model), []
    watched = lambda logits: entropies.append(logits.detach()) or row_entropy(logits)  # noqa: E731
    monkeypatch.setattr(cliptta_file, "row_entropy", watched)
    row_entropy = cliptta_file.__dict__["column_entropy"].__globals__["row_entropy"]
    _, steps, task = run_of_cliptta(model, shape, labels=labels, beta_reg=beta, as_published_columns=as_published)
    seen = iter(entropies[:: 2 if as_published else 1])
    optimizer = PlainAdam(norms_of(mine), 0.05)
    batches = batches_of(task, 6)
    assert [step.groups.tolist() for step in steps] == batches and len(batches) >= 3
    for step, groups in zip(steps, batches, strict=True):
        for _ in range(3):
            loss, chosen, pairs = plain_loss(mine, task, groups, labels, beta, as_published)
            logits = torch.stack([plain_logits(mine, task, group) for group in groups]).detach()
            assert pseudo_captions(logits, labels).tolist() == [list(picked) for picked in chosen]
            assert torch.allclose(next(seen), pairs, rtol=0, atol=1e-9), "every image with every pseudo-caption"
            optimizer.step(torch.autograd.grad(loss, optimizer.parameters))
        assert step.loss == pytest.approx(float(loss.detach()), abs=1e-9) and step.updated
        logits = torch.stack([plain_logits(mine, task, group) for group in groups]).detach()
        assert torch.allclose(step.scores, logits, rtol=0, atol=1e-8), "after the last step"
    for name, value in mine.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-8), name
    images = shape[0] * shape[1]
    assert (task.cost["image_rows_backward"], task.cost["image_rows"], task.cost["caption_rows"]) == (
        3 * images,
        4 * images,
        0,
    )


def test_a_single_image_is_not_trained_on():
    model = NormTowers()
    before = copied(model).state_dict()
    scores, steps, task = run_of_cliptta(model, (4, 1, 3), images=1)
    assert not any(step.updated for step in steps) and task.cost["optimizer_steps"] == 0
    assert torch.allclose(scores, task.scores, rtol=0, atol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_groups_in_which_it_is_not_defined():
    for shape, labels in (((6, 3, 1), "argmax"), ((6, 3, 2), "matching")):
        with pytest.raises(UsageError, match=f"cliptta with labels={labels} .* {shape[1]}x{shape[2]} groups"):
            run_of_cliptta(NormTowers(), shape, labels=labels)
    assert "beta_reg is not used: in 3x2 groups" in run_of_cliptta(NormTowers(), (6, 3, 2))[2].notes[0]
    assert not run_of_cliptta(NormTowers(), (6, 3, 2), beta_reg=0)[2].notes


SETTINGS = {"images": 6, "lr": 0.05}  # three groups of two images in a batch
SHARED = [0, 1, 2, 0, 3, 2, 0, 1, 4]
METHODS = pytest.mark.parametrize("method", [tent, cliptta])


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_is_in_one_batch_and_each_group_once(seed):
    clusters = np.random.default_rng(seed).integers(0, 25, 60).tolist()
    found = [batch.tolist() for batch in task.batches_of(60, 6, seed, clusters)]
    assert sorted(group for batch in found for group in batch) == list(range(60)) and len(found) >= 10
    place = {clusters[group]: number for number, batch in enumerate(found) for group in batch}
    assert all(place[clusters[group]] == number for number, batch in enumerate(found) for group in batch)
    largest = max(map(clusters.count, clusters))
    assert all(len(batch) <= max(6, largest) for batch in found)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed)).tolist()
    assert list(dict.fromkeys(clusters[group] for group in order)) == list(
        dict.fromkeys(clusters[group] for batch in found for group in batch)
    ), "clusters come in the order of their first groups"


@METHODS
def test_without_shared_images_nothing_changes(method):
    usual, _, _ = run_method(method, NormTowers(), **SETTINGS)
    alone, _, _ = run_method(method, NormTowers(), shared=list(range(9)), **SETTINGS)
    scattered, _, _ = run_method(method, NormTowers(), shared=SHARED, clusters="scattered", **SETTINGS)
    assert torch.equal(usual, alone) and torch.equal(usual, scattered)


def test_no_group_is_scored_by_a_model_that_was_trained_on_its_image():
    scores, steps, _ = run_method(tent, NormTowers(), shared=SHARED, **SETTINGS)
    met = [[SHARED[group] for group in step.groups.tolist()] for step in steps]
    assert len(met) > 1 and not any(set(some) & set(other) for i, some in enumerate(met) for other in met[:i])
    assert not torch.equal(scores, run_method(tent, NormTowers(), **SETTINGS)[0])


def test_a_cluster_larger_than_a_batch_is_one_batch_and_that_is_noted():
    _, steps, made = run_method(tent, NormTowers(), shared=[0, 0, 0, 0, 0, 1, 2, 3, 4], **SETTINGS)
    assert sorted(max((step.groups.tolist() for step in steps), key=len)) == [0, 1, 2, 3, 4]
    assert made.notes == ["groups that share images stay in one batch, so one has 5 groups; others at most 3"]
    _, steps, made = run_method(tent, NormTowers(), shared=[0] * 9, **SETTINGS)
    assert len(steps) == 1 and made.notes[0].startswith("all groups are in one batch, which is scored before")


def test_a_method_that_is_reset_meets_groups_as_ever():
    made = vector_task(NormTowers(), shared=SHARED)
    made._resets = True
    assert [batch.tolist() for batch in made.batches(6)] == batches_of(made, 6)


@METHODS
@pytest.mark.parametrize("every", [1, 2])
def test_reset_every_so_many_batches(method, every):
    """Between two resets the model goes through the batches as if no other had come before."""
    model = NormTowers()
    made = vector_task(model)
    turns = [batch.tolist() for batch in made.batches(6)]
    scores = torch.cat([step.scores for step in method(made, reset_every=every, **SETTINGS)])
    fresh = []
    for start in range(0, len(turns), every):
        again = vector_task(NormTowers())
        again.batches = lambda *_, some=turns[start : start + every]: [torch.tensor(batch) for batch in some]
        fresh += [step.scores for step in method(again, **SETTINGS)]
    assert torch.equal(scores, torch.cat(fresh))
    assert not torch.equal(scores, torch.cat([step.scores for step in method(vector_task(NormTowers()), **SETTINGS)]))
    noted = [note for note in made.notes if note.startswith("reset_every=1")]
    assert bool(noted) == (method is tent and every == 1)


def test_the_run_knows_which_groups_share_images(folder_task):
    folder = folder_task()
    shutil.copy(folder / "images" / "0_0.png", folder / "images" / "3_1.png")
    settings = {"methods": "tent", "method_args": {"tent": {"images": 2}}, "device": "cpu", "bootstrap_iters": 0}
    document = ttmbench.simple_evaluate("tiny-clip", str(folder / "mine.yaml"), **settings).document
    record = document["methods"]["mine"]["tent"]
    assert record["notes"] == ["groups that share images stay in one batch, so one has 2 groups; others at most 1"]
    assert record["settings"]["clusters"] == "together" and record["turns"] == 5
