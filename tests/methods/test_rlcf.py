"""RLCF: losses, weights and scores as published, and rewards of another model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.adapter_inputs import double_masks, pooled_of
from support.small_models import Counting
from support.stand_in_gpu import stand_in_gpu
from support.training_tasks import WORDS, load, scores_of, training_task

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.evaluator import one_task as reward_models
from ttmbench.methods import rlcf as module
from ttmbench.methods.features import RewardModel
from ttmbench.methods.rlcf import clip_score, rewards_by, rlcf
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
        self.original = copy.deepcopy(adapter.model).double().eval()
        self.scale, self.bias = float(task.scale), float(task.bias)
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


@pytest.mark.parametrize(("steps", "k"), [(4, (16, 12)), (3, (2, 2))])
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
    torch.testing.assert_close(torch.stack(losses), torch.tensor(published.losses), atol=1e-5, rtol=1e-4)
    assert step.loss == pytest.approx(np.mean(published.losses[steps - 1 :: steps]), abs=1e-5)
    _, *copies = weights  # the first is that of the stream
    for found, of_tower in zip(copies, published.weights, strict=True):
        assert len([name for name in of_tower if not torch.equal(found[name], before[name])]) > 20
        for name, value in found.items():
            if name.endswith("k_proj.bias"):  # its gradient is 0 but for rounding
                continue
            if name in of_tower:
                torch.testing.assert_close(value.double(), of_tower[name], atol=LR / 20, rtol=0)
            else:
                assert torch.equal(value, before[name]), "the other tower, temperature and bias"
    torch.testing.assert_close(step.scores[0].double(), expected, atol=1e-4, rtol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.state_dict().items())


def test_the_reward_of_a_cosine():
    cosines = torch.tensor([[0.6, 0.8], [-1.0, 0.0]])
    torch.testing.assert_close(module.clip_score(3 * cosines, torch.eye(2)), torch.tensor([[1.5, 2.0], [0, 0]]))


@pytest.mark.parametrize("unit", ["image", "group"])
def test_equal_rewards_give_no_step(adapter, unit, monkeypatch):
    monkeypatch.setattr(module, "clip_score", lambda images, captions: torch.full((len(images), len(captions)), 0.3))
    task = training_task(adapter)
    steps = list(rlcf(task, unit=unit, lr=1.0))
    assert task.cost["optimizer_steps"] == 0 and not any(step.updated or step.loss is not None for step in steps)
    torch.testing.assert_close(scores_of(task, steps), task.scores, atol=1e-5, rtol=1e-5)


def test_a_group_at_once_has_the_mean_of_all_losses(adapter, positive):
    task = training_task(adapter, groups=1, m=2, n=3)
    (step,) = rlcf(task, unit="group", steps=1, lr=LR)
    scores, cosines = task.scores[0].double(), (task.images[0] @ task.captions[0].T).double()
    rewards = 2.5 * (1 + cosines)
    losses = [-((r - r.mean()) * torch.log_softmax(s, 0)).mean() for s, r in zip(scores, rewards, strict=True)]
    losses += [-((r - r.mean()) * torch.log_softmax(s, 0)).mean() for s, r in zip(scores.T, rewards.T, strict=True)]
    assert step.loss == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)
    assert task.cost["image_rows_backward"] == 2 and task.cost["caption_rows_backward"] == 3


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


ARGS = {"rlcf.lr": 1e-4, "rlcf.steps": 2}


def evaluate(reward, tasks="shapes_color", **settings):
    args = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "method_args": {**ARGS, "rlcf.reward": reward}}
    return ttmbench.simple_evaluate("tiny-clip", tasks, methods="rlcf", **{**args, **settings})


def test_rewards_of_cosines_and_of_scores(tiny_hf_clip):
    task = training_task(load(tiny_hf_clip), groups=2, m=2, n=3)
    cosines = torch.stack([images @ captions.T for images, captions in zip(task.images, task.captions, strict=True)])
    task._rewards = {name: RewardModel(cosines, name == "dual", 4, "", {}) for name in ("dual", "pairs")}
    batch = next(task.stream(images=1))
    group = int(batch.groups[0])
    expected = clip_score(task.images[group], task.captions[group])
    torch.testing.assert_close(rewards_by(task, "dual", batch), expected, atol=1e-6, rtol=0)
    assert torch.equal(rewards_by(task, "pairs", batch), cosines[group])


def test_the_step_follows_the_reward_model(tiny_hf_clip):
    """With one image and two captions; the reward model prefers either of them."""
    for preferred in (0, 1):
        task = training_task(load(tiny_hf_clip), groups=1, m=1, n=2)
        rewards = torch.full((1, 1, 2), 0.1)
        rewards[..., preferred] = 0.2
        task._rewards = {"other": RewardModel(rewards, False, 3, "a note", {})}
        (step,) = rlcf(task, reward="other", lr=1e-4)
        change = (step.scores - task.scores)[0, 0]
        assert change[preferred] > change[1 - preferred] and task.notes[0] == "a note"


def test_another_model_is_loaded_once_counted_and_recorded(monkeypatch, tmp_path):
    loaded, make = [], reward_models.make_adapter
    monkeypatch.setattr(reward_models, "make_adapter", lambda *given: loaded.append(given[1:3]) or make(*given))
    tasks = "shapes_color,shapes_place"
    document = evaluate("tiny-clip-seed1", tasks, audit_labels=True).document
    assert loaded == [("tiny-clip-seed1", {})]
    alone = ttmbench.simple_evaluate("tiny-clip-seed1", tasks, limit=4, device="cpu", bootstrap_iters=0).document
    for task in tasks.split(","):
        record = document["methods"][task]["rlcf"]
        about = record["reward_model"]
        assert (about["model"], about["is_student"]) == ("tiny-clip-seed1", False)
        assert about["fingerprint"] == alone["model_info"]["fingerprint"]
        assert [cost["reward_rows"] for cost in record["cost"]] == [16]
        own = 100 * alone["results"][task]["text_score,none"]
        assert f"compare with the reward model itself, which has text score {own:.1f} %, " in record["notes"][0]
        assert record["audit_labels"]["passed"]


def test_the_student_as_reward_model_is_marked_and_gives_the_rewards_of_self():
    found = {}
    for reward in ("self", "tiny-clip", "tiny-clip-seed1"):
        run = evaluate(reward, limit=2)
        scores = run.scores["shapes_color"]["rlcf"][0].groups
        found[reward] = run.document["methods"]["shapes_color"]["rlcf"], scores
    assert "reward_model" not in found["self"][0]
    record, scores = found["tiny-clip"]
    assert record["reward_model"]["is_student"] and "is the original model itself" in record["notes"][0]
    np.testing.assert_allclose(scores, found["self"][1], atol=0.02)
    assert not np.allclose(scores, found["tiny-clip-seed1"][1], atol=0.02)


def test_a_model_of_pairs_gives_its_scores(monkeypatch, tmp_path):
    monkeypatch.setattr(reward_models, "make_adapter", lambda *_: Counting(tmp_path / "calls"))
    record = evaluate("tiny-clip-seed1").document["methods"]["shapes_color"]["rlcf"]
    assert record["cost"][0]["reward_rows"] == 2 * 16
    assert record["reward_model"]["is_student"] is False


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("tiny-clop", "unknown model 'tiny-clop'; did you mean"),
        ("tiny-clip:oops", "arguments must be key=value"),
        ("tiny-clip:oops=1", "model 'tiny-clip': got an unexpected keyword argument 'oops'"),
    ],
)
def test_a_wrong_reward_model_is_refused_in_one_line(reward, message):
    with pytest.raises(UsageError) as refused:
        evaluate(reward)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_model_that_answers_in_words_is_refused(monkeypatch):
    class Words:
        def answer(self, questions): ...

        choice_style = "letters"

    monkeypatch.setattr(reward_models, "make_adapter", lambda *_: Words())
    with pytest.raises(UsageError, match="model tiny-clip-seed1 answers in words, and rewards are scores of images"):
        evaluate("tiny-clip-seed1")


def test_rewards_references_and_shifts_are_where_the_model_is():
    methods = {"dn.references": "shapes_place:4", "rlcf.reward": "tiny-clip-seed1", "rlcf.steps": 1}
    args = {"methods": "dn,rlcf,tent", "method_args": {**methods, "tent.train": "context:2", "tent.images": 4}}

    def results(device):
        settings = {"limit": 2, "bootstrap_iters": 0, "use_cache": "off", "device": device}
        return ttmbench.simple_evaluate("tiny-clip", "shapes_color", **args, **settings).document["results"]

    here = results("cpu")
    with stand_in_gpu():
        assert results("cuda") == here
