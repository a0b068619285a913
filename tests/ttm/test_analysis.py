"""The paper's figures for a model and a task: numbers checked by hand, files written, figures drawn."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from functools import cache

import numpy as np
import pytest
from PIL import Image, ImageColor

import ttmbench
from ttmbench.cli import main
from ttmbench.config import AUTHORS_LEARNING_RATE, DEFAULT_LEARNING_RATE, TTMConfig
from ttmbench.data.task_file import find_task
from ttmbench.errors import UsageError
from ttmbench.evaluator import analyses as analysis
from ttmbench.methods.model_task import PseudoLabels
from ttmbench.plugins import trackers
from ttmbench.plugins.registry import build_registry
from ttmbench.report import charts
from ttmbench.types import Scores

REGISTRY = build_registry()
QUICK = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "8", "--device", "cpu"]
SHORT = ["--ttm_args", "iterations=2,epochs=1"]


SPEC = find_task(REGISTRY, "shapes_color").spec


def of(scores) -> Scores:
    return Scores(np.array(scores, dtype=np.float32))


def with_margins(margins) -> list:
    """2x2 groups whose margins are given; negative: the wrong matching wins by so much."""
    return [[[margin, 0.0], [0.0, 0.0]] for margin in margins]


def test_thresholds_count_what_is_kept_and_how_much_of_it_is_right():
    found = analysis.thresholds(of(with_margins([4.0, 3.0, -2.0, 1.0, 0.0])), SPEC)
    assert found["candidates"] == 5 and found["notes"] == ["1 tied"]
    at = {round(level["threshold"], 6): (level["selected"], level["value"]) for level in found["levels"]}
    assert at[0.0] == (4, 3 / 4), "the tied group is never kept"
    assert at[1.0] == (4, 3 / 4) and at[2.0] == (3, 2 / 3) and at[3.0] == (2, 1.0) and at[4.0] == (1, 1.0)
    assert [(row["name"], row.get("band"), row["value"]) for row in found["rows"]] == [
        *(("15 %", 4.0, 1.0), ("30 %", 3.0, 1.0), ("all", None, 3 / 4))
    ]


def test_thresholds_of_a_constant_scorer_are_refused():
    with pytest.raises(UsageError, match="ties"):
        analysis.thresholds(of(np.zeros((5, 2, 2))), SPEC)


def test_global_thresholds_are_those_of_pairs():
    pairs = np.full((4, 4), -9.0, dtype=np.float32)
    pairs[0, 0], pairs[1, 1], pairs[2, 3], pairs[3, 2] = 2.0, 1.0, -1.0, -2.0
    scores = Scores(np.stack([pairs[:2, :2], pairs[2:, 2:]]), pairs)
    found = analysis.thresholds(scores, find_task(REGISTRY, "shapes_color_global").spec)
    assert found["levels"][0] == {"threshold": -2.0, "selected": 4, "value": 0.5}
    assert (found["levels"][-1]["selected"], found["levels"][-1]["value"]) == (1, 1.0)


def test_taus_keep_15_to_30_percent():
    raw = of(with_margins(np.arange(1, 101, dtype=float)))

    def taus(settings):
        return [changes["tau_start"] for *_, changes in analysis.variants("tau", REGISTRY, SPEC, settings, raw, None)]

    assert taus(TTMConfig()) == [86.0, 81.0, 76.0, 71.0]
    assert taus(TTMConfig(threshold="share")) == pytest.approx([0.7, 0.6, 0.5, 0.4])


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    """What an analysis with two seeds writes, and prints; each is made once."""

    @cache
    def make(name):
        folder, printed = tmp_path_factory.mktemp(name), io.StringIO()
        options = [*(SHORT if name in analysis.TRAINS else []), *(["--lrs", "1e-3,1e-4"] if name == "lr" else [])]
        with redirect_stdout(printed):
            assert main(["analyze", name, *QUICK, *options, "--seeds", "0,1", "-o", str(folder)]) == 0
        return folder, printed.getvalue()

    return make


@pytest.mark.parametrize("name", ["thresholds", "schedules", "supervision", "oracle", "tau", "lr"])
def test_every_analysis_writes_numbers_and_figures(name, analysed):
    folder, printed = analysed(name)
    files = {path.suffix: path for path in (folder / "tiny-clip").iterdir()}
    assert set(files) == {".json", ".png", ".svg"} and all(str(path) in printed for path in files.values())
    document = json.loads(files[".json"].read_text())
    assert (document["analysis"], document["task"], document["n_groups"]) == (name, "shapes_color", 8)
    with Image.open(files[".png"]) as figure:
        colours = {colour for _, colour in figure.convert("RGB").getcolors(figure.width * figure.height)}
    assert len(colours) > 20 and ImageColor.getrgb(charts.COUNT) in colours, "something is drawn"
    assert files[".svg"].read_text().rstrip().endswith("</svg>")


def test_supervision_has_the_raw_metrics_of_a_run_with_chance(analysed):
    rows = json.loads(next(analysed("supervision")[0].rglob("*.json")).read_text())["rows"]
    run = ttmbench.simple_evaluate("tiny-clip", "shapes_color", limit=8, device="cpu")
    assert rows[-1] == {
        "name": "group_match",
        "value": run.results["shapes_color"]["group_match,none"],
        "ci": run["ci"]["shapes_color"]["group_match,none"],
        "chance": 0.5,
    }
    names = ["group_score", "individual_match", "global_assignment_accuracy", "group_match"]
    assert [row["name"] for row in rows] == names


def test_curves_hold_every_seed_and_iteration(analysed):
    _, *rows = json.loads(next(analysed("oracle")[0].rglob("*.json")).read_text())["rows"]
    assert [row["name"] for row in rows] == ["TTM", "oracle (uses labels)"]
    for row in rows:
        found = [[(step["seed"], step["iteration"]) for step in of] for of in row["iterations"]]
        assert found == [[(0, 1), (0, 2)], [(1, 1), (1, 2)]]
        assert row["value"] == pytest.approx(np.mean([of[-1]["metrics"]["group_match"] for of in row["iterations"]]))
    assert all(step["pseudo_label_accuracy"] == 1.0 for of in rows[1]["iterations"] for step in of)


def test_thresholds_may_be_given(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "save_figure", lambda draw, path, kind: path.touch())
    assert main(["analyze", "tau", *QUICK, *SHORT, "--taus", "1.5,3", "-o", str(tmp_path)]) == 0
    rows = json.loads(next(tmp_path.rglob("*.json")).read_text())["rows"]
    assert [row["name"] for row in rows] == ["no adaptation", "tau_1 = 3", "tau_1 = 1.5"]


def test_wrong_options_say_so(capsys, tmp_path):
    for options, message in (
        (["nothing", *QUICK], "invalid choice: 'nothing'"),
        (["thresholds", *QUICK, "--taus", "1,2"], "--taus is for the analysis 'tau'"),
        (["thresholds", *QUICK, "--lrs", "1,2"], "--lrs is for the analysis 'lr'"),
        (["lr", *QUICK, "--lrs", "1e-4,0"], "'lr': must be greater than 0"),
        (["tau", *QUICK, "--taus", "a,b"], "numbers separated by commas"),
        (["thresholds", *QUICK, "-o", str(tmp_path / "x.json")], "must be a directory for analyze"),
        (["thresholds", "--model", "tiny-clip"], "--tasks is needed"),
    ):
        assert main(["analyze", *options]) == 2
        assert message in capsys.readouterr().err


def test_names_from_data_cannot_break_a_figure(tmp_path):
    document = {
        "analysis": "thresholds",
        "model_name": r"<b>&$\frac$",
        "task": "t",
        "matching": "group",
        "metric": "group_match",
        **analysis.thresholds(of(with_margins([4.0, 3.0, -2.0])), SPEC),
    }
    charts.save_figure(lambda: charts.draw_analysis(document), tmp_path / "x.svg", "svg")
    assert "<b>" not in (tmp_path / "x.svg").read_text()


# --- learning rates -------------------------------------------------------------------------------------------


def labels_of(captions, tie=None, confidence=None) -> PseudoLabels:
    captions = np.array(captions)
    tie = np.zeros(len(captions), dtype=bool) if tie is None else np.array(tie)
    return PseudoLabels(captions, np.ones(len(captions)) if confidence is None else np.array(confidence), tie)


def test_the_grid_has_the_rate_that_would_be_used_and_reaches_the_authors():
    def rates(usual):
        made = analysis.variants("lr", REGISTRY, SPEC, TTMConfig(lr=usual), of(np.zeros((2, 2, 2))), None)
        return [changes["lr"] for *_, changes in made]

    assert rates(5e-4) == [3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3]
    assert {DEFAULT_LEARNING_RATE, AUTHORS_LEARNING_RATE} < set(rates(None))


def test_seeds_agree_where_they_match_alike_and_a_tie_is_like_nothing():
    one, other = [[0, 1], [1, 0], [0, 1], [0, 1]], [[0, 1], [0, 1], [0, 1], [0, 1]]
    assert analysis.agreement([labels_of(one), labels_of(other)]) == 0.75
    three = [labels_of(one), labels_of(other), labels_of(one)]
    assert analysis.agreement(three) == pytest.approx((0.75 + 1 + 0.75) / 3)
    assert analysis.agreement([labels_of(one, [False, False, False, True]), labels_of(other)]) == 0.5
    assert analysis.agreement(three[:1]) is None


def test_the_surest_quarter_is_that_of_the_raw_model():
    before = labels_of([[0, 1]] * 8, confidence=[1, 2, 3, 4, 5, 6, 7, 9], tie=[False] * 7 + [True])
    after = labels_of([[1, 0]] * 6 + [[0, 1]] * 2)
    assert analysis.confident_kept(before, after) == 0.5, "units 5 and 6; the tied one is not sure"
    assert analysis.confident_kept(labels_of([[0, 1]], [True]), after) is None


def test_learning_rates_are_compared_by_runs_of_ttm(tmp_path, capsys):
    options = [*SHORT, "--seeds", "0,1", "--lrs", "1e-3,5e-4,1e6", "-o", str(tmp_path)]
    assert main(["analyze", "lr", *QUICK, *options]) == 0
    document = json.loads(next(tmp_path.rglob("*.json")).read_text())
    _, *rates = document["rows"]
    assert [rate["lr"] for rate in rates] == [5e-4, 1e-3, 1e6] and document["default"] == 5e-4
    ttm = {"iterations": 2, "epochs": 1, "lr": 1e-3}
    run = ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm=ttm, limit=8, device="cpu", seeds=[0, 1])
    record, rate = run["methods"]["shapes_color"]["ttm"], rates[1]
    assert rate["value"] == run.results["shapes_color"]["group_match,ttm"]
    losses = [step["loss"] for of in rate["iterations"] for step in of]
    assert losses == [step["loss"] for step in record["iterations"]] and 0 < rate["agreement"] <= 1
    broken = rates[2]
    assert broken["iterations"] == [] and "value" not in broken and list(broken["diverged"]) == ["0", "1"]
    assert all("a lower learning rate may help" in reason for reason in broken["diverged"].values())
    printed = capsys.readouterr().out
    assert "lr = 0.0005 (default)" in printed and "diverged with 2 of 2 seeds" in printed


def test_the_runs_of_an_analysis_are_tracked_by_nothing(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", (lambda *given: opened.append(given), ()))
    monkeypatch.setattr(trackers, "import_module", lambda name: None)
    options = tmp_path / "options.yaml"
    options.write_text("track: [tensorboard]\ntrack_args: {project: mine}\n", encoding="utf-8")
    monkeypatch.setattr(charts, "save_figure", lambda draw, path, kind: path.touch())
    command = ["analyze", "oracle", *QUICK, *SHORT, "--config", str(options), "--output_path", str(tmp_path / "out")]
    assert main(command) == 0 and not opened, "its runs are those of no user"
