"""Reward models other than the model itself: loaded once, only scored, counted, recorded, and the student marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.small_models import Counting
from support.stand_in_gpu import stand_in_gpu
from support.training_tasks import load, training_task

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.evaluator import methods as reward_models
from ttmbench.methods.features import RewardModel
from ttmbench.methods.rlcf import clip_score, rewards_by, rlcf
from ttmbench.results.stored_files import read_scores
from ttmbench.types import GroupShape

ARGS = {"rlcf.lr": 1e-4, "rlcf.steps": 2}


def evaluate(reward, tasks="shapes_color", **settings):
    args = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, **settings}
    return ttmbench.simple_evaluate(
        "tiny-clip", tasks, methods="rlcf", method_args={**ARGS, "rlcf.reward": reward}, **args
    )


def scores_of(folder):
    (file,) = folder.rglob("scores_*.safetensors")
    return read_scores(file, GroupShape(2, 2)).scores["rlcf"][0].groups


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
        assert record["notes"][0].startswith(
            f"reward=tiny-clip-seed1: compare with the reward model itself, which has text score {own:.1f} %, "
        )
        assert record["audit_labels"]["passed"]


def test_the_student_as_reward_model_is_marked_and_gives_the_rewards_of_self(tmp_path):
    found = {}
    for reward in ("self", "tiny-clip", "tiny-clip-seed1"):
        document = evaluate(reward, save_scores=True, output_path=str(tmp_path / reward)).document
        found[reward] = document["methods"]["shapes_color"]["rlcf"], scores_of(tmp_path / reward)
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
        ("tiny-clop", "--method_args rlcf.reward: must be self or a model: unknown model 'tiny-clop'; did you mean"),
        ("tiny-clip:oops", "arguments must be key=value"),
        ("tiny-clip:oops=1", "model 'tiny-clip' has no argument 'oops'"),
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
        settings = {"limit": 4, "bootstrap_iters": 0, "use_cache": "off", "device": device}
        return ttmbench.simple_evaluate("tiny-clip", "shapes_color", **args, **settings).document["results"]

    here = results("cpu")
    with stand_in_gpu():
        assert results("cuda") == here
