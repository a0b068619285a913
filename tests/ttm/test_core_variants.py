"""What the variants of TTM run and report, on a model of two layers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.small_models import Towers, stage_of

from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.errors import AssertionNotMet, TtmbenchError
from ttmbench.evaluator.methods import run_ttm_method
from ttmbench.methods import variants
from ttmbench.methods.checkpoint import AfterSeed
from ttmbench.methods.training import Original
from ttmbench.methods.ttm import Step
from ttmbench.metrics import METRICS, group_match
from ttmbench.model import Model
from ttmbench.plugins.methods import METHODS
from ttmbench.types import ScheduleSpec, Scores

LINEAR = ScheduleSpec("linear", schedules.linear)
SPECS = {spec.name: spec for spec in METHODS}
TTM, STEP = SPECS["ttm"], SPECS["overfit"]


def step_of(selected, captions, tau=0.5) -> Step:
    selected, captions = np.array(selected), np.array(captions)
    return Step(1, tau, captions, selected, ~selected, (1.0,), 1e-3, Scores(np.zeros((len(selected), 2, 2))), 2.0)


def test_an_iteration_is_counted_against_the_truth():
    stage = stage_of(4)
    spec = SimpleNamespace(is_global=False, task="t", matching="group")
    one = variants.Adaptation(None, spec, stage, stage.score(), TTMConfig(), [], [0])
    record = one.record_of(step_of([True, True, True, False], [[0, 1], [1, 0], [0, 1], [0, 1]]), 3)
    assert (record.seed, record.selected, record.candidates, record.coverage, record.tied) == (3, 3, 4, 0.75, 1)
    assert record.pseudo_label_accuracy == 2 / 3 and record.seconds == 2.0
    assert one.record_of(step_of([False] * 4, [[0, 1]] * 4), 0).pseudo_label_accuracy is None
    assert one.seed == 0 and one.truth.tolist() == [[0, 1]] * 4
    wide, narrow = stage_of(3, 2, 4), stage_of(3, 3, 1)
    assert replace(one, raw=wide.score()).truth.tolist() == [[0, 1]] * 3
    assert replace(one, raw=narrow.score()).truth.tolist() == [[0]] * 3
    everywhere = stage_of(3, is_global=True)
    over_all = replace(one, raw=everywhere.score(), stage=everywhere, spec=SimpleNamespace(is_global=True))
    assert over_all.truth.tolist() == [[number] for number in range(6)]


def test_the_audit_compares_selections_and_their_captions():
    spec = SimpleNamespace(task="mine")
    one = step_of([True, False, True], [[0, 1], [0, 1], [1, 0]])
    variants._compare(spec, 0, one, one, one.captions)
    variants._compare(spec, 0, one, one, np.array([[0, 1], [1, 0], [1, 0]]))  # of what is not selected nothing is said
    others = (
        (step_of([True, True, True], one.captions), one.captions, "1 of 3 units, the first is 1"),
        (one, np.array([[0, 1], [0, 1], [1, 1]]), "1 of 3 units, the first is 2"),
        (step_of([False, True, True], one.captions), one.captions, "2 of 3 units, the first is 0"),
    )
    for other, captions, said in others:
        with pytest.raises(AssertionNotMet, match=said):
            variants._compare(spec, 0, one, other, captions)


def test_captions_of_permuted_groups_are_named_as_they_were():
    order = np.array([[2, 0, 1], [1, 2, 0]])
    one = variants.Adaptation(None, SimpleNamespace(is_global=False), None, None, TTMConfig(), [], [0])
    assert one._unpermuted(np.array([[0, 2], [1, 0]]), order).tolist() == [[2, 1], [2, 1]]
    whole = replace(one, spec=SimpleNamespace(is_global=True))
    assert whole._unpermuted(np.array([[0], [4], [5], [2]]), order).tolist() == [[2], [5], [3], [1]]


# --- variants -----------------------------------------------------------------------------------------------------


@pytest.fixture
def adaptation():
    """TTM on eight groups of two images for two seeds, and what plugins are told."""
    told = []

    notify = lambda hook, **about: told.append((hook, about))  # noqa: E731
    registry = SimpleNamespace(schedules={"linear": LINEAR}, notify=notify)
    spec = SimpleNamespace(is_global=False, task="mine", matching="group")
    stage = stage_of(8)
    config = TTMConfig(iterations=2, epochs=1, lr=1e-2)
    one = variants.Adaptation(registry, spec, stage, stage.score(), config, [GROUP_MATCH], [3, 5])
    return one, told


GROUP_MATCH = next(metric for metric in METRICS if metric.name == "group_match")


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_every_seed_starts_from_the_same_model_and_leaves_it(adaptation):
    one, told = adaptation
    before, ended = weights(one.stage.adapter), []

    def finished(seed, about):
        assert any(not torch.equal(t, before[name]) for name, t in one.stage.adapter.state_dict().items())
        ended.append((seed, about))

    result = run_ttm_method(one, TTM, {}, after=AfterSeed(finished))
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.stage.adapter.state_dict().items())
    settings = {**one.settings.model_dump(mode="json"), "lr": 1e-2}
    assert ended == [(seed, {"settings": settings}) for seed in (3, 5)]
    lines = result.record["iterations"]
    assert [(line["seed"], line["iteration"]) for line in lines] == [(3, 1), (3, 2), (5, 1), (5, 2)]
    assert [(hook, about["task"]) for hook, about in told] == [("ttmbench_iteration_finished", "mine")] * 4
    assert [(about["record"].seed, about["record"].iteration) for _, about in told] == [(3, 1), (3, 2), (5, 1), (5, 2)]
    for line, scores in ((lines[1], result.scores[0]), (lines[3], result.scores[1])):
        assert line["metrics"] == {"group_match": group_match(scores.groups).mean()}
        assert isinstance(line["loss"], list) and len(line["loss"]) == 1
    assert not np.array_equal(result.scores[0].groups, one.raw.groups)
    assert "audit_labels" not in result.record and result.record["seeds"] == [3, 5]
    audited = run_ttm_method(one, TTM, {}, audit=True).record["audit_labels"]
    assert audited == {"passed": True, "compared": 16, "of": 16}
    told.clear()
    lines = run_ttm_method(one, SPECS["oracle"], {}).record["iterations"]
    assert all(line["pseudo_label_accuracy"] in (1.0, None) for line in lines)
    assert [about["method"] for _, about in told] == ["oracle"] * 4


def test_held_out_groups_leave_the_model_as_it_was(adaptation):
    one, told = adaptation
    weights_before = weights(one.stage.adapter)
    record = one.holdout(TTM, 0.25)
    assert (record["adapted"], record["scored"]) == (6, 2) and len(record["metrics"]["group_match"]["adapted"]) == 2
    assert not told and all(torch.equal(t, weights_before[name]) for name, t in one.stage.adapter.state_dict().items())


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (2, 1), (3, 2)])
def test_the_audit_permutes_what_is_chosen_from(shape, adaptation, monkeypatch):
    one, _ = adaptation
    stage, seen = stage_of(6, *shape), []
    one = replace(one, stage=stage, raw=stage.score(), metrics=[], seeds=[3])
    first = one.runs(TTM)
    plain = variants.replace

    def watched(thing, **changes):
        if "rows" in changes:
            seen.append(changes["rows"])
        return plain(thing, **changes)

    monkeypatch.setattr(variants, "replace", watched)
    assert one.audit(TTM, first)["passed"] is True
    rows, (turned,) = stage.prepared.rows, seen
    images, captions = (rows.images, rows.captions)
    rng = np.random.default_rng([3, 4])
    options = images if shape[0] > shape[1] else captions
    order = rng.permuted(np.tile(np.arange(options.shape[1]), (6, 1)), axis=1)
    expected = np.take_along_axis(options, order, axis=1)
    assert np.array_equal(turned.images, expected if shape[0] > shape[1] else images)
    assert np.array_equal(turned.captions, captions if shape[0] > shape[1] else expected)


# --- a model that is not restored ---------------------------------------------------------------------------------


class Forgetful(Towers):
    """Loads only some of its tensors, by their numbers."""

    def __init__(self, loads=()):
        super().__init__()
        self.loads = loads

    def load_state_dict(self, state):
        own = self.state_dict()
        loaded = {name: state[name] if place in self.loads else own[name] for place, name in enumerate(state)}
        super().load_state_dict(loaded)


def forgetful(one, loads=(), **more):
    stage = stage_of(20, model=Forgetful(loads))
    return replace(one, stage=stage, raw=stage.score(), **more)


@pytest.mark.parametrize(("spec", "loads"), [(TTM, ()), (STEP, (0, 2))])
def test_an_adapter_that_does_not_load_is_named(spec, loads, adaptation):
    why = "model adapter Forgetful does not give the same scores .* must load every tensor that its state_dict returns"
    with pytest.raises(TtmbenchError, match=why):
        forgetful(adaptation[0], loads).runs(spec)


def test_a_model_that_was_not_trained_is_not_accused(adaptation):
    """Nothing is selected at this threshold, so nothing changes and nothing has to be loaded."""
    one, _ = adaptation
    settings = one.settings.model_copy(update={"tau_start": 1e6, "tau_end": 1e6})
    lines = run_ttm_method(forgetful(one, settings=settings), TTM, {}).record["iterations"]
    assert [line["selected"] for line in lines] == [0] * 4


class Restless(Model):
    """Scores that differ a little each time, of a model that is restored well or not."""

    def __init__(self, noise: float, moves: float) -> None:
        self.weight, self.noise, self.moves, self.calls = torch.zeros(1), noise, moves, 0

    def fingerprint(self): ...

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"] + self.moves

    def score(self):
        self.calls += 1
        return Scores(np.full((2, 2, 2), float(self.weight) + self.noise * (self.calls % 3), dtype=np.float32))


@pytest.mark.parametrize(
    ("noise", "moves", "accused"),
    [
        (0.0, 1e-5, False),
        (0.0, 1.5e-4, True),
        (0.25, 0.75, False),  # exactly twice what two looks differ by
        (0.01, 0.04, True),
        (0.0, np.nan, True),
    ],
)
def test_what_a_second_look_differs_by_is_no_reason(noise, moves, accused):
    model, original = Restless(noise, moves), Original.__new__(Original)
    vars(original).update(_adapter=model, _weights=model.state_dict(), _batch=model, _scores=None, _trained=[])
    expected = pytest.raises(TtmbenchError, match="Restless does not give the same scores")
    with expected if accused else nullcontext(), original.adapted():
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_the_weights_are_restored_whatever_ends_training(error):
    model = Towers()
    before = weights(model)
    with pytest.raises(error), Original(stage_of(4, model=model)).adapted():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        raise error
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
