"""CLIPTTA restated with loops over images, in float64."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from support.norm_towers import (
    NormTowers,
    PlainAdam,
    batches_of,
    copied,
    norms_of,
    plain_entropy,
    plain_logits,
    run_method,
)

from ttmbench.errors import UsageError
from ttmbench.methods import cliptta as file
from ttmbench.methods.cliptta import cliptta, pseudo_captions

SMALL = {"images": 6, "steps": 3, "lr": 0.05}


def run(model, shape=(9, 2, 2), **settings):
    return run_method(cliptta, model, shape, **{**SMALL, **settings})


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
    captions = [
        inputs.captions[task.caption_rows[group][j]]
        for group, picked in zip(groups, chosen, strict=True)
        for j in picked
    ]
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


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("labels", ["argmax", "matching"])
@pytest.mark.parametrize("shape", [(9, 2, 2), (6, 3, 3), (7, 2, 4), (18, 1, 3)])
def test_three_batches_of_cliptta(shape, labels, beta, as_published, monkeypatch):
    model = NormTowers()
    mine, entropies = copied(model), []
    monkeypatch.setattr(file, "row_entropy", lambda logits: entropies.append(logits.detach()) or row_entropy(logits))
    row_entropy = file.__dict__["column_entropy"].__globals__["row_entropy"]
    _, steps, task = run(model, shape, labels=labels, beta_reg=beta, as_published_columns=as_published)
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
    assert (task.cost.image_rows_backward, task.cost.image_rows, task.cost.caption_rows) == (3 * images, 4 * images, 0)


CHANGES = {
    "labels": ["matching"],
    "as_published_columns": [True],
    "beta_reg": [0.0, 2.0],
    "steps": [1, 5],
    "train": ["norm", "norm_captions", "all"],
    "lr": [0.01],
    "images": [2, 10],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values])
def test_every_option_changes_what_is_scored(name, value):
    assert not torch.equal(run(NormTowers())[0], run(NormTowers(), **{name: value})[0])


def test_a_single_image_is_not_trained_on():
    model = NormTowers()
    before = copied(model).state_dict()
    scores, steps, task = run(model, (4, 1, 3), images=1)
    assert not any(step.updated for step in steps) and task.cost.optimizer_steps == 0
    assert torch.allclose(scores, task.scores, rtol=0, atol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_groups_in_which_it_is_not_defined():
    for shape, labels in (((6, 3, 1), "argmax"), ((6, 3, 2), "matching")):
        with pytest.raises(UsageError, match=f"cliptta with labels={labels} .* {shape[1]}x{shape[2]} groups"):
            run(NormTowers(), shape, labels=labels)
    assert "beta_reg is not used: in 3x2 groups" in run(NormTowers(), (6, 3, 2))[2].notes[0]
    assert not run(NormTowers(), (6, 3, 2), beta_reg=0)[2].notes


def test_the_temperature_is_trained_where_it_is_asked_for_alone():
    assert not any("logit" in name for name in run(NormTowers(), train="all")[2].trained)
    assert set(run(NormTowers(), train="temperature")[2].trained) == {"logit_scale", "logit_bias"}
