"""What methods that train the whole model run and report, on a model of two layers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.small_models import Towers, stage_of

from ttmbench.config import TTMConfig
from ttmbench.errors import AssertionNotMet, TtmbenchError
from ttmbench.methods import runner as runner
from ttmbench.methods import training
from ttmbench.methods.audit import compare_selections
from ttmbench.methods.runner import MethodRun
from ttmbench.methods.training import Iteration, restored
from ttmbench.metrics import METRICS, group_match
from ttmbench.model import Model
from ttmbench.plugins.method_functions import METHODS
from ttmbench.plugins.registry import build_registry
from ttmbench.types import GroupShape, Scores

SPECS = {spec.name: spec for spec in METHODS}
REGISTRY = build_registry(quiet=True)
TTM, STEP = SPECS["ttm"], SPECS["overfit"]
GROUP_MATCH = next(metric for metric in METRICS if metric.name == "group_match")


def run_of(stage, **changes) -> MethodRun:
    """TTM on a task for two seeds."""
    given = {
        "raw": stage.score(),
        "shape": GroupShape(*stage.score().groups.shape[1:]),
        "metrics": [GROUP_MATCH],
        "seeds": [3, 5],
        "registry": REGISTRY,
        "settings": TTMConfig(iterations=2, epochs=1, lr=1e-2),
        "stage": stage,
        "is_global": stage.is_global,
    }
    return MethodRun(**{**given, **changes})


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_restored(model, before) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def step_of(selected, captions, tau=0.5) -> Iteration:
    selected, captions = np.array(selected), np.array(captions)
    scores = Scores(np.zeros((len(selected), 2, 2)))
    return Iteration(1, tau, captions, selected, ~selected, (1.0,), 1e-3, scores, 2.0)


def test_an_iteration_is_counted_against_the_truth():
    one = run_of(stage_of(4), metrics=[])
    record = one.iteration_record(step_of([True, True, True, False], [[0, 1], [1, 0], [0, 1], [0, 1]]), 3)
    assert (record.seed, record.selected, record.candidates, record.coverage, record.tied) == (3, 3, 4, 0.75, 1)
    assert record.pseudo_label_accuracy == 2 / 3 and record.seconds == 2.0
    assert one.iteration_record(step_of([False] * 4, [[0, 1]] * 4), 0).pseudo_label_accuracy is None
    for stage, captions in (
        (stage_of(3, 2, 4), [[0, 1], [0, 1], [0, 2]]),
        (stage_of(3, 3, 1), [[0], [0], [1]]),
        (stage_of(3, 2, 2, is_global=True), [[0], [1], [2], [3], [5], [4]]),
        (stage_of(3, 1, 2, is_global=True), [[0], [2], [3]]),
    ):
        found = run_of(stage, metrics=[]).iteration_record(step_of([True] * len(captions), captions), 0)
        assert found.pseudo_label_accuracy == 2 / 3


def test_the_audit_compares_selections_and_their_captions():
    one = step_of([True, False, True], [[0, 1], [0, 1], [1, 0]])
    same = np.tile(np.arange(2), (3, 1))
    whole = [one, one]
    assert compare_selections("ttm", 0, whole, whole, same, False) == 3
    unselected = replace(one, captions=np.array([[0, 1], [1, 0], [1, 0]]))
    assert compare_selections("ttm", 0, whole, [unselected, one], same, False) == 3
    tied = replace(one, tie=np.array([True, True, True]))
    assert compare_selections("ttm", 0, [tied], [replace(tied, captions=1 - tied.captions)], same, False) == 3
    others = (
        ([step_of([True, True, True], one.captions)], "1 of 3 units, the first is 1"),
        ([replace(one, captions=np.array([[0, 1], [0, 1], [1, 1]]))], "1 of 3 units, the first is 2"),
        ([one, step_of([False, True, True], one.captions)], "2 of 3 units, the first is 0"),
        ([one], "stops after iteration 1 and not 2"),
        ([one, one, one], "stops after iteration 3 and not 2"),
    )
    for again, why in others:
        with pytest.raises(AssertionNotMet, match=why):
            compare_selections("ttm", 0, whole, again, same, False)


# --- variants -----------------------------------------------------------------------------------------------------


def test_every_seed_starts_from_the_same_model_and_leaves_it():
    reported, ended = [], []
    one = run_of(stage_of(8), iterated=lambda *given: reported.append(given))
    model = one.stage.adapter
    before = weights(model)

    def finished(seed, about):
        assert not is_restored(model, before)
        ended.append((seed, about))

    result = one.column(TTM, {}, after=finished)
    assert is_restored(model, before)
    assert ended == [(seed, {"settings": result.record["settings"]}) for seed in (3, 5)]
    lines = result.record["iterations"]
    assert [(line["seed"], line["iteration"]) for line in lines] == [(3, 1), (3, 2), (5, 1), (5, 2)]
    said = [(name, record.seed, record.iteration) for name, record in reported]
    assert said == [("ttm", line["seed"], line["iteration"]) for line in lines]
    for line, scores in ((lines[1], result.scores[0]), (lines[3], result.scores[1])):
        assert line["metrics"] == {"group_match": group_match(scores.groups).mean()}
        assert isinstance(line["loss"], list) and len(line["loss"]) == 1
    assert not np.array_equal(result.scores[0].groups, one.raw.groups)
    assert "audit_labels" not in result.record and result.record["seeds"] == [3, 5]
    reported.clear()
    audited = replace(one, audit=True).column(TTM, {}).record["audit_labels"]
    assert audited == {"passed": True, "compared": 16, "of": 16} and len(reported) == 4
    lines = one.column(SPECS["oracle"], {}).record["iterations"]
    assert all(line["pseudo_label_accuracy"] in (1.0, None) for line in lines)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (2, 1), (3, 2)])
def test_the_audit_permutes_what_is_chosen_from(shape, monkeypatch):
    stage, seen, task = stage_of(6, *shape), [], runner.ModelTask
    monkeypatch.setattr(runner, "ModelTask", _watched(task, seen))
    assert run_of(stage, metrics=[], seeds=[3], audit=True).column(TTM, {}).record["audit_labels"]["passed"]
    (rows, turned), more_images = seen, shape[0] > shape[1]
    assert rows is stage.prepared.rows
    rng = np.random.default_rng([3, 4])
    options = rows.images if more_images else rows.captions
    order = rng.permuted(np.tile(np.arange(options.shape[1]), (6, 1)), axis=1)
    expected = np.take_along_axis(options, order, axis=1)
    assert np.array_equal(turned.images, expected if more_images else rows.images)
    assert np.array_equal(turned.captions, rows.captions if more_images else expected)


def _watched(task, seen):
    class Watched(task):
        def __init__(self, stage, *given, **more):
            seen.append(stage.prepared.rows)
            super().__init__(stage, *given, **more)

    return Watched


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


@pytest.mark.parametrize(("spec", "loads"), [(TTM, ()), (STEP, (0, 2))])
def test_an_adapter_that_does_not_load_is_named(spec, loads):
    why = "model adapter Forgetful does not give the same scores .* must load every tensor that its state_dict returns"
    with pytest.raises(TtmbenchError, match=why):
        run_of(stage_of(20, model=Forgetful(loads))).column(spec, {})


def test_a_model_that_was_not_trained_is_not_accused():
    """Nothing is selected at this threshold, so nothing changes and nothing has to be loaded."""
    run = run_of(stage_of(20, model=Forgetful()))
    lines = run.column(TTM, {"tau_start": 1e6, "tau_end": 1e6}).record["iterations"]
    assert [line["selected"] for line in lines] == [0] * 4


class Restless(Model):
    """Scores that differ a little each time, of a model that is restored well or not."""

    def __init__(self, noise: float, moves: float) -> None:
        self.weight, self.noise, self.moves, self.calls = torch.zeros(1), noise, moves, 0

    def fingerprint(self): ...

    def parameters(self):
        return []

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
def test_what_a_second_look_differs_by_is_no_reason(noise, moves, accused, monkeypatch):
    model, stage = Restless(noise, moves), stage_of(2)
    monkeypatch.setattr(training, "replace", lambda *_, **__: model)
    expected = pytest.raises(TtmbenchError, match="Restless does not give the same scores")
    with expected if accused else nullcontext(), restored(replace(stage, adapter=model)):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_the_weights_are_restored_whatever_ends_training(error):
    model = Towers()
    before = weights(model)
    with pytest.raises(error), restored(stage_of(4, model=model)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        raise error
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
