"""A submission with columns of test-time methods: one of scores, one of features, one of views, one that trains."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.submissions import make_submission, put

from ttmbench.cli import main
from ttmbench.cli.validate import read_command
from ttmbench.report.leaderboard import merge
from ttmbench.reproduce.submission.check import check_submission
from ttmbench.results.reader import read_document

T = "shapes_color"
COMMAND = (
    f"--model tiny-clip --tasks {T} --limit 12 --methods dual_softmax,dn,zero,tent --method_args "
    "zero.views=6,tent.images=8,dn.references=shapes_place:8 --ttm --ttm_args iterations=1,epochs=1 --ttm_holdout 0.5 "
    "--seeds 0,1 --audit_labels --save_scores --log_samples --output_path {}"
)
NAMES = ("dual_softmax", "dn", "zero", "tent")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_submission(tmp_path_factory.mktemp("submission") / "honest", COMMAND)


def said(forged, registry) -> list[str]:
    return [one.line for one in check_submission(forged.save(), registry, read_command).found]


def test_an_honest_run_is_sound(forged, registry):
    assert said(forged, registry) == []


def method(forged, name):
    return forged.document["methods"][T][name]


def other_scores(name):
    def edit(arrays):
        arrays[f"scores.{name}.0"] = np.ascontiguousarray(arrays[f"scores.{name}.0"] + np.eye(2, dtype=np.float32))

    return lambda forged: forged.edit_scores(edit)


def without(*path):
    def forge(forged):
        here = forged.document
        for key in path[:-1]:
            here = here[key]
        here.pop(path[-1])

    return forge


FORGERIES = [
    (put("results", T, "group_match,tent", to=0.99), f"results.{T}.group_match,tent: is 0.99"),
    (
        put("tracks", T, "group_score,dual_softmax", to="zero_shot"),
        f"tracks.{T}.group_score,dual_softmax: is zero_shot",
    ),
    (put("tracks", T, "group_match,tent", to="matching"), f"tracks.{T}.group_match,tent: is matching"),
    (put("chance", T, "group_score,dual_softmax", to=0.1), f"chance.{T}.group_score,dual_softmax: is 0.1"),
    (put("chance", T, "group_score,tent", to=0.1), f"chance.{T}.group_score,tent: is present"),
    (without("chance", T, "group_score,dn"), f"chance.{T}.group_score,dn: is missing"),
    (put("chance", T, "group_score,dn", to=1.5), "the chance level of group_score after dn is 1.5"),
    (put("methods", T, "tent", "settings", "lr", to=0.1), f"methods.{T}.tent.settings.lr: is 0.1"),
    (put("methods", T, "tent", "trained", "train", to="all"), f"methods.{T}.tent.trained.train: is all"),
    (put("methods", T, "dn", "needs", to=["scores"]), f"methods.{T}.dn.needs: is "),
    (put("methods", T, "dn", "assumes_matching", to=True), f"methods.{T}.dn.assumes_matching: is True"),
    (put("methods", T, "zero", "positions", to=[0.5, 0.5]), f"methods.{T}.zero.positions: is [0.5, 0.5]"),
    (put("methods", T, "zero", "seeds", to=[0]), f"methods.{T}.zero.loss: has 2 entries for 1 seeds"),
    (put("methods", T, "dn", "turns", to=3), f"methods.{T}.dn.turns: is 3, with 0 updates, of a method that trains"),
    (put("methods", T, "tent", "updates", to=1000), f"methods.{T}.tent.turns: is "),
    (put("methods", T, "tent", "loss", to=[1e9, 0.5]), f"methods.{T}.tent.loss.0: is 1e+09"),
    (put("methods", T, "dn", "chance", to=None), f"methods.{T}.dn.chance: is null"),
    (lambda forged: method(forged, "dn")["cost"][0].update(optimizer_steps=4), "cost.0.optimizer_steps: is 4"),
    (lambda forged: method(forged, "dual_softmax")["cost"][0].update(views=4), "cost.0.views: is 4"),
    (lambda forged: method(forged, "tent")["cost"][0].update(tower_passes=0.01), "cost.0.tower_passes: is 0.01"),
    (lambda forged: method(forged, "zero")["cost"][1].update(seconds=1e6), "cost.1.seconds: is 1000000.0"),
    (put("methods", T, "tent", "audit_labels", "compared", to=0), f"methods.{T}.tent.audit_labels.compared: is 0"),
    (without("methods", T, "dn", "audit_labels"), f"methods.{T}.dn.audit_labels: is missing"),
    (put("methods", T, "tent", "holdout", "scored", to=2), f"methods.{T}.tent.holdout.scored: is 2"),
    (without("methods", T, "tent", "holdout"), "method 'tent' has no held-out groups, for which the command asks"),
    (
        lambda forged: forged.everywhere(" --audit_labels", ""),
        f"methods.{T}.tent.audit_labels: is missing; submit test-time numbers with --audit_labels",
    ),
    (without("methods", T, "tent"), f"methods.{T}.tent is missing, and there are scores of this method"),
    (other_scores("dual_softmax"), "scores of method 'dual_softmax' are not those that it makes of the raw scores"),
    (other_scores("tent"), f"methods.{T}.tent.positions: is "),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays.pop("scores.tent.1")),
        "are of 1 seeds, the command gives 2",
    ),
    (
        lambda forged: forged.edit_scores(lambda arrays: [arrays.pop(f"scores.tent.{at}") for at in (0, 1)]),
        "its scores lack method 'tent', which the command names",
    ),
    (put("timing", T, "mine", to=0.01), f"timing.{T}.mine: is a stage that no run has"),
]


@pytest.mark.parametrize(("forge", "expected"), FORGERIES)
def test_a_forged_method_is_refused_with_its_reason(forged, registry, forge, expected):
    forge(forged)
    found = said(forged, registry)
    assert any(expected in one for one in found), found


def test_a_command_that_names_an_unknown_method_is_refused(forged, registry):
    forged.document["command"] = forged.document["command"].replace("dual_softmax", "softmaxes")
    assert any("unknown method 'softmaxes'" in one for one in said(forged, registry))


def test_settings_that_would_take_for_ever_are_not_computed_again(forged, registry):
    forged.everywhere("dual_softmax", "sinkhorn")
    forged.edit_scores(lambda arrays: arrays.update({"scores.sinkhorn.0": arrays.pop("scores.dual_softmax.0")}))
    forged.document["command"] += " --method_args sinkhorn.rounds=1000000000"
    forged.document["command"] = forged.document["command"].replace("--method_args zero.views=6,tent.images=8 ", "")
    assert any("rounds=1000000000, at most 10000 are taken" in one for one in said(forged, registry))


def test_its_numbers_are_those_of_its_stored_scores_and_samples(honest, tmp_path):
    run = read_document(honest / "x.json")
    for kind, ending in (("scores", "safetensors"), ("samples", "jsonl")):
        target = tmp_path / f"{kind}.json"
        file = honest / f"x_{kind}_{T}.{ending}"
        assert main(["score", str(file), "--task", T, "--limit", "12", "-o", str(target)]) == 0
        again = read_document(target)
        for key, value in run.results[T].items():
            assert again.results[T][key] == value, key
        assert all(again.tracks[T][key] == track for key, track in run.tracks[T].items())
        assert all(again.chance[T][f"group_score,{name}"] is None for name in NAMES), "which scores do not say"


def test_its_rows_have_their_tracks_in_a_leaderboard(honest):
    rows = {(row.metric, row.method): row for row in merge(honest).rows}
    assert {row.track for (_, name), row in rows.items() if name == "dual_softmax"} == {"matching"}
    assert {row.track for (_, name), row in rows.items() if name in NAMES[1:]} == {"test_time"}
    assert {name for (_, name), row in rows.items() if row.track == "zero_shot"} == {"raw"}
    assert rows["group_score", "dual_softmax"].chance > rows["group_score", "raw"].chance
    assert rows["group_score", "tent"].chance == rows["group_score", "raw"].chance
    assert rows["group_match", "zero"].seeds == 2 and rows["group_match", "dn"].seeds == 1


def test_assertions_read_its_numbers(honest, capsys):
    command = json.loads((honest / "x.json").read_text(encoding="utf-8"))["command"].split()[1:]
    words = [*command[: command.index("--save_scores")], "--assert", f"{T}.group_match,tent>=0"]
    assert main(words) == 0
    assert main([*words[:-1], f"{T}.group_match,tents>=0"]) == 2
    assert "there will be no filter 'tents'; did you mean 'tent'?" in capsys.readouterr().err
