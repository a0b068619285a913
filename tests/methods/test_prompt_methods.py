"""Methods that shift captions (tps, tpt, c_tpt): published steps by plain loops, and what they must hold on groups."""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from support.adapter_inputs import double_masks
from support.training_tasks import WORDS, load, training_task

from ttmbench.errors import UsageError
from ttmbench.methods.losses import confident
from ttmbench.methods.tps import tps
from ttmbench.methods.tpt import tpt
from ttmbench.methods.views import confident_views, view_logits
from ttmbench.plugins.method_functions import METHODS

AdamW = torch.optim.AdamW


@pytest.fixture(scope="module", params=["tiny_hf_clip", "tiny_siglip"])
def adapter(request):
    return load(request.getfixturevalue(request.param))


def entropy(logits):
    """Of one answer, and its gradient with respect to the logits, in float64."""
    raised = np.exp(logits - logits.max())
    p = raised / raised.sum()
    return -sum(x * math.log(x) for x in p), p


class PublishedOfTps:
    """Loss of the shifted captions of one group by plain loops in float64, its gradient by differences, and AdamW."""

    def __init__(self, task, group, share, count=64):
        scale, bias = float(task.scale), float(task.bias)
        self.scale, self.bias = scale, bias
        views = task.views(count, 0.5, False)[task.image_rows[group]].double().numpy()
        self.images = task.all_images[task.image_rows[group]].double().numpy()
        self.captions = task.all_captions[task.caption_rows[group]].double().numpy()
        self.all_views, self.count = views, max(1, int(count * share))
        self.select(np.zeros_like(self.captions))

    def select(self, shift):
        """Chooses the views for a step from a shift."""
        captions = self.shifted(shift)
        self.kept = []
        for image in self.all_views:
            found = [entropy(self.scale * captions @ view + self.bias)[0] for view in image]
            self.kept.append(sorted(range(len(image)), key=found.__getitem__)[: self.count])
        self.views = [image[kept] for image, kept in zip(self.all_views, self.kept, strict=True)]

    def shifted(self, shift):
        moved = self.captions + shift
        return moved / np.linalg.norm(moved, axis=1, keepdims=True)

    def loss(self, shift, direction="both"):
        captions = self.shifted(shift)
        logits = [self.scale * views @ captions.T + self.bias for views in self.views]  # of each image [kept, n]
        rows = []
        for of_views in logits:
            mean = np.mean([entropy(view)[1] for view in of_views], axis=0)
            rows.append(-sum(p * math.log(p) for p in mean))
        columns = np.array([of_views.mean(axis=0) for of_views in logits]).T
        found = {"i2t": np.mean(rows), "t2i": np.mean([entropy(column)[0] for column in columns])}
        return np.mean(list(found.values())) if direction == "both" else found[direction]

    def gradient(self, shift, direction="both", width=1e-5):
        self.select(shift)
        found = np.zeros_like(shift)
        for at in np.ndindex(shift.shape):
            step = np.zeros_like(shift)
            step[at] = width
            found[at] = (self.loss(shift + step, direction) - self.loss(shift - step, direction)) / (2 * width)
        return found


def adamw(gradient_of, start, steps, lr=5e-3, decay=0.01):
    """The published optimiser (arXiv:1711.05101) with its usual constants."""
    value, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for step in range(1, steps + 1):
        gradient = gradient_of(value)
        value -= lr * decay * value
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        value -= lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return value


@pytest.mark.parametrize(
    ("steps", "lr", "direction"), [(1, 5e-3, "both"), (3, 0.1, "both"), (1, 5e-3, "i2t"), (1, 5e-3, "t2i")]
)
def test_views_loss_shift_and_scores_as_published(adapter, steps, lr, direction, monkeypatch):
    task = training_task(adapter, m=2, n=3)
    made = []
    monkeypatch.setattr(torch.optim, "AdamW", lambda shifts, **how: made.append(shifts[0]) or AdamW(shifts, **how))
    turns, changed = list(tps(task, steps=steps, lr=lr, direction=direction)), False
    assert [step.groups.numel() for step in turns] == [1, 1, 1]
    for step, shift in zip(turns, made, strict=True):
        group = int(step.groups)
        published = PublishedOfTps(task, group, 0.1)
        captions, views = task.captions[group][None], task.views(64, 0.5, False)[task.image_rows[group]][None]
        assert confident(view_logits(task, views, captions), 0.1)[0].tolist() == published.kept
        kept = np.stack(published.views)
        assert torch.equal(confident_views(task, views, captions, 0.1)[0], torch.from_numpy(kept).float())
        zero = np.zeros_like(published.captions)
        first = published.kept
        gradient = partial(published.gradient, direction=direction)
        before = adamw(gradient, zero, steps - 1, lr)
        published.select(before)
        changed |= published.kept != first
        assert step.loss == pytest.approx(published.loss(before, direction), abs=1e-6)
        after = adamw(gradient, zero, steps, lr)
        # Adam divides by the gradient's size: a coordinate whose gradient is nearly 0 moves by any part of the rate.
        sure = np.abs(gradient(zero)) > 1e-4
        assert sure.mean() > 0.5
        np.testing.assert_allclose(shift.detach()[0].numpy()[sure], after[sure], atol=1e-6)
        captions = published.shifted(shift.detach()[0].double().numpy())
        expected = published.scale * published.images @ captions.T + published.bias
        np.testing.assert_allclose(step.scores[0].numpy(), expected, atol=1e-5)
    assert changed or lr < 0.1, "views are chosen anew at each step"


def test_groups_that_it_is_not_defined_for_are_refused_in_one_line(adapter):
    with pytest.raises(UsageError, match=r"^views are selected by .*, but a 2x1 group has one caption$"):
        next(tps(training_task(adapter, n=1)))
    with pytest.raises(UsageError, match=r"direction=t2i needs groups of at least two images .* not 1x2"):
        next(tps(training_task(adapter, m=1), direction="t2i"))
    one_image = training_task(adapter, m=1, n=4)
    list(tps(one_image))
    assert one_image.notes == ["direction=both: in a 1x4 group there is one image, so only its own answer counts"]


OF_C_TPT = next(spec for spec in METHODS if spec.name == "c_tpt").settings


class PublishedOfTpt:
    """One group in float64: tokens as new words of the vocabulary, so that no tower is entered halfway."""

    def __init__(self, adapter, task, group, share=0.1, count=64):
        self.model = copy.deepcopy(adapter.model).double().requires_grad_(False)
        texts = [WORDS[row] for row in task.caption_rows[group].tolist()]
        tokens = adapter.prepare_captions(texts)
        self.ids, self.mask = tokens["input_ids"].clone(), tokens.get("attention_mask")
        self.weights = self.model.text_model.embeddings.token_embedding.weight.clone()
        self.new = []  # (word, place of the shift) of each new token, behind the vocabulary
        for row, text in zip(self.ids, texts, strict=True):
            for place in range(min(4, len(text.split()))):  # "a red circle": 3 words behind the start of text
                self.new.append((int(row[1 + place]), place))
                row[1 + place] = len(self.weights) + len(self.new) - 1
        self.scale, self.bias = float(task.scale), float(task.bias)
        self.images = task.all_images[task.image_rows[group]].double()
        start = task.all_captions[task.caption_rows[group]].double()
        self.kept, self.views = [], []
        for image in task.views(count, 0.5, False)[task.image_rows[group]].double():
            found = [self.entropy(self.scale * start @ view + self.bias) for view in image]
            order = sorted(range(count), key=lambda view, of=found: float(of[view]))
            self.kept.append(order[: max(1, int(count * share))])
            self.views.append(image[self.kept[-1]])

    @staticmethod
    def entropy(logits):
        p = torch.exp(logits - logits.max())
        p = p / p.sum()
        return -(p * torch.log(p)).sum()

    def captions(self, shift):
        words = torch.stack([self.weights[word] + shift[place] for word, place in self.new])
        larger = {"embeddings.token_embedding.weight": torch.cat([self.weights, words])}
        tokens = {"input_ids": self.ids, "attention_mask": self.mask}
        with double_masks():
            features = torch.func.functional_call(self.model.text_model, larger, (), tokens).pooler_output
        if hasattr(self.model, "text_projection"):
            features = self.model.text_projection(features)
        return features / features.norm(dim=1, keepdim=True)

    def loss(self, shift, direction="both", dispersion=0.0):
        captions = self.captions(shift)
        logits = [self.scale * views @ captions.T + self.bias for views in self.views]
        rows, columns = [], []
        for of_views in logits:
            mean = torch.stack([torch.softmax(view, dim=0) for view in of_views]).mean(dim=0)
            rows.append(-(mean * mean.log()).sum())
        for caption in range(len(captions)):
            columns.append(self.entropy(torch.stack([of_views[:, caption].mean() for of_views in logits])))
        found = {"i2t": sum(rows) / len(rows), "t2i": sum(columns) / len(columns)}
        loss = (found["i2t"] + found["t2i"]) / 2 if direction == "both" else found[direction]
        away = [torch.linalg.norm(caption - captions.mean(dim=0)) for caption in captions]
        return loss - dispersion * sum(away) / len(away)

    def steps(self, count, **of_loss):
        """Shift, loss before, and gradient of every step; AdamW written out."""
        shift = torch.zeros(4, self.weights.shape[1], dtype=torch.float64)
        first = second = torch.zeros_like(shift)
        for number in range(1, count + 1):
            variable = shift.clone().requires_grad_()
            loss = self.loss(variable, **of_loss)
            (gradient,) = torch.autograd.grad(loss, variable)
            shift = shift - 5e-3 * 0.01 * shift
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            size = (second / (1 - 0.999**number)).sqrt() + 1e-8
            shift = shift - 5e-3 * first / (1 - 0.9**number) / size
            yield shift, float(loss.detach()), gradient


@pytest.fixture
def made(monkeypatch):
    """The shifts that a method made, and their gradients at every step."""
    found = []

    def optimizer(variables, **given):
        optimizer, gradients = AdamW(variables, **given), []
        optimizer.register_step_pre_hook(lambda *_: gradients.append(variables[0].grad.clone()))
        found.append((variables[0], gradients))
        return optimizer

    monkeypatch.setattr(torch.optim, "AdamW", optimizer)
    return found


@pytest.mark.parametrize("settings", [{}, OF_C_TPT, {"direction": "i2t"}, {"direction": "t2i"}], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_loss_gradient_shift_and_scores_as_published(adapter, made, steps, settings):
    task, off = training_task(adapter, groups=2, m=2, n=3), 1e-5 * (1 + settings.get("dispersion", 0))
    for step in tpt(task, steps=steps, **settings):
        published = PublishedOfTpt(adapter, task, int(step.groups))
        expected = list(published.steps(steps, **settings))
        shift, gradients = made[-1]
        for gradient, (_, _, of_step) in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient.double(), of_step, atol=off, rtol=1e-3)
        assert step.loss == pytest.approx(expected[-1][1], abs=off)
        # Adam divides by the gradient's size: a coordinate whose gradient is nearly 0 moves by any part of the rate.
        sure = expected[0][2].abs() > expected[0][2].abs().median() / 10
        torch.testing.assert_close(shift.detach().double()[sure], expected[-1][0][sure], atol=2e-5, rtol=0)
        tuned = published.scale * published.images @ published.captions(shift.detach().double()).T + published.bias
        torch.testing.assert_close(step.scores[0].double(), tuned, atol=1e-4, rtol=0)


def test_the_model_is_not_trained_and_its_captions_are_counted(adapter):
    task = training_task(adapter)
    list(tpt(task, steps=2))
    assert all(parameter.grad is None for parameter in adapter.parameters())
    groups, captions = task.caption_rows.shape
    assert task.cost["optimizer_steps"] == 2 * groups and task.cost["image_rows"] == 0
    assert (
        task.cost["caption_rows"] == 3 * groups * captions
        and task.cost["caption_rows_backward"] == 2 * groups * captions
    )


def test_what_it_is_not_defined_for_is_refused_in_one_line(adapter, monkeypatch):
    with pytest.raises(UsageError, match=r"^views are selected by .*, but a 2x1 group has one caption$"):
        next(tpt(training_task(adapter, n=1)))
    monkeypatch.setattr(type(adapter), "caption_width", None)
    with pytest.raises(UsageError, match=r"embeddings of captions' tokens, but the model does not expose them"):
        next(tpt(training_task(adapter)))
