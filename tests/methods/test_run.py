"""Methods of a plugin through the evaluator: columns, hidden labels, refusals, failures, resume, restored models."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from support import own_methods
from support.small_models import Counting

import ttmbench
from ttmbench.cli import main
from ttmbench.config import make_run_config
from ttmbench.errors import AssertionNotMet, TtmbenchError, UsageError
from ttmbench.methods import controls, training
from ttmbench.methods.runner import SeedCheckpoint
from ttmbench.results.stored_files import read_scores
from ttmbench.types import GroupShape

TASK = "shapes_color"
QUICK = {"limit": 12, "device": "cpu", "bootstrap_iters": 0}
PLUGIN = [("own", own_methods)]


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch):
    monkeypatch.setattr(own_methods, "TURNS", [])
    monkeypatch.setattr(own_methods, "STOP_AFTER", [])


def evaluate(methods, model="tiny-clip", tasks=TASK, **settings):
    return ttmbench.simple_evaluate(model, tasks, methods=methods, plugins=PLUGIN, **{**QUICK, **settings})


def scores_of(folder):
    (file,) = folder.rglob("scores_*.safetensors")
    return {name: per_seed[0].groups for name, per_seed in read_scores(file, GroupShape(2, 2)).scores.items()}


def costs_of(folder, method):
    (file,) = folder.rglob("results_*.json")
    costs = json.loads(file.read_text())["methods"][TASK][method]["cost"]
    return [{name: value for name, value in cost.items() if "seconds" not in name} for cost in costs]


def numbers(results, name, task=TASK):
    return {key: value for key, value in results.typed.to_dict()["results"][task].items() if key.endswith(f",{name}")}


def test_each_method_is_a_column_with_its_track_and_record():
    document = evaluate("doubled,centred,drift").typed.to_dict()
    assert document["results"][TASK]["group_match,doubled"] == document["results"][TASK]["group_match,none"]
    assert document["tracks"][TASK]["group_score,doubled"] == "test_time"
    records = document["methods"][TASK]
    assert list(records) == ["doubled", "centred", "drift"]
    assert records["drift"]["settings"] == {"lr": 0.01, "images": 8, "memory": 0.9}
    assert (records["drift"]["turns"], records["drift"]["updates"]) == (3, 3)
    # 24 images and 24 captions: features as they came, then each once forward and backward
    cost = records["drift"]["cost"][0]
    assert (cost["image_rows"], cost["image_rows_backward"], cost["optimizer_steps"]) == (48, 24, 3)
    assert records["doubled"]["trained"] is None and records["drift"]["trained"]["parameters"] > 0
    own_methods.TURNS.clear()
    evaluate("drift", method_args={"drift": {"images": 0}}, limit=4)
    assert own_methods.TURNS == [[0, 1, 2, 3]] * 2


def test_the_command_line_and_python_give_the_same(tmp_path, capsys):
    words = ["--model", "tiny-clip", "--tasks", TASK, "--methods", "dn,sinkhorn", "--method_args", "dn.strength=0.5"]
    assert main([*words, "--limit", "12", "--device", "cpu", "--bootstrap_iters", "0", "-o", str(tmp_path)]) == 0
    (file,) = tmp_path.rglob("results_*.json")
    python = evaluate(["dn", "sinkhorn"], method_args={"dn": {"strength": 0.5}}).typed.to_dict()
    told = json.loads(file.read_text())
    assert told["results"] == python["results"] and told["chance"] == python["chance"]
    assert told["methods"][TASK]["dn"]["settings"] == python["methods"][TASK]["dn"]["settings"]


@pytest.mark.parametrize("guess", ["first_is_best", "row_is_best"])
def test_a_method_cannot_know_which_caption_is_true(guess):
    order = np.random.default_rng([0, 0]).permuted(np.broadcast_to(np.arange(2), (12, 2)), axis=1)
    unmoved = float((order == np.arange(2)).all(axis=1).mean())
    found = evaluate([guess, "centred"])
    assert numbers(found, guess)[f"group_score,{guess}"] == unmoved not in (0, 1)
    assert numbers(found, "centred") == numbers(evaluate("centred"), "centred"), "each has features of its own"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("not_a_number", "'not_a_number' of plugin 'own' must give every pair a finite score, and gave 1 of 12 groups"),
        ("wrong_shape", "gave a tensor of shape [12, 2, 1]; scores of shape [12, 2, 2] are expected"),
        ("returns_a_list", "needs gradients, so it yields a MethodStep (batch.step) for each turn"),
    ],
)
def test_a_method_that_fails_leaves_the_columns_of_others(method, message):
    results = evaluate(f"{method},doubled", on_error="continue")
    (error,) = results.typed.errors
    assert message in error.message
    assert numbers(results, "doubled") and not numbers(results, method)


def test_ttm_that_fails_leaves_the_columns_of_others():
    short = {"lr": 1e30, "iterations": 1, "epochs": 2}
    results = evaluate("ttm,not_a_number,doubled", method_args={"ttm": short}, on_error="continue")
    (error,) = results.typed.errors
    assert "NaN or infinite" in error.message or "the loss became" in error.message
    assert numbers(results, "doubled") and not numbers(results, "ttm")
    (note,) = [note for note in results.typed.notes[TASK] if "a further method failed" in note]
    assert "method 'not_a_number' of plugin 'own' must give every pair a finite score" in note


VARIANTS = {"ttm": {"iterations": 1, "epochs": 1}, "on_error": "continue"}


def test_a_control_that_fails_leaves_the_columns_of_ttm_and_the_oracle(monkeypatch):
    def fails(*_):
        raise TtmbenchError("no label can be drawn")

    monkeypatch.setattr(controls, "random_matchings", fails)
    results = evaluate("placebo,oracle,doubled", **VARIANTS)
    assert [(error.stage, error.message) for error in results.typed.errors] == [("placebo", "no label can be drawn")]
    assert all(numbers(results, name) for name in ("ttm", "oracle", "doubled")) and not numbers(results, "placebo")


def test_nothing_follows_a_method_after_which_the_model_is_not_what_it_was(monkeypatch):
    monkeypatch.setattr(training, "restore", lambda model, state: None)
    results = evaluate("placebo,oracle,doubled", **VARIANTS)
    assert [(error.stage, error.type) for error in results.typed.errors] == [("ttm", "NotRestoredError")]
    assert numbers(results, "none") and not any(numbers(results, name) for name in ("placebo", "oracle", "doubled"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": "dubled"}, "unknown method 'dubled'"),
        ({"methods": "doubled", "method_args": {"doubled.faktor": 1}}, "doubled.faktor"),
        ({"methods": "doubled", "method_args": {"centred.strength": 1}}, "add it to --methods"),
        ({"methods": "doubled", "tasks": "shapes_retrieval"}, "the task has no groups"),
        ({"methods": "mta", "method_args": {"mta.share": 0.01}}, "method 'mta': share=0.01 needs at least 101 views"),
        ({"methods": "watt"}, "with model tiny-clip: its vocabulary lacks words of the wrappers 'a photo of {}'"),
    ],
)
def test_a_wrong_request_is_refused(settings, message):
    with pytest.raises(UsageError) as refused:
        evaluate(**settings)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("method", "needs"), [("centred", "features of a dual encoder"), ("drift", "dual encoder")])
def test_what_a_model_lacks_is_said_before_it_scores(tmp_path, method, needs):
    model = Counting(tmp_path / "calls")
    with pytest.raises(UsageError, match=needs):
        evaluate(method, model)
    assert model.calls == 0


def test_a_run_that_was_stopped_goes_on_at_the_next_turn(tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    settings = {"save_scores": True, "methods": "drift", "seeds": [3]}
    evaluate(**settings, output_path=str(whole))
    turns = [*own_methods.TURNS]
    assert len(turns) == 3 and sorted(itertools.chain(*turns)) == list(range(12))
    own_methods.TURNS.clear()
    monkeypatch.setattr(SeedCheckpoint, "is_due", lambda self, seconds: True)
    own_methods.STOP_AFTER.append(2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(**settings, output_path=str(stopped))
    own_methods.STOP_AFTER.clear()
    evaluate(**settings, output_path=str(stopped))
    assert own_methods.TURNS == turns, "no turn was done twice, and none was left out"
    expected, found = scores_of(whole), scores_of(stopped)
    assert list(expected) == ["none", "drift"]
    for column in expected:
        np.testing.assert_array_equal(found[column], expected[column])
    assert costs_of(stopped, "drift") == costs_of(whole, "drift")


def test_ttm_is_a_short_form_of_a_method():
    asked = make_run_config(
        {
            "model": "tiny-clip",
            "tasks": [TASK],
            "ttm": True,
            "methods": ["tent", "oracle", "ttm"],
            "method_args": {"ttm": {"iterations": 2}, "tent.lr": 1e-3},
        }
    )
    assert asked.methods == ["ttm", "tent", "oracle"]
    assert asked.method_args == {"ttm.iterations": 2, "tent.lr": 1e-3} and "ttm" not in asked.model_dump()


@pytest.mark.parametrize("method", ["doubled", "centred", "drift"])
def test_the_audit_of_labels_passes_for_a_method_that_knows_none(method):
    record = evaluate(method, audit_labels=True).typed.to_dict()["methods"][TASK][method]
    assert record["audit_labels"]["passed"] is True
    assert 0 < record["audit_labels"]["compared"] <= record["audit_labels"]["of"] == 12


def test_the_audit_of_labels_finds_a_method_that_reads_positions():
    with pytest.raises(AssertionNotMet, match="something reads positions"):
        evaluate("first_is_best", audit_labels=True)


def test_held_out_groups_are_scored_by_a_model_that_never_trained_on_them():
    document = evaluate("drift,episode", holdout=0.25, seeds=[0, 1]).typed.to_dict()
    held = document["methods"][TASK]["drift"]["holdout"]
    assert (held["share"], held["adapted"], held["scored"]) == (0.25, 9, 3)
    assert set(held["metrics"]) == {"text_score", "image_score", "group_score", "group_match", "individual_match"}
    assert all(len(values["adapted"]) == 2 for values in held["metrics"].values())
    match = held["metrics"]["group_match"]
    gain, (low, high) = match["gain"]["value"], match["gain"]["ci"]
    assert gain == pytest.approx(np.mean(match["adapted"]) - match["raw"]) and low <= gain <= high
    trained_on = [turn for turn in own_methods.TURNS if len(turn) and max(turn) < 9]
    assert sum(map(len, trained_on)) >= 18, "nine groups in each of two seeds"
    assert "holdout" not in document["methods"][TASK]["episode"], "it leaves no trained model"
    assert numbers(evaluate(()), "none") == {
        key: value for key, value in document["results"][TASK].items() if key.endswith(",none")
    }


def test_a_seed_that_was_finished_is_read_and_has_the_same_record(tmp_path):
    """The run stops in its second seed; the first one's record comes from its file."""
    settings = {"methods": "drift", "seeds": [0, 1]}
    expected = evaluate(**settings).typed.to_dict()["methods"][TASK]["drift"]
    own_methods.TURNS.clear()
    own_methods.STOP_AFTER.append(4)
    with pytest.raises(KeyboardInterrupt):
        evaluate(**settings, output_path=str(tmp_path))
    own_methods.STOP_AFTER.clear()
    own_methods.TURNS.clear()
    found = evaluate(**settings, output_path=str(tmp_path)).typed.to_dict()["methods"][TASK]["drift"]
    assert len(own_methods.TURNS) == 3, "the second seed alone"
    for record in (expected, found):
        for cost in record["cost"]:
            del cost["seconds"], cost["view_seconds"]
    assert found == expected
