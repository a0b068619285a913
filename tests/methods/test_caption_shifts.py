"""Shifts of captions as what is trained: no effect at zero, only they change, in every method and in TTM."""

from __future__ import annotations

import pytest
import torch
from support.norm_towers import NormTowers
from support.small_models import Counting
from support.training_tasks import WORDS, load, scores_of, training_task

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.methods.cliptta import cliptta
from ttmbench.methods.features import RewardModel
from ttmbench.methods.parameters import low_rank_removed, parameters_of, remove_low_rank
from ttmbench.methods.rlcf import rlcf
from ttmbench.methods.tent import tent
from ttmbench.methods.watt import watt

SHIFTS = pytest.mark.parametrize("which", ["context:3", "shift"])


@pytest.fixture(params=["tiny_hf_clip", "tiny_siglip"])
def adapter(request):
    return load(request.getfixturevalue(request.param))


@SHIFTS
def test_it_is_added_to_every_caption_and_taken_off_again(adapter, which):
    captions, state = adapter.prepare_captions(WORDS[:5]), set(adapter.state_dict())
    with torch.no_grad():
        before = adapter.encode_captions(captions)
        (name, parameter), *others = parameters_of(adapter, which).items()
        assert not others and not parameter.any() and set(adapter.state_dict()) == state
        assert name == ("text.shift" if which == "shift" else "text.context")
        torch.testing.assert_close(adapter.encode_captions(captions), before, atol=1e-6, rtol=0)
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        found = adapter.encode_captions(captions)
        remove_low_rank(adapter)
        assert torch.equal(adapter.encode_captions(captions), before)
        if which == "shift":
            expected = torch.nn.functional.normalize(before + parameter, dim=1)
        else:
            expected = adapter.encode_shifted_captions(captions, parameter)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(found, before, atol=1e-3)


@SHIFTS
def test_the_models_own_loss_has_its_gradient(adapter, which):
    task = training_task(adapter)
    (parameter,) = task.train(which)
    sides = task._prepared.images, adapter.prepare_captions(WORDS[:6])
    loss = adapter.matching_loss(*sides)
    loss.backward()
    assert parameter.grad.any() and all(weight.grad is None for weight in adapter.parameters())
    remove_low_rank(adapter)
    torch.testing.assert_close(adapter.matching_loss(*sides).detach(), loss.detach(), atol=1e-5, rtol=1e-5)


METHODS = {
    tent: {"images": 4, "lr": 0.1},
    cliptta: {"images": 4, "lr": 0.1, "steps": 2},
    watt: {"images": 4, "lr": 0.1, "rounds": 1, "wrappers": ("{}", "a photo of {}")},
    rlcf: {"steps": 2, "lr": 0.1, "reward": "other", "k_images": 2},
}


@SHIFTS
@pytest.mark.parametrize("method", METHODS, ids=[method.__name__ for method in METHODS])
def test_every_method_trains_it_alone_and_goes_on_after_a_stop(method, which, tiny_hf_clip):
    adapter = load(tiny_hf_clip)
    state = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}
    settings = {**METHODS[method], "train": which}

    def made(resume=None):
        task = training_task(adapter, 4, resets=False)
        rewards = torch.rand(task.scores.shape, generator=torch.Generator().manual_seed(3))
        task._rewards = {"other": RewardModel(rewards, False, 0, "", {})}
        if resume is not None:
            task._resume, task._turns, task.state = resume, resume.turns, dict(resume.extra)
        return task

    with low_rank_removed(adapter):
        task = made()
        scores = scores_of(task, method(task, **settings))
        assert list(task.trained) == [f"text.{'shift' if which == 'shift' else 'context'}"]
        if method is not rlcf:  # which restores each copy
            assert all(parameter.any() for parameter in task.trained.values())
        assert task.cost["image_rows_backward"] == 0
        task = made()
        turns = method(task, **settings)
        first = next(turns)
        resumed = made(task.snapshot())
        rest = list(method(resumed, **settings))
        assert torch.equal(scores_of(task, [first, *rest]), scores)
    assert not torch.allclose(scores, task.scores, atol=1e-4)
    assert all(torch.equal(value, state[name]) for name, value in adapter.state_dict().items())


@SHIFTS
@pytest.mark.parametrize("parts", [{}, {"loss": "cross_entropy", "teacher": "ema"}], ids=str)
def test_ttm_trains_it(which, parts):
    settings = {"limit": 8, "device": "cpu", "bootstrap_iters": 0}
    ttm = {"train": which, "lr": 0.05, "iterations": 2, "epochs": 2, **parts}
    document = ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm=ttm, **settings).document
    lines = document["methods"]["shapes_color"]["ttm"]["iterations"]
    losses = [loss for line in lines for loss in line["loss"]]
    assert losses and len(set(losses)) > 1, "each epoch begins with another shift"
    assert document["methods"]["shapes_color"]["ttm"]["settings"]["train"] == which


@pytest.mark.parametrize(
    ("model", "which", "message"),
    [
        (NormTowers, "context:2", "train=context:2 shifts the token embeddings of captions, and this model's cannot"),
        (lambda: Counting("calls"), "shift", "train=shift needs one feature vector for each caption, with gradients"),
        (lambda: Counting("calls"), "context:2", "train=context:2 shifts the token embeddings of captions"),
    ],
)
def test_where_there_is_nothing_to_shift_it_is_refused_in_one_line(model, which, message):
    with pytest.raises(UsageError, match=message) as refused:
        parameters_of(model(), which)
    assert "\n" not in str(refused.value)


def test_what_is_added_cannot_be_saved(tmp_path):
    settings = {"ttm": {"train": "context:4"}, "save_adapted": str(tmp_path), "limit": 4, "device": "cpu"}
    with pytest.raises(UsageError, match="--save_adapted cannot save what train=context:4 adds"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", **settings)
