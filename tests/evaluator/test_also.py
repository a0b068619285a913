"""``--also``: adapted models on other tasks, in blocks of their own, resumed after a stop; ``analyze transfer``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.documents import schema, without_times

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.evaluator import evaluate as evaluation
from ttmbench.report.terminal import print_results
from ttmbench.results.document import ResultsDocument
from ttmbench.results.stored_files import read_scores
from ttmbench.results.summary import difference_of, seed_interval

SHORT = {"iterations": 2, "epochs": 1, "lr": 2e-3}
QUICK = {"limit": 6, "device": "cpu", "bootstrap_iters": 50}
WORDS = "--model tiny-clip --limit 6 --device cpu --bootstrap_iters 50 --ttm_args iterations=2,epochs=1,lr=2e-3".split()
OTHERS = "shapes_color,shapes_place,shapes_spatial"
ELSEWHERE = ("shapes_color@shapes_place", "shapes_color@shapes_spatial")


def evaluate(path=None, **changes):
    settings = {"ttm": SHORT, "seeds": [0, 1], "also": OTHERS, **QUICK, **changes}
    return ttmbench.simple_evaluate("tiny-clip", "shapes_color", output_path=path and str(path), **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("also")
    words = [*WORDS, "--tasks", "shapes_color", "--ttm", "--seeds", "0,1", "--also", OTHERS, "--log_samples"]
    words += ["--save_scores", "--save_adapted", str(folder / "adapted"), "-o", str(folder / "x.json")]
    assert main(words) == 0
    return folder


@pytest.fixture(scope="module")
def document(whole):
    return json.loads((whole / "x.json").read_text())


def test_the_adapted_model_scores_elsewhere_what_its_saved_weights_score(whole, document):
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    assert list(document["also"]) == ["shapes_color"]
    assert list(document["also"]["shapes_color"]) == ["shapes_place", "shapes_spatial"], "its own task is no other"
    others = "shapes_place,shapes_spatial"
    as_it_came = ttmbench.simple_evaluate("tiny-clip", others, **QUICK).results
    of_seeds = [
        ttmbench.simple_evaluate(
            "hf", others, model_args={"pretrained": str(whole / "adapted/shapes_color" / f"seed_{seed}")}, **QUICK
        ).results
        for seed in (0, 1)
    ]
    for other, record in document["also"]["shapes_color"].items():
        raw, by_seed = as_it_came[other], [one[other] for one in of_seeds]
        for metric in ("group_match", "text_score"):
            key = f"{metric},none"
            each = [one[key] for one in by_seed]
            assert record["results"][key] == raw[key]
            assert record["results"][f"{metric},ttm"] == pytest.approx(np.mean(each))
            assert record["results"][f"{metric}_seed_std,ttm"] == pytest.approx(np.std(each, ddof=1))
            difference = record["methods"]["ttm"]["differences"][metric]
            assert difference["by_seed"] == pytest.approx([one - raw[key] for one in each])
            assert difference["ci"][0] <= difference["value"] <= difference["ci"][1]
            assert difference["seed_ci"] == pytest.approx(seed_interval([one - raw[key] for one in each]))
        assert record["n-samples"]["effective"] == 6 and record["n-samples"]["original"] == 200


def test_a_task_keeps_its_own_numbers_and_no_other_number_ranks(document):
    plain = evaluate(also="").document
    assert "also" not in plain and "differences" not in plain["methods"]["shapes_color"]["ttm"]
    assert all(document[key] == plain[key] for key in ("results", "tracks", "ci", "chance", "ties"))
    gain = document["methods"]["shapes_color"]["ttm"]["differences"]["group_match"]["value"]
    numbers = plain["results"]["shapes_color"]
    assert gain == pytest.approx(numbers["group_match,ttm"] - numbers["group_match,none"])
    assert {one.task for one in ResultsDocument.model_validate(document).numbers} == {"shapes_color"}


def test_tables_of_numbers_have_them_under_names_of_their_own(whole, document, tmp_path, capsys):
    record = document["also"]["shapes_color"]["shapes_place"]
    (run,) = ttmbench.read_results(whole / "x.json")
    frame = run.to_frame()
    assert set(frame["task"]) == {"shapes_color", *ELSEWHERE}
    apart = frame[frame["adapted_to"] == "shapes_color"]
    assert set(apart["task"]) == set(ELSEWHERE) and apart["track"].isna().all()
    (row,) = apart[
        (apart["task"] == ELSEWHERE[0]) & (apart["metric"] == "group_match") & (apart["method"] == "ttm")
    ].iloc
    assert row["value"] == record["results"]["group_match,ttm"] and row["seeds"] == 2 and row["groups_of_task"] == 200
    assert [row["ci_low"], row["ci_high"]] == record["ci"]["group_match,ttm"] and row["limited"]
    file = str(whole / "x.json")
    assert main(["export", file, "--to", "numbers", "-o", str(tmp_path / "x.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert {row["task"] for row in rows if row["adapted_to"]} == set(ELSEWHERE)
    assert {row["task"] for row in rows if row["track"]} == {"shapes_color"}
    assert main(["export", file, "--to", "latex"]) == 0
    assert r"shapes\_place" not in capsys.readouterr().out
    assert main(["export", file, "--to", "lm-eval", "-o", str(tmp_path / "lm.json")]) == 0
    assert set(json.loads((tmp_path / "lm.json").read_text())["results"]) == {"shapes_color"}


def test_they_are_compared_group_by_group(whole, tmp_path):
    document = json.loads((whole / "x.json").read_text())
    assert main(["compare", str(whole / "x.json"), "--bootstrap_iters", "50", "-o", str(tmp_path / "x.json")]) == 0
    rows = json.loads((tmp_path / "x.json").read_text())["comparisons"][0]["rows"]
    assert {row["task"] for row in rows} == {"shapes_color", *ELSEWHERE}
    gains = document["also"]["shapes_color"]["shapes_place"]["methods"]["ttm"]["differences"]
    for row in (row for row in rows if row["task"] == ELSEWHERE[0]):
        assert row["method"] == "none>ttm" and row["difference"] == pytest.approx(gains[row["metric"]]["value"])
        assert row["ci"][0] <= row["difference"] <= row["ci"][1] and row["groups"] == 6 and row["limited"]
    own = [row for row in rows if row["task"] == "shapes_color"]
    assert all(row["p_holm"] == pytest.approx(row["p"]) for row in own), "other tasks are not further tests of this one"
    made = evaluate(seeds=[0], also="shapes_place")
    again = {row["task"] for row in ttmbench.compare(made, bootstrap_iters=50)}
    assert again == {"shapes_color", "shapes_color@shapes_place"}
    document["also"]["shapes_color"]["shapes_place"]["fingerprint"] = "other"
    changed = tmp_path / "y.json"
    changed.write_text(json.dumps(document))
    for name in document["artifacts"]:
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(UsageError, match="task 'shapes_color@shapes_place' has data fingerprint"):
        ttmbench.compare(str(whole / "x.json"), str(changed))


def test_tables_and_pages_show_them_in_a_block_of_their_own(whole, document, capsys):
    print_results(document)
    above, title, block = capsys.readouterr().out.partition("Adapted to one task, measured on another")
    assert title and "shapes_place" in block and "itself" in block and "shapes_place" not in above
    assert main(["leaderboard", str(whole), "-o", str(whole / "board")]) == 0
    board = json.loads((whole / "board" / "leaderboard.json").read_text())
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(board)
    assert {row["task"] for row in board["rows"]} == {"shapes_color"}
    assert main(["report", str(whole / "x.json"), "-o", str(whole / "page.html"), "--images", "none"]) == 0
    assert 'id="transfers"' in (whole / "page.html").read_text()


def test_a_stopped_run_measures_no_finished_seed_twice(tmp_path, monkeypatch):
    """Stopped in the measurements of seed 1, which are made again when it resumes."""
    expected, found, stop_at, real = evaluate().document, [], 4, evaluation.run_task

    def run_task(run, task, *more):
        if run.cache is None:
            found.append(task.spec.task)
            if stop_at == len(found):
                raise KeyboardInterrupt
        return real(run, task, *more)

    monkeypatch.setattr("ttmbench.evaluator.evaluate.run_task", run_task)
    settings = {"use_cache": str(tmp_path / "cache")}
    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path / "b.json", **settings)
    stop_at = 0
    again = evaluate(tmp_path / "b.json", **settings).document
    assert found == ["shapes_place", "shapes_spatial"] * 3
    assert without_times(again["also"]) == without_times(expected["also"])
    assert without_times(again["results"]) == without_times(expected["results"])


def by_methods(path=None, **changes):
    args = {"tent": {"lr": 0.05, "images": 4}, "selftrain": SHORT}
    names = changes.pop("methods", ["selftrain", "tent", "dn"])
    given = {name: args[name] for name in names if name in args}
    return evaluate(path, ttm=False, methods=names, method_args=given, **changes)


def test_models_of_other_methods_are_measured_and_saved_too(tmp_path):
    saved, more = tmp_path / "saved", {"log_samples": True, "save_scores": True, "also": "shapes_place"}
    document = by_methods(tmp_path / "x.json", save_adapted=str(saved), **more).document
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    record = document["also"]["shapes_color"]["shapes_place"]
    assert set(record["methods"]) == {"selftrain", "tent"}
    for name, of_method in record["methods"].items():
        folders = [saved / name / "shapes_color" / f"seed_{seed}" for seed in (0, 1)]
        each = [
            ttmbench.simple_evaluate("hf", "shapes_place", model_args={"pretrained": str(folder)}, **QUICK).results
            for folder in folders
        ]
        for metric in ("group_match", "text_score"):
            raw, values = record["results"][f"{metric},none"], [one["shapes_place"][f"{metric},none"] for one in each]
            assert record["results"][f"{metric},{name}"] == pytest.approx(np.mean(values))
            assert of_method["differences"][metric]["by_seed"] == pytest.approx([value - raw for value in values])
        numbers, own = document["results"]["shapes_color"], document["methods"]["shapes_color"][name]["differences"]
        gain = numbers[f"group_match,{name}"] - numbers["group_match,none"]
        assert own["group_match"]["value"] == pytest.approx(gain)
        assert json.loads((folders[1] / "ttmbench.json").read_text())["method"] == name
    assert any("what method 'dn' does is not measured" in note for note in document["notes"]["shapes_color"])
    assert "differences" not in document["methods"]["shapes_color"]["dn"]
    stored = read_scores(tmp_path / "x_also_scores_shapes_color@shapes_place.safetensors", None)
    assert {key: len(arrays) for key, arrays in stored.scores.items()} == {"none": 1, "selftrain": 2, "tent": 2}
    rows = ResultsDocument.model_validate(document).transfers
    assert {(row.adapted_to, row.measured_on) for row in rows} == {
        (f"shapes_color by {name}", task) for name in ("selftrain", "tent") for task in ("shapes_color", "shapes_place")
    }
    (run,) = ttmbench.read_results(tmp_path / "x.json")
    frame = run.to_frame()
    apart = frame[(frame["task"] == ELSEWHERE[0]) & (frame["metric"] == "group_match")]
    assert dict(zip(apart["method"], apart["seeds"].fillna(0), strict=True)) == {"none": 0, "selftrain": 2, "tent": 2}


def test_one_saved_method_has_the_folder_itself(tmp_path):
    run = by_methods(methods=["tent"], seeds=[0], also="", save_adapted=str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "ttmbench.json").is_file() and "also" not in run.document


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"methods": ["dn", "tpt"], "also": "shapes_place"}, ("--also", "'dn' trains", "'tpt' restores")),
        ({"methods": ["dn"], "save_adapted": "x"}, ("--save_adapted", "leaves a trained model")),
        *(
            ({"methods": ["tent"], "method_args": {"tent.train": added}, "save_adapted": "x"}, ("'tent'", added))
            for added in ("lora:2", "context:2", "shift")
        ),
    ],
)
def test_a_run_that_leaves_no_model_is_refused(changes, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", **QUICK, **changes)
    assert all(fact in str(raised.value) for fact in facts) and "\n" not in str(raised.value)


def test_what_makes_no_sense_is_refused_in_a_line(capsys, tmp_path):
    assert main(["analyze", "transfer", *WORDS, "--tasks", "shapes_color", "-o", str(tmp_path)]) == 2
    assert "needs at least two tasks" in capsys.readouterr().err
    assert main([*WORDS[:2], "--tasks", "shapes_color", "--also", "shapes_place"]) == 2
    assert "also is for test-time methods, so it needs ttm or methods" in capsys.readouterr().err
    with pytest.raises(UsageError, match="names no task but shapes_color"):
        evaluate(also="shapes_color")
    with pytest.raises(UsageError, match=r"unknown task 'shapes_colour'.*did you mean"):
        evaluate(also="shapes_colour")
    features = tmp_path / "e.npz"
    rows = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    np.savez(features, img=rows, cap=rows)
    with pytest.raises(UsageError, match="stored features of one task"):
        ttmbench.simple_evaluate(
            "embeddings", "shapes_color", model_args={"path": str(features)}, ttm=SHORT, also="shapes_place"
        )


def test_a_dry_run_names_them(capsys):
    assert main([*WORDS, "--tasks", "shapes_color", "--ttm", "--also", "shapes_*", "--dry_run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["also"][:2] == ["shapes_color", "shapes_color_global"]


def test_ranked_tasks_are_measured_by_their_numbers():
    """Which are means over seeds, without an interval over groups."""
    others = ttmbench.simple_evaluate("tiny-clip", "shapes_naming", **QUICK).results["shapes_naming"]
    numbers = evaluate(also="shapes_naming")["also"]["shapes_color"]["shapes_naming"]
    found, moved = numbers["results"], numbers["methods"]["ttm"]["differences"]["accuracy_top1"]
    assert found["accuracy_top1,none"] == others["accuracy_top1,none"] and numbers["ci"]["accuracy_top1,ttm"] is None
    each = [found["accuracy_top1,none"] + one for one in moved["by_seed"]]
    assert found["accuracy_top1,ttm"] == pytest.approx(np.mean(each))
    assert found["accuracy_top1_seed_std,ttm"] == pytest.approx(np.std(each, ddof=1))


def test_intervals_over_seeds_are_students():
    assert difference_of(0.5, [0.5, None]) is None
    low, high = seed_interval([0.1, 0.2, 0.3])
    half = 4.302652729911275 * 0.1 / np.sqrt(3)
    assert (low, high) == pytest.approx((0.2 - half, 0.2 + half))


def test_transfer_draws_the_matrix(tmp_path, capsys):
    words = ["analyze", "transfer", *WORDS, "--tasks", "shapes_color,shapes_place", "--seeds", "0,1"]
    assert main([*words, "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "adapted to shapes_place" in shown and "measured on" in shown
    (file,) = tmp_path.rglob("transfer_2_tasks_*.json")
    for ending in (".png", ".svg"):
        assert Path(file).with_suffix(ending).stat().st_size > 5000
    found = json.loads(file.read_text())
    cells = {(row["adapted_to"], row["name"]): row for row in found["rows"]}
    tasks = ("shapes_color", "shapes_place")
    assert list(cells) == [(adapted, measured) for adapted in tasks for measured in tasks]
    run = evaluate(also="shapes_place").document
    own = run["methods"]["shapes_color"]["ttm"]["differences"]["group_match"]
    other = run["also"]["shapes_color"]["shapes_place"]["methods"]["ttm"]["differences"]["group_match"]
    first, second, *_ = cells.values()
    assert (first["gain"], first["ci"]) == (own["value"], own["ci"])
    assert (second["gain"], second["seed_ci"]) == (other["value"], other["seed_ci"])
    assert second["raw"] == run["also"]["shapes_color"]["shapes_place"]["results"]["group_match,none"]
    assert {row["metric"] for row in found["rows"]} == {"group_match"}


def ends(task):
    labels = task.parts.pseudo_labels(task.scores)
    for _ in task.iterations():
        yield task.train(0.0, labels, ttmbench.Selection(labels.captions, ~labels.tie))


def ends_early(task):
    yield next(ends(task))


class Ends:
    @staticmethod
    @ttmbench.hookimpl
    def ttmbench_register_methods():
        more = {"needs": ("gradients",), "scope": "task", "reset": "never", "takes_ttm_args": True}
        return [ttmbench.MethodSpec(name, f"{__name__}:{name}", **more) for name in ("ends", "ends_early")]


def test_a_method_that_ends_early_leaves_its_teacher(tmp_path):
    saved = []
    for name in ("ends", "ends_early"):
        ttmbench.simple_evaluate(
            *("tiny-clip", "shapes_color"),
            plugins=[("own", Ends)],
            **{**QUICK, "methods": [name], "save_adapted": str(tmp_path / name)},
            ttm_args={"iterations": 1, "epochs": 2, "teacher": "ema", "lr": 5e-3},
        )
        saved.append(load_file(next((tmp_path / name).rglob("model.safetensors"))))
    assert all(np.array_equal(saved[0][key], value) for key, value in saved[1].items())
