"""RLCF: its published steps restated in float64, and what it must hold on groups."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.adapter_inputs import double_masks, pooled_of
from support.training_tasks import WORDS, load, scores_of, training_task

from ttmbench.errors import UsageError
from ttmbench.methods import rlcf as module
from ttmbench.methods.rlcf import rlcf
from ttmbench.model_adapters._shared.contrastive import normalised

LR = 1e-4  # the published one, 1e-6, moves the scores of a small model by little more than rounding


@pytest.fixture(params=["tiny_hf_clip", "tiny_siglip"])
def adapter(request):
    return load(request.getfixturevalue(request.param))  # anew: it is trained


@pytest.fixture
def positive(monkeypatch):
    """Rewards of random features as if no cosine were negative: equal rewards would give no step."""
    monkeypatch.setattr(module, "clip_score", lambda images, captions: 2.5 * (1 + images @ captions.T))


class Published:
    """A group in float64: a copy of a tower for each image and each caption, with AdamW written out."""

    def __init__(self, adapter, task, group):
        self.original, self.scale, self.bias = (
            copy.deepcopy(adapter.model).double().eval(),
            float(task.scale),
            float(task.bias),
        )
        pixels = task._prepared.images["pixel_values"][task.image_rows[group]]
        self.pixels = normalised(pixels, adapter._scale).double()
        self.tokens = adapter.prepare_captions([WORDS[row] for row in task.caption_rows[group].tolist()])
        self.images = task.all_images[task.image_rows[group]].double()
        self.captions = task.all_captions[task.caption_rows[group]].double()
        self.losses, self.weights, self.best = [], [], []

    def image(self, model, i):
        found = pooled_of(model.get_image_features(pixel_values=self.pixels[i : i + 1]))
        return found / found.norm(dim=1, keepdim=True)

    def caption(self, model, j):
        with double_masks():
            found = pooled_of(model.get_text_features(**{name: rows[j : j + 1] for name, rows in self.tokens.items()}))
        return found / found.norm(dim=1, keepdim=True)

    def loss(self, logits, cosines, k):
        order = sorted(range(len(logits)), key=lambda choice: -logits[choice].item())[:k]
        rewards = [2.5 * (1 + float(cosines[choice])) for choice in order]
        centred = [one - sum(rewards) / len(rewards) for one in rewards]
        answers = torch.log_softmax(logits, dim=0)
        self.best.append(order)
        return sum(-weight * answers[choice] for weight, choice in zip(centred, order, strict=True)) / len(order)

    def tune(self, logits_of, cosines, k, steps, side):
        model = copy.deepcopy(self.original)
        of_tower = "vis" if side == "images" else "text"  # vision_model, visual_projection
        parameters = {name: value for name, value in model.named_parameters() if of_tower in name}
        moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in parameters.items()}
        for number in range(1, steps + 1):
            loss = self.loss(logits_of(model), cosines, k)
            self.losses.append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            with torch.no_grad():
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
                    if gradient is None:
                        continue
                    value *= 1 - LR * 5e-4
                    first, second = moments[name]
                    first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
                    moments[name] = first, second
                    size = (second / (1 - 0.999**number)).sqrt() + 1e-6
                    value -= LR * (first / (1 - 0.9**number)) / size
        self.weights.append({name: value.detach() for name, value in parameters.items()})
        return logits_of(model).detach()

    def run(self, steps, k=(16, 12)):
        rows = [
            self.tune(
                lambda model, i=i: (self.scale * self.image(model, i) @ self.captions.T + self.bias)[0],
                self.captions @ self.images[i],
                k[0],
                steps,
                "images",
            )
            for i in range(len(self.images))
        ]
        columns = [
            self.tune(
                lambda model, j=j: (self.scale * self.images @ self.caption(model, j).T + self.bias)[:, 0],
                self.images @ self.captions[j],
                k[1],
                steps,
                "captions",
            )
            for j in range(len(self.captions))
        ]
        return (torch.stack(rows) + torch.stack(columns, dim=1)) / 2


@pytest.mark.parametrize(("steps", "k"), [(8, (16, 12)), (3, (2, 2))])
def test_losses_weights_and_scores_as_published(adapter, steps, k, monkeypatch, positive):
    task = training_task(adapter, groups=1, m=3, n=4)
    before = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}
    losses, weights, reset, of_loss = [], [], task.reset, module.policy_loss

    def remembered(**kept):
        weights.append({name: value.detach().clone() for name, value in task.trained.items()})
        reset(**kept)

    monkeypatch.setattr(task, "reset", remembered)
    monkeypatch.setattr(module, "policy_loss", lambda *given: losses.append(of_loss(*given)) or losses[-1])
    (step,) = rlcf(task, steps=steps, lr=LR, k_captions=k[0], k_images=k[1])
    published = Published(adapter, task, 0)
    expected = published.run(steps, k)
    assert len(losses) == 7 * steps
    torch.testing.assert_close(
        torch.stack(losses).double(), torch.tensor(published.losses).double(), atol=1e-5, rtol=1e-4
    )
    assert step.loss == pytest.approx(np.mean(published.losses[steps - 1 :: steps]), abs=1e-5)
    _, *copies = weights  # the first is that of the stream
    for found, of_tower in zip(copies, published.weights, strict=True):
        moved = [name for name in of_tower if not torch.equal(found[name], before[name])]
        assert len(moved) > 20
        for name, value in found.items():
            if name.endswith("k_proj.bias"):  # its gradient is 0 but for rounding
                continue
            if name in of_tower:
                torch.testing.assert_close(value.double(), of_tower[name], atol=LR / 20, rtol=0)
            else:
                assert torch.equal(value, before[name]), "the other tower, temperature and bias"
    torch.testing.assert_close(step.scores[0].double(), expected, atol=1e-4, rtol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.state_dict().items())


def test_the_best_choices_and_their_centred_rewards():
    logits = torch.tensor([3.0, 1.0, 2.0, -4.0], requires_grad=True)
    rewards = torch.tensor([0.2, 0.9, 0.5, 7.0])
    loss = module.policy_loss(logits, rewards, 2)  # the first and the third: rewards -0.15 and 0.15
    answers = torch.log_softmax(logits.detach(), dim=0)
    assert loss.item() == pytest.approx(float(-(-0.15 * answers[0] + 0.15 * answers[2]) / 2), abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, torch.tensor([0.075, 0, -0.075, 0]), atol=1e-6, rtol=0)
    cosines = torch.tensor([[0.6, 0.8], [-1.0, 0.0]])
    torch.testing.assert_close(module.clip_score(3 * cosines, torch.eye(2)), torch.tensor([[1.5, 2.0], [0, 0]]))


@pytest.mark.parametrize("unit", ["image", "group"])
def test_equal_rewards_give_no_step(adapter, unit, monkeypatch):
    monkeypatch.setattr(module, "clip_score", lambda images, captions: torch.full((len(images), len(captions)), 0.3))
    task = training_task(adapter)
    steps = list(rlcf(task, unit=unit, lr=1.0))
    assert task.cost.optimizer_steps == 0 and not any(step.updated or step.loss is not None for step in steps)
    torch.testing.assert_close(scores_of(task, steps), task.scores, atol=1e-5, rtol=1e-5)


def test_with_two_captions_a_step_follows_what_the_reward_model_prefers(adapter, monkeypatch):
    for preferred in (0, 1):
        rewards = torch.full((1, 2), 0.1)
        rewards[0, preferred] = 0.2
        monkeypatch.setattr(module, "clip_score", lambda images, captions, rewards=rewards: rewards)
        task = training_task(adapter, groups=1, m=1, n=2)
        (step,) = rlcf(task, lr=LR)
        change = (step.scores - task.scores)[0, 0]
        assert change[preferred] > change[1 - preferred]


def test_a_group_at_once_has_the_mean_of_all_losses(adapter, positive):
    task = training_task(adapter, groups=1, m=2, n=3)
    (step,) = rlcf(task, unit="group", steps=1, lr=LR)
    scores, cosines = task.scores[0].double(), (task.images[0] @ task.captions[0].T).double()
    rewards = 2.5 * (1 + cosines)
    losses = [-((r - r.mean()) * torch.log_softmax(s, 0)).mean() for s, r in zip(scores, rewards, strict=True)]
    losses += [-((r - r.mean()) * torch.log_softmax(s, 0)).mean() for s, r in zip(scores.T, rewards.T, strict=True)]
    assert step.loss == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)
    assert task.cost.image_rows_backward == 2 and task.cost.caption_rows_backward == 3


@pytest.mark.parametrize("unit", ["image", "group"])
def test_a_group_alone_has_the_scores_that_it_has_after_others_bit_for_bit(adapter, unit, positive):
    before = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}
    together = training_task(adapter)
    scores = scores_of(together, rlcf(together, unit=unit, steps=2, lr=LR))
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.state_dict().items())
    for group in range(3):
        alone = training_task(adapter, only=[group])
        assert torch.equal(scores_of(alone, rlcf(alone, unit=unit, steps=2, lr=LR))[0], scores[group])


def test_cost_of_copies(adapter, positive):
    task = training_task(adapter, groups=1, m=2, n=3)
    list(rlcf(task, steps=4))
    assert (task.cost.image_rows, task.cost.image_rows_backward) == (2 * 5, 2 * 4)
    assert (task.cost.caption_rows, task.cost.caption_rows_backward) == (3 * 5, 3 * 4)
    assert task.cost.optimizer_steps == 5 * 4 and task.cost.reward_rows == 0
    assert task.notes[0].startswith("reward=self: the reward model is the original model itself")


def test_every_option_changes_the_scores(adapter, positive):
    changes = (
        *({}, {"unit": "group"}, {"direction": "i2t"}, {"direction": "t2i"}, {"k_captions": 2}, {"k_images": 2}),
        *({"steps": 1}, {"train": "norm"}, {"lr": 1e-3}, {"weight_decay": 0.5}),
    )
    found = []
    for change in changes:
        task = training_task(adapter, groups=1, m=3, n=3)
        found.append(scores_of(task, rlcf(task, **{"steps": 2, "lr": LR, **change})))
        assert len(found) == 1 or not torch.equal(found[-1], found[0]), change


def test_what_it_is_not_defined_for_is_refused_in_one_line(adapter):
    with pytest.raises(UsageError, match=r"^reward=openai/clip must be self or the name of a model .* has loaded$"):
        next(rlcf(training_task(adapter), reward="openai/clip"))
    with pytest.raises(UsageError, match=r"direction=t2i needs groups of at least two images .* not 1x2"):
        next(rlcf(training_task(adapter, m=1), direction="t2i"))
    with pytest.raises(UsageError, match=r"^train=norm_images has no parameters that direction=t2i tunes$"):
        next(rlcf(training_task(adapter), train="norm_images", direction="t2i"))
    with pytest.raises(UsageError, match=r"^train=temperature has no parameters that direction=both tunes$"):
        next(rlcf(training_task(adapter), train="temperature"))
    task = training_task(adapter)
    next(rlcf(task, train="norm_captions", steps=1))
    assert task.notes[1] == "direction=both: captions alone are tuned, and give the scores"
