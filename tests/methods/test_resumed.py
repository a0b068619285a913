"""Every training method that ships goes on after a stop as if there had been none."""

from __future__ import annotations

import numpy as np
import pytest
from support.rewrites import FILE

import ttmbench
from ttmbench.methods.checkpoint import SeedCheckpoint
from ttmbench.plugins.method_functions import METHODS
from ttmbench.results.stored_files import read_scores
from ttmbench.types import GroupShape

FEW = {
    **{name: {"views": 6} for name in ("tps", "tpt", "c_tpt")},
    "watt": {"wrappers": ["{}", "a photo of {}"], "images": 2, "rounds": 1},
    "rlcf": {"steps": 2, "lr": 1e-4},
    "neat": {"rewrites": FILE, "captions": 2},
    **{name: {"images": 2} for name in ("tent", "cliptta")},
}  # `check_method` stops each of them too (test_contract.py)
TRAINING = [spec.name for spec in METHODS if spec.trains and not spec.needs_model]


def evaluate(model, method, **settings):
    return ttmbench.simple_evaluate(
        "hf",
        "shapes_color",
        model_args={"pretrained": str(model)},
        methods=[method],
        method_args={method: FEW.get(method, {})},
        **{"limit": 3, "device": "cpu", "bootstrap_iters": 0, **settings},
    )


def scores_of(folder, method):
    (file,) = folder.rglob("scores_*.safetensors")
    return read_scores(file, GroupShape(2, 2)).scores[method][0].groups


@pytest.mark.parametrize(
    "method", [pytest.param(one, marks=() if one in ("cliptta", "tpt") else pytest.mark.slow) for one in TRAINING]
)
def test_a_method_that_was_stopped_goes_on(method, tiny_hf_clip, tmp_path, monkeypatch):
    settings = {"save_scores": True, "seeds": [1]}
    evaluate(tiny_hf_clip, method, output_path=str(tmp_path / "whole"), **settings)
    keep, turns = SeedCheckpoint.keep, []

    def stopped(self, run, state=None):
        keep(self, run, state)
        turns.append(run.turns)
        if len(turns) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SeedCheckpoint, "is_due", lambda self, seconds: True)
    monkeypatch.setattr(SeedCheckpoint, "keep", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny_hf_clip, method, output_path=str(tmp_path / "stopped"), **settings)
    evaluate(tiny_hf_clip, method, output_path=str(tmp_path / "stopped"), **settings)
    assert turns[:3] == [1, 2, 3], "no turn was done twice"
    expected = scores_of(tmp_path / "whole", method)
    np.testing.assert_array_equal(scores_of(tmp_path / "stopped", method), expected)
    assert not np.array_equal(expected, scores_of(tmp_path / "whole", "none"))
