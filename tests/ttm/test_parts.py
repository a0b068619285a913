"""Parts of TTM by name: each changes the run, those of a plugin too, and the defaults are what is recorded nowhere."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import own_parts
from support.small_models import Towers, adapt, killed_at_its_first_file, stage_of, task_of
from support.training_tasks import load

import ttmbench
from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.evaluator import score_task
from ttmbench.methods import model_task
from ttmbench.methods import parts as other_parts
from ttmbench.methods import training as finetune
from ttmbench.methods.controls import exchanged, random_matchings
from ttmbench.methods.model_task import Round, Selection
from ttmbench.methods.parts import check_parts
from ttmbench.methods.settings import load_parts
from ttmbench.methods.ttm import matching
from ttmbench.plugins.registry import PARTS, Table, build_registry, load_target
from ttmbench.testing import ContractError, check_method
from ttmbench.types import GroupShape, MethodPart, ScheduleSpec

LINEAR = ScheduleSpec("linear", schedules.linear)
QUICK = {"limit": 12, "device": "cpu", "bootstrap_iters": 0, "use_cache": "off"}
SHORT = {"iterations": 3, "epochs": 2, "batch_groups": 4}
OWN = {"selection": "best", "selection.units": 7, "loss": "hinge", "teacher": "slow"}
OWN |= {"optimizer": "two_rates", "optimizer.slow": 0.3}


class Graded(Towers):
    """Its logits have gradients, as those of real dual encoders."""

    def logits(self, images, captions):
        return images @ captions.T


@pytest.fixture(scope="module")
def registry():
    return build_registry(extra=[("own", own_parts)])


@pytest.fixture(scope="module")
def small_clip(tiny_hf_clip):
    return load(tiny_hf_clip)


def run(registry, stage=None, resume=None, **settings):
    stage = stage or stage_of(12, model=Graded())
    config = TTMConfig(**{**SHORT, "lr": 1e-2}).with_changes(settings, "test")
    parts = load_parts(registry, config)
    raw, states, schedule = stage.score(), [], registry.schedules[config.schedule]

    def keep(state):
        copies = {name: tensor.clone() for name, tensor in state.model.items()}
        teacher = {name: one.clone() for name, one in state.extra.items()}
        states.append(replace(state, model=copies, extra=teacher, optimizers=copy.deepcopy(state.optimizers)))

    how = {"config": config, "schedule": schedule, "learning_rate": 1e-2, "seed": 3, "parts": parts, "keep": keep}
    return SimpleNamespace(steps=list(adapt(stage, raw, resume=resume, **how)), states=states, stage=stage)


def same(one, other) -> bool:
    pairs = list(zip(one.steps, other.steps, strict=False))
    return len(one.steps) == len(other.steps) and all(
        np.array_equal(a.scores.groups, b.scores.groups) and np.array_equal(a.selected, b.selected) and a.loss == b.loss
        for a, b in pairs
    )


# --- names and settings ---------------------------------------------------------------------------------------


def test_a_part_is_recorded_where_it_is_not_the_default():
    unrecorded = {"train", "part_args", *(part.kind for part in PARTS)}
    assert set(TTMConfig().model_dump()) == set(TTMConfig.model_fields) - unrecorded
    given = {"teacher": "ema", "teacher.decay": 0.9, "train": "norm"}
    config = TTMConfig.model_validate(given)
    assert config.part_args == {"teacher": {"decay": 0.9}}
    dumped = config.model_dump(mode="json")
    assert {name: dumped[name] for name in given} == given
    assert TTMConfig.model_validate(dumped) == config == config.with_changes({}, "nothing")
    assert config.with_changes({"teacher.decay": 0.5}, "x").part_args == {"teacher": {"decay": 0.5}}
    assert config.with_changes({"teacher": "none"}, "x").part_args == {}, "another part has settings of its own"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher": "emma"}, "did you mean 'ema'?"),
        ({"teacher": "ema", "teacher.deca": 1}, "teacher.deca: unknown argument"),
        ({"teacher": "ema", "teacher.decay": 2}, "teacher.decay: must be a number >= 0 and <= 1"),
        ({"loss": "cross_entropy", "loss.negatives": "all"}, "loss.negatives: must be batch or group"),
        ({"pseudo_labels": "sinkhorn"}, "pseudo_labels=sinkhorn gives soft labels"),
        ({"train": "lora:0"}, "train=lora:0 is unknown"),
    ],
)
def test_a_wrong_part_is_one_line_before_anything_is_scored(settings, message, monkeypatch):
    monkeypatch.setattr(score_task, "prepare", lambda *_: pytest.fail("nothing is prepared"))
    with pytest.raises(UsageError) as raised:
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm={**SHORT, **settings}, **QUICK)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_soft_labels_are_refused_for_global_tasks(registry):
    config = TTMConfig(pseudo_labels="sinkhorn", loss="cross_entropy")
    check_parts(load_parts(registry, config), config, GroupShape(2, 3), False)
    with pytest.raises(UsageError, match="matched globally"):
        check_parts(load_parts(registry, config), config, GroupShape(2, 2), True)
    for rule in ("matching", "argmax"):
        config = TTMConfig(pseudo_labels=rule, loss="cross_entropy")
        check_parts(load_parts(registry, config), config, GroupShape(2, 2), True)


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        ("selection", lambda labels, *_: labels.confidence, "must give a bool array [12]"),
        ("pseudo_labels", lambda scores: replace(matching(scores), captions=np.full((12, 2), 5)), "from 0 to 1"),
        ("pseudo_labels", lambda scores: replace(matching(scores), confidence=np.full(12, np.nan)), "finite [12]"),
        ("pseudo_labels", lambda scores: replace(matching(scores), tie=np.zeros(12)), "tie, bool [12]"),
        ("pseudo_labels", lambda scores: replace(matching(scores), soft=np.ones((12, 2, 2))), "rows sum to 1"),
        ("loss", lambda batch: batch.targets.sum(), "must give a scalar tensor with a gradient"),
        ("optimizer", lambda parameters, settings: None, "must give a torch optimizer"),
        ("lr_schedule", lambda step, steps, floor: math.nan, "must give a finite number of at least 0, got nan"),
        ("stopping", lambda rounds: None, "must give True or False"),
    ],
)
def test_a_wrong_result_of_a_part_names_it(kind, given, problem, registry, monkeypatch):
    monkeypatch.setattr(own_parts, "given", given, raising=False)
    wrong = {f"{kind}=wrong": (MethodPart(kind, "wrong", "support.own_parts:given"), "own")}
    parts = Table("part", [], {**{key: (part, "ttmbench") for key, part in registry.parts.items()}, **wrong})
    with pytest.raises(Exception, match=rf"{kind} 'wrong' \(support\.own_parts:given\)") as raised:
        run(replace(registry, parts=parts), **{kind: "wrong"})
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "part",
    [*PARTS[1::2], *(pytest.param(one, marks=pytest.mark.slow) for one in own_parts.ttmbench_register_methods())],
    ids=lambda part: part.name,
)
def test_every_part_keeps_its_contract(part, small_clip):
    made = check_method(part, adapter=small_clip)
    assert made[0] == "settings can be read" and made[-1] == "a stopped run is resumed with equal bits"


def by_position(labels, threshold, by_share, ties):
    return labels.captions[:, 0] == 0


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("selection", "by_position", "captions in another order are selected alike"),
        ("loss", "by_position", "it can be run: loss 'mine'"),
        ("teacher", "nobody", "it can be run: .* does not exist"),
    ],
)
def test_a_part_that_breaks_its_contract_is_told_which(kind, name, message, small_clip):
    with pytest.raises(ContractError, match=f"mine: {message}"):
        check_method(MethodPart(kind, "mine", f"{__name__}:{name}"), adapter=small_clip)


# --- each part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"selection": "every"}),
        ({}, {"pseudo_labels": "argmax"}),
        ({}, {"optimizer": "sgd"}),
        ({}, {"lr_schedule": "linear"}),
        ({}, {"lr_schedule": "constant"}),
        ({}, {"selection": "best"}),
        ({}, {"loss": "hinge"}),
        ({}, {"optimizer": "two_rates"}),
        ({}, {"loss": "cross_entropy"}),
        ({}, {"teacher": "ema", "teacher.decay": 0.5}),
        ({"loss": "cross_entropy"}, {"pseudo_labels": "sinkhorn"}),
        ({"pseudo_labels": "sinkhorn", "loss": "cross_entropy"}, {"pseudo_labels.temperature": 5}),
        ({"pseudo_labels": "sinkhorn", "loss": "cross_entropy"}, {"pseudo_labels.rounds": 1}),
        ({"loss": "cross_entropy"}, {"loss.negatives": "group"}),
        ({"optimizer": "sgd"}, {"optimizer.momentum": 0.1}),
        ({"teacher": "ema"}, {"teacher.decay": 0.3}),
        ({"selection": "best"}, {"selection.units": 2}),
    ],
    ids=str,
)
def test_each_part_and_setting_changes_the_run(before, after, registry):
    assert not same(run(registry, **before), run(registry, **before, **after))


@pytest.mark.parametrize("name", [{"loss": "own"}, {"stopping": "never"}, {"teacher": "none"}], ids=str)
def test_the_defaults_by_name_are_the_run_without_them(name, registry):
    ((kind, value),) = name.items()
    function = load_target(registry.part(kind, value).target)
    sgd = load_parts(registry, TTMConfig(optimizer="sgd"))  # which does not enlarge the rounding of sums
    found = [], []
    for steps, parts in zip(found, (sgd, replace(sgd, **{kind: function})), strict=True):
        for images in (2, 3):  # captions choose among three
            stage = stage_of(12, images, 2, model=Graded())
            settings = {"config": TTMConfig(**SHORT), "schedule": LINEAR, "learning_rate": 1e-2, "seed": 3}
            steps += adapt(stage, stage.score(), parts=parts, **settings)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one.scores.groups, other.scores.groups, atol=1e-5)
        assert kind == "loss" or np.array_equal(one.scores.groups, other.scores.groups)


def after_steps(monkeypatch, do):
    """Has something done after every training step."""
    whole = model_task.attempt
    monkeypatch.setattr(model_task, "attempt", lambda step: (whole(step), do())[0])


def test_a_teacher_is_the_moving_average_of_every_step(registry, monkeypatch):
    seen, stage = [], stage_of(12, model=Graded())
    after_steps(monkeypatch, lambda: seen.append(stage.adapter.image.bias.detach().clone()))
    mean = stage.adapter.image.bias.detach().clone()
    found = run(registry, stage, teacher="ema", iterations=1, **{"teacher.decay": 0.75})
    for bias in seen:
        mean = 0.75 * mean + 0.25 * bias
    assert len(seen) > 1 and torch.allclose(found.stage.adapter.image.bias, mean, atol=1e-7)
    assert np.array_equal(found.steps[-1].scores.groups, stage.score().groups)
    counted = {"batches": torch.tensor(3)}
    other_parts.ema(counted, {"batches": torch.tensor(8)})
    assert counted["batches"] == 8, "what is no mean is copied"


def test_argmax_gives_each_image_its_best_caption():
    scores = np.random.default_rng(0).normal(size=(40, 3, 4)).astype(np.float32)
    scores[7, 1, :2] = scores[7, 1].max() + 1
    found = other_parts.argmax(scores)
    for group, captions, confidence, tie in zip(scores, found.captions, found.confidence, found.tie, strict=True):
        margins = []
        for row, chosen in zip(group.tolist(), captions, strict=True):
            first, second = sorted(row, reverse=True)[:2]
            assert row[chosen] == first
            margins.append(first - second)
        assert confidence == pytest.approx(min(margins)) and tie == (min(margins) == 0)
    assert found.tie.tolist() == [group == 7 for group in range(40)]
    assert any(len(set(row)) < 3 for row in found.captions.tolist()), "a caption may be used twice"
    whole = other_parts.argmax(scores[:, 0])
    assert whole.captions.shape == (40, 1) and np.allclose(whole.confidence, scores[:, 0].max(1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_soft_labels_of_two_by_two_are_those_computed_by_hand(temperature):
    """A doubly stochastic 2x2 plan is [[p, 1 - p], [1 - p, p]], and scaling rows and columns keeps p^2 / (1 - p)^2."""
    scores = np.array([[[2.0, 1.0], [0.5, 3.0]], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [4.0, 4.0]]])
    found = other_parts.sinkhorn(scores, temperature=temperature, rounds=10000)
    p = 1 / (1 + np.exp(-np.array([2 + 3 - 1 - 0.5, -2.0, 0.0]) / (2 * temperature)))
    expected = np.stack([np.stack([p, 1 - p], -1), np.stack([1 - p, p], -1)], -2)
    np.testing.assert_allclose(found.soft, expected, atol=2e-6)
    assert found.captions[:2].tolist() == [[0, 1], [1, 0]] and found.tie.tolist() == [False, False, True]
    assert np.array_equal(found.confidence, matching(scores).confidence)


def test_soft_labels_with_distractors_give_no_caption_more_than_one():
    soft = other_parts.sinkhorn(np.random.default_rng(1).normal(size=(30, 2, 4)) * 3).soft
    np.testing.assert_allclose(soft.sum(2), 1, atol=1e-5)
    assert soft.sum(1).max() < 1 + 1e-4 and soft.min() >= 0


def test_controls_move_soft_labels_with_hard_ones():
    labels = other_parts.sinkhorn(np.random.default_rng(2).normal(size=(9, 2, 3)))
    choice = Selection(labels.captions, np.arange(9) < 6, labels.soft)
    for control in (random_matchings, exchanged):
        moved = control(task_of(stage_of(9, captions=3)), choice, labels.tie)
        assert np.array_equal(moved.soft[6:], choice.soft[6:]) and not np.array_equal(moved.soft, choice.soft)
        for unit in range(6 if control is random_matchings else 0):
            for before, after in zip(choice.captions[unit], moved.captions[unit], strict=True):
                assert moved.soft[unit, :, after].tolist() == choice.soft[unit, :, before].tolist()
        if control is exchanged:
            assert sorted(map(repr, moved.soft[:6].tolist())) == sorted(map(repr, choice.soft[:6].tolist()))


@pytest.mark.parametrize("negatives", ["batch", "group"])
def test_cross_entropy_to_soft_labels_is_the_sum_over_pairs(negatives):
    soft = torch.from_numpy(other_parts.sinkhorn(np.random.default_rng(4).normal(size=(4, 2, 3))).soft)
    batch = finetune.LabelledBatch(torch.randn(4, 2, 5), torch.randn(4, 3, 5), soft, Graded())
    total, scores = 0.0, torch.einsum("gid,hjd->gihj", batch.images, batch.captions).detach().numpy()
    for g in range(4):
        others = range(4) if negatives == "batch" else [g]
        for i in range(2):
            for j in range(3):
                row = sum(math.exp(scores[g, i, h, n]) for h in others for n in range(3))
                column = sum(math.exp(scores[h, n, g, j]) for h in others for n in range(2))
                log_p, log_q = scores[g, i, g, j] - math.log(row), scores[g, i, g, j] - math.log(column)
                total -= float(soft[g, i, j]) * (log_p + log_q) / 2
    assert float(other_parts.cross_entropy(batch, negatives=negatives).detach()) == pytest.approx(total / 8, rel=1e-5)


@pytest.mark.parametrize(("m", "k"), [(2, 2), (1, 3), (2, 3), (3, 2)])
def test_targets_stand_where_pairs_do(m, k):
    """Of each pair of a group, by rows of the prepared task: in batches as in the matching."""
    stage = stage_of(5, m, k, model=Graded())
    blind = task_of(stage)
    labels = matching(blind.first)
    choice = Selection(labels.captions, np.arange(5) != 2)
    soft, hard = blind.pairs(choice, True), blind.pairs(choice)
    assert soft.targets.shape == (4, m, k) and soft.targets.sum() == 4 * min(m, k)
    for unit in range(4):
        images, captions = np.nonzero(soft.targets[unit])
        found = set(zip(soft.images[unit][images].tolist(), soft.captions[unit][captions].tolist(), strict=True))
        assert found == set(zip(hard.images[unit].tolist(), hard.captions[unit].tolist(), strict=True))


def test_a_loss_of_its_own_is_the_same_in_smaller_parts(registry):
    stage = stage_of(6, 2, 3, model=Graded())
    blind = task_of(stage)
    pairs = blind.pairs(Selection(matching(blind.first).captions, np.ones(6, bool)), True)
    of_features = partial(finetune.loss_of_features, other_parts.cross_entropy, pairs.targets, stage.adapter)
    batch = [stage.prepared.images[pairs.images.reshape(-1)], stage.prepared.captions[pairs.captions.reshape(-1)]]
    gradients, encoders = [], (stage.adapter.train_images, stage.adapter.train_captions)
    for part_size in (None, 5):
        stage.adapter.zero_grad()
        if part_size is None:
            of_features(*(encode(rows) for encode, rows in zip(encoders, batch, strict=True))).backward()
        else:
            finetune.contrastive_in_parts(stage.adapter, *batch, part_size, of_features)
        gradients.append([one.grad.clone() for one in stage.adapter.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        assert torch.allclose(whole, parts, atol=1e-6)


def test_each_group_of_parameters_has_its_own_rate(registry, monkeypatch):
    seen, rates = [], []
    after_steps(monkeypatch, lambda: rates.append([group["lr"] for group in seen[-1].param_groups]))
    make = own_parts.two_rates
    monkeypatch.setattr(own_parts, "two_rates", lambda *given, **more: seen.append(make(*given, **more)) or seen[-1])
    run(registry, optimizer="two_rates", keep_optimizer_state=True)
    first = [rate for rate, _ in rates]
    assert rates[0] == pytest.approx([1e-2, 1e-3]) and min(first) >= 1e-3
    for fast, slow in rates:
        assert slow == pytest.approx(0.1 * fast), "in every step of every iteration"


def test_only_the_parameters_that_are_named_are_trained(registry):
    stage = stage_of(12, model=Graded())
    before = {name: tensor.clone() for name, tensor in stage.adapter.state_dict().items()}
    run(registry, stage, train="bias")
    changed = {name for name, tensor in stage.adapter.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"image.bias", "caption.bias"}


# --- stopping and resuming ------------------------------------------------------------------------------------


def test_a_run_stops_once_nothing_changes(registry):
    settings = {"schedule": "constant", "selection": "every", "iterations": 9, "epochs": 1, "lr": 1e-5}
    found = run(registry, stopping="no_change", **settings)
    assert len(found.steps) == 2, "the second iteration trains on what the first did"
    assert run(registry, resume=found.states[-1], stopping="no_change", **settings).steps == [], "it had ended"


def test_a_run_stops_once_its_groups_fit(registry):
    few = stage_of(3, model=Graded())
    found = run(registry, few, stopping="overfit", selection="every", iterations=40, epochs=20)
    assert 1 <= len(found.steps) < 40
    blind = task_of(found.stage, seed=3)
    blind.steps += found.steps
    ends = [other_parts.overfit([each]) for each in blind.rounds]
    assert ends == [*[False] * (len(ends) - 1), True]
    for ends, selected in ((True, [False, False]), (False, [True, False])):  # over the whole dataset: once none is left
        assert other_parts.overfit([Round(np.array(selected), np.array([[0], [1]]), (), np.eye(2))]) is ends


@pytest.mark.parametrize("parts", [OWN, {"train": "lora:2", "teacher": "ema"}], ids=["plugin", "low rank"])
def test_parts_are_resumed_after_a_kill_with_equal_bits(parts, tmp_path, monkeypatch):
    settings = {"plugins": [("own", own_parts)], "ttm": {**SHORT, **parts}, **QUICK}
    expected = ttmbench.simple_evaluate("tiny-clip", "shapes_color", **settings)
    settings["output_path"] = str(tmp_path / "x.json")
    for _ in range(2):
        killed_at_its_first_file(monkeypatch, lambda: ttmbench.simple_evaluate("tiny-clip", "shapes_color", **settings))
    found = ttmbench.simple_evaluate("tiny-clip", "shapes_color", **settings)
    assert found["results"] == expected["results"]
    records = [run["methods"]["shapes_color"]["ttm"] for run in (found, expected)]
    lines = [[{**line, "seconds": 0} for line in record["iterations"]] for record in records]
    assert lines[0] == lines[1] and parts.items() <= records[0]["settings"].items()
    if parts is OWN:
        assert [line["selected"] for line in lines[0]] == [7, 7, 7]
        assert "support" in found["code"], "an edited source starts a new run"


# --- through a run --------------------------------------------------------------------------------------------


def test_selftrain_is_ttm_with_each_images_best_caption():
    more = {"holdout": 0.5, "audit_labels": True, **QUICK}
    by_part = ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm={**SHORT, "pseudo_labels": "argmax"}, **more)
    as_method = ttmbench.simple_evaluate(
        "tiny-clip", "shapes_color", methods=["selftrain"], method_args={"selftrain": SHORT}, **more
    )
    scores = [run.scores["shapes_color"][name][0].groups for run, name in ((by_part, "ttm"), (as_method, "selftrain"))]
    assert np.array_equal(*scores)
    record = as_method["methods"]["shapes_color"]["selftrain"]
    assert record["settings"]["pseudo_labels"] == "argmax" and record["turns"] == 3
    lines = by_part["methods"]["shapes_color"]["ttm"]["iterations"]
    assert record["loss"] == [pytest.approx(np.mean([line["loss"] for line in lines if line["selected"]]))]
    selected = [line["selected"] for line in lines]
    cost = record["cost"][0]
    assert cost["optimizer_steps"] == sum(math.ceil(count / 4) * 2 for count in selected)
    assert cost["image_rows_backward"] == cost["caption_rows_backward"] == sum(2 * count * 2 for count in selected)
    assert record["holdout"] == by_part["methods"]["shapes_color"]["ttm"]["holdout"]
    assert record["audit_labels"]["passed"]
