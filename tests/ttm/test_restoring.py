"""Every seed and variant starts from the model as it came; an adapter that does not give that is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ttmbench
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.errors import TtmbenchError
from ttmbench.model_adapters import hf
from ttmbench.model_adapters.tiny_clip import load
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.prepare import PreparedTask, prepare
from ttmbench.ttm import trainer as restoring
from ttmbench.ttm.checkpoint import SeedCheckpoint
from ttmbench.types import Scores

SHORT = {"iterations": 1, "epochs": 2, "lr": 1e-3}
WHY = "model adapter Forgetful does not give the same scores after its weights were restored: a batch of "


class Forgetful(hf.TransformersModel):
    """Loads nothing."""

    def load_state_dict(self, state):
        pass


class Half(hf.TransformersModel):
    """Loads every second tensor."""

    def load_state_dict(self, state):
        kept = self.state_dict()
        super().load_state_dict({name: state[name] if index % 2 else kept[name] for index, name in enumerate(state)})


def model(kind: type) -> hf.TransformersModel:
    made = load(device="cpu")
    made.__class__ = kind
    return made


def evaluate(adapter, **more):
    settings = {"limit": 20, "bootstrap_iters": 0, "ttm_args": SHORT, **more}
    if not any(settings.get(name) for name in ("simple_match", "oracle")):
        settings["ttm"] = True
    return ttmbench.simple_evaluate(adapter, "shapes_color", **settings)


@pytest.mark.parametrize(
    "more",
    [
        {"seeds": [0, 1, 2]},
        {"simple_match": True},
        {"oracle": True},
        {"ttm": True, "ttm_controls": ["placebo"]},
        {"ttm": True, "ttm_holdout": 0.5},
        {"ttm": True, "audit_labels": True},
    ],
    ids=["seeds", "simple_match", "oracle", "controls", "holdout", "audit"],
)
def test_a_load_state_dict_that_does_nothing_is_an_error_that_names_the_adapter(more):
    with pytest.raises(TtmbenchError, match=WHY) as found:
        evaluate(model(Forgetful), **more)
    assert "Its load_state_dict must load every tensor that its state_dict returns" in str(found.value)


def test_so_is_one_that_loads_a_part():
    with pytest.raises(TtmbenchError, match="model adapter Half does not give the same scores"):
        evaluate(model(Half))


def test_a_model_that_was_not_trained_is_not_accused():
    """Nothing is selected at this threshold, so nothing changes and nothing has to be loaded."""
    done = evaluate(model(Forgetful), ttm_args={**SHORT, "tau_start": 1e6, "tau_end": 1e6})
    assert all(one["selected"] == 0 for one in done["ttm"]["shapes_color"]["iterations"])


def test_one_batch_of_at_most_sixteen_groups_is_scored_before_and_after_each_seed(monkeypatch):
    scored: list[int] = []
    score = restoring.PreparedTask.score

    def counted(self, blocks=None):
        scored.append(len(self.prepared.rows.images))
        return score(self, blocks)

    monkeypatch.setattr(restoring.PreparedTask, "score", counted)
    evaluate(load(device="cpu"), seeds=[0, 1, 2])
    assert scored == [20, 16, 20, 16, 20, 16, 20, 16], "raw, before; then each seed's iteration and the check"


class Restless:
    """Scores that differ a little each time, of a model that is restored well or not."""

    def __init__(self, noise: float, moves: float) -> None:
        self.weight, self.noise, self.moves, self.calls = torch.zeros(1), noise, moves, 0

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"] + self.moves

    def score(self):
        self.calls += 1
        return float(self.weight) + self.noise * (self.calls % 3)


@pytest.mark.parametrize(
    ("noise", "moves", "accused"),
    [
        (0.0, 0.0, False),
        (0.0, 1e-5, False),
        (0.0, 1.5e-4, True),
        (0.0, 1e-3, True),
        (0.25, 0.75, False),  # exactly twice what two looks differ by
        (0.01, 0.04, True),
        (0.01, 0.0, False),
        (0.01, 1.0, True),
        (0.0, np.nan, True),
    ],
)
def test_what_a_second_look_differs_by_is_no_reason(monkeypatch, noise, moves, accused):
    adapter = Restless(noise, moves)

    class Batch:
        def score(self):
            value = np.full((2, 2, 2), adapter.score(), dtype=np.float32)
            return Scores(value)

    original = restoring.Original.__new__(restoring.Original)
    original._adapter, original._weights, original._batch, original._scores = (
        adapter,
        adapter.state_dict(),
        Batch(),
        None,
    )
    if not accused:
        with original.adapted():
            pass
        return
    with pytest.raises(TtmbenchError, match="Restless does not give the same scores"), original.adapted():
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_the_weights_are_restored_whatever_ends_training(error):
    stage = _stage()
    before = {name: tensor.clone() for name, tensor in stage.adapter.state_dict().items()}
    with pytest.raises(error), restoring.Original(stage).adapted():
        with torch.no_grad():
            for parameter in stage.adapter.parameters():
                parameter.add_(1.0)
        raise error
    after = stage.adapter.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


def _stage():
    registry, adapter = build_registry(), load(device="cpu")
    groups = load_task_data(registry, find_task(registry, "shapes_color"), limit=4).groups
    return PreparedTask(adapter, prepare(adapter, groups, 64)[0], 64, False, False)


def test_a_stopped_run_whose_weights_are_not_loaded_is_an_error(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    keep = SeedCheckpoint.keep

    def killed(self, step, state):
        keep(self, step, state)
        raise Killed

    again = {"output_path": str(tmp_path / "x.json"), "ttm_args": {**SHORT, "iterations": 2}, "model_name": "m"}
    with monkeypatch.context() as patched:
        patched.setattr(SeedCheckpoint, "keep", killed)
        with pytest.raises(Killed):
            evaluate(model(Forgetful), **again)
    with pytest.raises(TtmbenchError, match="model adapter Forgetful did not load the weights of a stopped run: '"):
        evaluate(model(Forgetful), **again)
